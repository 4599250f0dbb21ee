package launcher

import "fmt"

// RankOptions are what a user asks of each rank's process. They are one value, passed whole from the request to
// whatever becomes the rank: a Stage, a shim.Rank, its confinement and a container.Spec have it inside. A new option
// is a field here with its check, a flag of the command line, and a line where the process (shim) and the container
// are made.
type RankOptions struct {
	Ulimits []Ulimit `json:"ulimits,omitempty"`
	// where Assignment places the rank; the shim is told which CPUs that makes
	BindTo Binding `json:"bind_to,omitempty"`
}

// IsZero tells whether a rank is a process like any other.
func (o RankOptions) IsZero() bool { return len(o.Ulimits) == 0 && o.BindTo == "" }

func (o RankOptions) validate() error {
	switch o.BindTo {
	case "", BindNone, BindCore, BindNUMA:
	default:
		return fmt.Errorf("--bind-to %s: %w: want core, numa or none", o.BindTo, ErrInvalid)
	}
	for _, u := range o.Ulimits {
		if err := u.validate(); err != nil {
			return fmt.Errorf("--ulimit %w", err)
		}
	}
	return nil
}

// mayAsk refuses what a user cannot have.
func (o RankOptions) mayAsk(user string) error {
	for _, u := range o.Ulimits {
		if err := u.mayAsk(user); err != nil {
			return fmt.Errorf("--ulimit %w", err)
		}
	}
	return nil
}
