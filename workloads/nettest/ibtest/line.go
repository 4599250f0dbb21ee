package ibtest

import (
	"encoding/json"
	"strings"
)

// Line is what a rank tells of one run, as a line of its output. The client's side tells of
// each, the server's of those that went wrong there.
type Line struct {
	// IBTest is 1: it marks the line, and is the version of what it means.
	IBTest int  `json:"ib_test"`
	Step   int  `json:"step"`
	Run    int  `json:"run"` // of the step
	Server bool `json:"server,omitempty"`
	// Argv is perftest's command line; empty where it was not started.
	Argv []string `json:"argv,omitempty"`
	Exit int      `json:"exit"`
	// Error is sparkrun's own word of what went wrong; empty where perftest ended by itself.
	Error string `json:"error,omitempty"`
	// Out, Err and File are what perftest printed, and its JSON file.
	Out  string `json:"out,omitempty"`
	Err  string `json:"err,omitempty"`
	File string `json:"file,omitempty"`
}

// MaxText bounds each text of a Line: a result has 3 KiB, and a loop of errors no end.
const MaxText = 16 << 10

// ParseLine reads a line of a rank's output; ok is false for one that is none of these.
func ParseLine(text string) (l Line, ok bool) {
	if !strings.HasPrefix(text, "{") {
		return Line{}, false
	}
	err := json.Unmarshal([]byte(text), &l)
	return l, err == nil && l.IBTest == 1
}

// Lines are what all ranks told.
type Lines struct {
	clients, servers map[[2]int]Line
}

// Add takes one.
func (all *Lines) Add(l Line) {
	if all.clients == nil {
		all.clients, all.servers = map[[2]int]Line{}, map[[2]int]Line{}
	}
	to := all.clients
	if l.Server {
		to = all.servers
	}
	to[[2]int{l.Step, l.Run}] = l
}

// Len is how many runs have been told of.
func (all Lines) Len() int { return len(all.clients) }
