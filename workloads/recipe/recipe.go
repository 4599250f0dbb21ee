// Package recipe decides what a recipe means: a file that tells how to serve one model, of
// the kinds that people already have. Version 1 is of eugr/spark-vllm-docker, version 2 of the
// Python tool sparkrun of spark-arena; both are read as they lie.
//
// It is pure: text, and what a user asked for besides, in; a workloads.Request out, and notes
// on all that was read and not followed. It must not look at files, machines or images, and
// it must not say how a server is spread over machines: what a recipe says of that is taken
// out of its command, into workloads.Serve, for the workload to decide.
package recipe

import (
	"fmt"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

// Recipe is what a file says, before anything is filled in.
type Recipe struct {
	Version     string // "1" or "2"
	Name        string // version 1 has one; empty in most of version 2, which goes by the file's name
	Description string
	Model       string // on Hugging Face; empty: the command alone names it
	Revision    string // of the model; empty: the newest
	Runtime     string // as written; empty: the command tells
	Image       string // empty: the workload's own
	// MinNodes and MaxNodes are the machines it is for; 0: not said. MinBy and MaxBy are the
	// fields that say so.
	MinNodes, MaxNodes int
	MinBy, MaxBy       string
	// Command is a template; empty: it is made of Defaults.
	Command  string
	Defaults []Setting
	Env      []Setting
	// Mods are folders with a run.sh that changes what is in the image before the server starts:
	// paths beside the recipe, or @REGISTRY/PATH.
	Mods []string
	// Setup are shell commands that run in each container before the server, templates too.
	Setup    []string
	Executor Executor
	// Notes are on what is in the file and not followed.
	Notes []Note
}

// Setting is a name and its value as text.
type Setting struct{ Name, Value string }

// Executor is what a recipe asks of the container engine.
type Executor struct {
	Privileged bool
	// Args are options of docker run that give a container more than its user has.
	Args []string
	// ShmBytes is a /dev/shm of its own; 0: the machine's.
	ShmBytes int64
	Ulimits  []launcher.Ulimit
}

// Note is a word on a field: what of it was not followed, or what it means here.
type Note struct {
	Field string `json:"field"`
	Text  string `json:"text"`
}

func (n Note) String() string { return n.Field + ": " + n.Text }

// Limits of a file, which is text that a person wrote.
const (
	MaxBytes = 1 << 20
	maxDepth = 16
	// maxEntries bounds a list, and twice the fields in one place.
	maxEntries = 2000
	// maxRounds bounds how deep values may be in values.
	maxRounds = 16
	// maxText bounds a command once its placeholders are filled in, in bytes.
	maxText = 256 << 10
)

// invalid is an error about a field of a recipe.
func invalid(field, format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", field, launcher.ErrInvalid, fmt.Sprintf(format, args...))
}

// get is the last value of a name.
func get(all []Setting, name string) (string, bool) {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Name == name {
			return all[i].Value, true
		}
	}
	return "", false
}

// byName are the last values of all names.
func byName(all []Setting) map[string]string {
	out := make(map[string]string, len(all))
	for _, s := range all {
		out[s.Name] = s.Value
	}
	return out
}

func names(all []Setting) string {
	var out []string
	for _, s := range all {
		out = append(out, s.Name)
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}
