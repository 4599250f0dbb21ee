// Package bench decides what a file of benchmarks means, what is kept of a run of it, and what may be concluded from
// what is kept: medians, spread, whether two runs differ, scaling, drawings, exports.
//
// It must not run or ask anything: texts come in, texts go out. Package load, below it, asks servers.
package bench

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// File is a file of benchmarks.
type File struct {
	Name      string
	Scenarios []Scenario
}

// Scenario is one server, or one command, with values that vary.
type Scenario struct {
	Name    string
	Command []string  // what is run; of Serves what starts a server
	Serves  bool      // and is asked by Client
	Env     []Setting // in the file's order
	Client  Client
	Figures []Pattern // of a command that does not serve
	// Warmup are runs before the others that are not kept; Repeats are those that are, 1 to MaxRepeats.
	Warmup, Repeats int
	// Timeout bounds one run, and the start of a server.
	Timeout time.Duration
	vary    [][]Setting // each is a case
}

// MaxRepeats keeps the test of Compare exact and quick.
const MaxRepeats = 50

// Setting is a name with its value.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Client is how a server is asked; what is text may hold {names} of varied values.
type Client struct {
	Use, API, Model                     string
	Input, Output, Concurrency, Prompts string
}

// Clients, and the routes that they ask.
const (
	Auto        = "auto" // VLLM where it is, else Own
	VLLM        = "vllm" // vllm bench serve, beside the server
	Own         = "own"  // package load, here
	Completions = "completions"
	Chat        = "chat"
)

// Pattern finds a figure in what a command prints: its last match counts.
type Pattern struct {
	Name, Text, Unit string // Text is a regular expression with one named group, Name
	Better           Better
}

// Better is the direction in which a figure improves.
type Better string

const (
	Higher Better = "higher"
	Lower  Better = "lower"
)

// Figure is one number of a run.
type Figure struct {
	Name   string  `json:"name"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit,omitempty"`
	Better Better  `json:"better"`
}

// Case is a scenario with its values filled in.
type Case struct {
	Scenario string    `json:"scenario"`
	Values   []Setting `json:"values,omitempty"` // what varies, in the file's order
	// Argv runs it: a command, or the start of a server. Env is set for a command that is none of ours; what we launch
	// has it in Argv.
	Argv []string  `json:"argv"`
	Env  []Setting `json:"env,omitempty"`
	Load *Load     `json:"load,omitempty"` // of a server; nil: Argv is a command

	Patterns        []Pattern     `json:"-"`
	Warmup, Repeats int           `json:"-"`
	Timeout         time.Duration `json:"-"`
}

// Load is what a client does to a server: Prompts requests, Concurrency of them at a time, each with Input tokens and
// an answer of Output tokens.
type Load struct {
	Use         string `json:"use"`
	API         string `json:"api"`
	Model       string `json:"model,omitempty"` // empty: the first that the server lists
	Input       int    `json:"input"`
	Output      int    `json:"output"`
	Concurrency int    `json:"concurrency"`
	Prompts     int    `json:"prompts"`
}

// Label is a case's name for people, by which those of two runs are matched.
func (c Case) Label() string { return c.without() }

// without is a label without some of the values.
func (c Case) without(names ...string) string {
	words := []string{c.Scenario}
	for _, v := range c.Values {
		if !slices.Contains(names, v.Name) {
			words = append(words, v.Name+"="+v.Value)
		}
	}
	return strings.Join(words, " ")
}

// Value is that of a name; empty: it does not vary.
func (c Case) Value(name string) string { return value(c.Values, name) }

func value(of []Setting, name string) string {
	for _, s := range of {
		if s.Name == name {
			return s.Value
		}
	}
	return ""
}

// Server is equal for cases that can be asked of one server; empty: a command.
func (c Case) Server() string {
	if c.Load == nil {
		return ""
	}
	return strings.Join(c.Argv, "\x00")
}

// Key is equal for cases that do the same: a resumed run does not do them again.
func (c Case) Key() string {
	what, err := json.Marshal([]any{c.Label(), c.Argv, c.Env, c.Load, c.Patterns, c.Warmup})
	if err != nil {
		panic(err) // plain data
	}
	sum := sha256.Sum256(what)
	return hex.EncodeToString(sum[:8])
}

// Cases are all cases of the named scenarios, of all where none is named. Those of one server follow each other.
func (f File) Cases(only []string) (out []Case, err error) {
	var names []string
	for _, s := range f.Scenarios {
		names = append(names, s.Name)
		if len(only) > 0 && !slices.Contains(only, s.Name) {
			continue
		}
		cases, err := s.cases()
		if err != nil {
			return nil, fmt.Errorf("scenario %s: %w", s.Name, err)
		}
		first := map[string]int{}
		for i, c := range slices.Backward(cases) {
			first[c.Server()] = i
		}
		slices.SortStableFunc(cases, func(a, b Case) int { return first[a.Server()] - first[b.Server()] })
		out = append(out, cases...)
	}
	for _, name := range only {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("--only %s: no such scenario: known are %s", name, strings.Join(names, ", "))
		}
	}
	return out, nil
}
