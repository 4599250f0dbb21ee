package wire

import "time"

// WebLink opens the page of the member that was asked, once, for the user who asked.
type WebLink struct {
	Host string `json:"host"` // the member's
	// URLs have one token, a secret; the first is the one that most can reach: by TLS, where it speaks that.
	URLs  []string  `json:"urls"`
	Until time.Time `json:"until"` // later it opens nothing
	// Problem is why it is on loopback alone; empty: others reach it too.
	Problem string `json:"problem,omitempty"`
}

// String keeps the token out of logs and errors.
func (l WebLink) String() string { return "a link to the page of " + l.Host }

// GoString does the same for %#v.
func (l WebLink) GoString() string { return l.String() }
