package launcher

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Stream is one of a rank's two output streams.
type Stream string

const (
	Stdout Stream = "out"
	Stderr Stream = "err"
)

// Cursor is a place in one rank's output.
type Cursor struct {
	Rank   int    `json:"rank"`
	Stream Stream `json:"stream"`
	Offset int64  `json:"offset"` // bytes from the start
}

// From says where to begin output that has no Cursor. The zero value means the start.
type From struct {
	Lines *int      `json:"lines,omitempty"` // that many before the end, of each rank: of both streams, by their stamps
	Since time.Time `json:"since,omitzero"`  // not before, by the node's clock, to a second or so
}

// Chunk is a piece of output, or without Data a note. Without Data but with a Stream it
// moves that stream's cursor: what is before Offset is not sent.
type Chunk struct {
	Rank   int    `json:"rank"`
	Stream Stream `json:"stream,omitempty"`
	Offset int64  `json:"offset"` // of the first byte of Data
	Data   Bytes  `json:"data,omitempty"`
	// Time is when the node read Data, to a second or so; only if times were asked for.
	Time time.Time `json:"time,omitzero"`
	Job  JobID     `json:"job,omitempty"`
	Host string    `json:"host,omitempty"`
	Note string    `json:"note,omitempty"`
	Away bool      `json:"away,omitempty"` // of a Note: Host does not answer, and its output is missing
}

// Bytes are not copied out of a CBOR message: they are valid as long as it is.
type Bytes []byte

// UnmarshalCBOR takes a byte string or null (RFC 8949, 3.1), in a message that was found well-formed.
func (b *Bytes) UnmarshalCBOR(m []byte) error {
	const byteString, null, oneByte, eightBytes = 2 << 5, 7<<5 | 22, 24, 27
	if len(m) == 1 && m[0] == null {
		*b = nil
		return nil
	}
	head := 1
	if len(m) > 0 && m[0]&31 >= oneByte {
		head += 1 << (m[0]&31 - oneByte)
	}
	if len(m) < head || m[0]&^31 != byteString || m[0]&31 > eightBytes {
		return errors.New("want a byte string of known length")
	}
	*b = m[head:]
	return nil
}

// Setting is one variable as a rank gets it, and its source.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

// ValueOf is a variable's value in an environment; empty: it is not set, or empty.
func ValueOf(env []Setting, name string) string {
	for _, s := range env {
		if s.Name == name {
			return s.Value
		}
	}
	return ""
}

// RankPlan is what one rank would be exec'd with.
type RankPlan struct {
	Rank int       `json:"rank"`
	Argv []string  `json:"argv"`
	Env  []Setting `json:"env"`
	// Docker is the request for the rank's container as options of `docker run`, and Dir
	// the folder in it that Argv runs in; empty: it runs on the host.
	Docker []string `json:"docker,omitempty"`
	Dir    string   `json:"dir,omitempty"`
	// Image is the node's image of that name; nil: the rank runs on the host, or the node
	// did not look.
	Image *ImageSeen `json:"image,omitempty"`
	// Pulls: the image is not on the node, and a launch would pull it first.
	Pulls bool `json:"pulls,omitempty"`
	// MPI is the family that the node found its program to be linked with; empty: it did
	// not look.
	MPI MPIFamily `json:"mpi,omitempty"`
}

// Size formats bytes for people.
func Size(n int64) string {
	const units = "KMGT"
	v, unit := float64(n), -1
	for v >= 1024 && unit < len(units)-1 {
		v, unit = v/1024, unit+1
	}
	if unit < 0 {
		return strconv.FormatInt(n, 10) + " B"
	}
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") + " " + units[unit:unit+1] + "iB"
}

// Age says in one number how long something lasts: 12s, 5m, 3h, 2d.
func Age(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// Quote quotes a word for a shell.
func Quote(s string) string {
	bare := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("%+,-./:=@_", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !bare(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// QuoteAll quotes a command line for a shell.
func QuoteAll(argv []string) string {
	out := make([]string, len(argv))
	for i, a := range argv {
		out[i] = Quote(a)
	}
	return strings.Join(out, " ")
}
