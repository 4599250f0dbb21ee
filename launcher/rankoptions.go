package launcher

import "fmt"

// RankOptions are what a user asks of each rank's process. They are passed as one value
// from the request to whatever becomes the rank: a Stage, a shim.Rank, its confinement and
// a container.Spec embed it. A new option is a field here with its check, a flag of the
// command line, and a line each where the process (shim) and the container are made.
type RankOptions struct {
	Ulimits []Ulimit `json:"ulimits,omitempty"`
	// where Assignment places the rank; the shim gets the CPUs of that place
	BindTo Binding `json:"bind_to,omitempty"`
}

// IsZero reports whether a rank has no options.
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

// mayAsk refuses what the user may not have.
func (o RankOptions) mayAsk(user string) error {
	for _, u := range o.Ulimits {
		if err := u.mayAsk(user); err != nil {
			return fmt.Errorf("--ulimit %w", err)
		}
	}
	return nil
}
