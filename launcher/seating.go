package launcher

import (
	"fmt"
	"strconv"
)

// Binding says which processors a rank may run on.
type Binding string

const (
	BindNone Binding = "none" // any; also what "" means
	BindCore Binding = "core" // an equal share of the machine's cores, which no other rank of the job has
	BindNUMA Binding = "numa" // those of one NUMA node, the nodes taken in turn
)

// Stdin says which ranks get standard input: StdinNone, StdinAll, or the number of one. The
// others have an empty one.
type Stdin string

const (
	StdinNone Stdin = "none" // also what "" means
	StdinAll  Stdin = "all"
)

// Has reports whether a rank gets it.
func (s Stdin) Has(rank int) bool { return s == StdinAll || string(s) == strconv.Itoa(rank) }

// Any reports whether some rank does.
func (s Stdin) Any() bool { return s != "" && s != StdinNone }

// within reports whether a named rank is one of so many.
func (s Stdin) within(ranks int) bool {
	n, err := strconv.Atoi(string(s))
	return err != nil || n < ranks
}

func (s Stdin) validate() error {
	n, err := strconv.Atoi(string(s))
	if s.Any() && s != StdinAll && (err != nil || n < 0 || strconv.Itoa(n) != string(s)) {
		return fmt.Errorf("--stdin %s: %w: want none, all, or the number of a rank", s, ErrInvalid)
	}
	return nil
}

// Window is the size of a terminal, in characters.
type Window struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

func (st Stage) validatePlacement() error {
	if err := st.Stdin.validate(); err != nil {
		return err
	}
	if err := st.RankOptions.validate(); err != nil {
		return err
	}
	if st.TTY != nil && (!st.Stdin.Any() || st.Stdin == StdinAll) {
		return fmt.Errorf("--tty: %w: a terminal is one rank's: name it with --stdin RANK", ErrInvalid)
	}
	return nil
}

// HasTTY reports whether a rank gets a terminal.
func (st Stage) HasTTY(rank int) bool { return st.TTY != nil && st.Stdin.Has(rank) }
