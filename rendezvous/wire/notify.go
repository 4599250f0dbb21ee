package wire

import (
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// NotifyResponse is who is told of what, by name.
type NotifyResponse struct {
	Targets []NotifyTarget `json:"targets"`
	// LeftOut counts the notices that were never sent, as too many waited.
	LeftOut int `json:"left_out"`
}

// NotifyTarget is one of them as everybody may see it.
type NotifyTarget struct {
	Name string `json:"name"`
	Kind string `json:"kind"` // webhook or command
	// To is the URL without its path, or the command without its arguments.
	To      string                   `json:"to"`
	On      []rendezvous.NotifyEvent `json:"on"`
	Created time.Time                `json:"created"`
	By      string                   `json:"by"`
	Waiting int                      `json:"waiting"` // notices that it has yet to get
	Last    *time.Time               `json:"last"`    // when something was last sent; nil: never
	Error   string                   `json:"error"`   // why that did not arrive; empty: it did
}

// NotifyChangeRequest adds a target or removes one.
type NotifyChangeRequest struct {
	Add    *NotifyAdd `json:"add,omitempty"`
	Remove string     `json:"remove,omitempty"` // a name
}

// NotifyAdd is a new target: a URL, or a command.
type NotifyAdd struct {
	Name    string                   `json:"name"`
	On      []rendezvous.NotifyEvent `json:"on"`
	URL     string                   `json:"url,omitempty"`
	Headers []string                 `json:"headers,omitempty"` // Name: value
	Command []string                 `json:"command,omitempty"`
}

// String keeps what may be secret out of logs and errors.
func (r NotifyChangeRequest) String() string {
	if r.Add != nil {
		return "add " + r.Add.Name
	}
	return "rm " + r.Remove
}

// GoString does so for %#v.
func (r NotifyChangeRequest) GoString() string { return r.String() }

// String keeps what may be secret out of logs and errors.
func (r NotifyAdd) String() string { return r.Name }

// GoString does so for %#v.
func (r NotifyAdd) GoString() string { return r.String() }

func (r NotifyChangeRequest) about() (string, bool) { return r.String(), true }

// NotifyTestRequest has a target told of nothing.
type NotifyTestRequest struct {
	Name string `json:"name"`
}

func (r NotifyTestRequest) about() (string, bool) { return r.Name, true }

// NotifyTestResponse says which machine has sent it.
type NotifyTestResponse struct {
	Host string `json:"host"`
}
