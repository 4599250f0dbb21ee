package mpi

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits of PMI-1, sent to each rank in answer to get_maxes: those of Hydra.
const (
	MaxName  = 256  // bytes of the key-value space's name
	MaxKey   = 64   // bytes of a key
	MaxValue = 1024 // bytes of a value
	// maxLine is more than a put with the longest name, key and value.
	maxLine = 4096
	// maxSpawn bounds the lines of an mcmd, which is refused anyhow.
	maxSpawn = 4096
)

// ErrMalformed is wrapped by all errors about invalid PMI input of a rank.
var ErrMalformed = errors.New("malformed PMI input")

// message is one line of PMI-1: cmd=NAME key=value ...
type message struct {
	cmd  string
	args map[string]string
}

// parse reads one line without its newline (mpich, src/pmi/maint/pmi-1.1.txt). What follows
// value= runs to the end of the line, and may contain blanks.
func parse(line string) (message, error) {
	m := message{args: map[string]string{}}
	if !utf8.ValidString(line) || strings.ContainsRune(line, 0) {
		return m, fmt.Errorf("%w: %.80q is no text", ErrMalformed, line)
	}
	for rest := strings.TrimLeft(line, " "); rest != ""; rest = strings.TrimLeft(rest, " ") {
		name, after, ok := strings.Cut(rest, "=")
		if !ok || name == "" || strings.Contains(name, " ") {
			return m, fmt.Errorf("%w: %.80q: want cmd=NAME key=value ...", ErrMalformed, line)
		}
		value := after
		if name == "value" {
			rest = ""
		} else if value, rest, ok = strings.Cut(after, " "); !ok {
			rest = ""
		}
		if _, twice := m.args[name]; twice {
			return m, fmt.Errorf("%w: %.80q: %s twice", ErrMalformed, line, name)
		}
		m.args[name] = value
	}
	if mcmd, ok := m.args["mcmd"]; ok {
		m.args["cmd"] = mcmd
	}
	if m.cmd = m.args["cmd"]; m.cmd == "" {
		return m, fmt.Errorf("%w: %.80q: no command", ErrMalformed, line)
	}
	return m, nil
}
