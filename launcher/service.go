package launcher

import (
	"fmt"
	"strings"
	"time"
)

// Service makes a job one that serves: once it is ready it is there until it is stopped,
// whoever launched it has gone or not.
type Service struct {
	// Port is where rank 0's node answers: a number, or a named port of the main stage.
	Port Value `json:"port"`
	// Listen is the address that it listens on: empty is the one at which the machines meet.
	Listen string `json:"listen,omitempty"`
	// Health is the path that answers 200 while it is well, such as /health.
	Health string `json:"health,omitempty"`
	// Metrics is the path of its Prometheus metrics; empty: it has none.
	Metrics string `json:"metrics,omitempty"`
	// Model is the name that requests have to give; empty: not known.
	Model string `json:"model,omitempty"`
	// Probe is how it is looked at once it is ready.
	Probe LiveProbe `json:"probe,omitempty"`
	// OnWedge is what becomes of it when it has requests and brings forth nothing.
	OnWedge WedgePolicy `json:"on_wedge,omitempty"`
	// Restarts bounds the new tries within Per: --restart 3/hour. 0: it is not tried again.
	Restarts int           `json:"restarts,omitempty"`
	Per      time.Duration `json:"per,omitempty"`
	// Autostart has it come back after all its machines were off.
	Autostart bool `json:"autostart,omitempty"`
}

// LiveProbe is how a service is looked at.
type LiveProbe string

const (
	ProbeHealth   LiveProbe = "health"   // GET Health; also what "" means
	ProbeGenerate LiveProbe = "generate" // one token of a completion as well
)

// WedgePolicy says what becomes of a service that is stuck.
type WedgePolicy string

const (
	WedgeReport  WedgePolicy = "report" // it is told; also what "" means
	WedgeRestart WedgePolicy = "restart"
)

func (s *Service) validate() error {
	switch {
	case s == nil:
		return nil
	case len(s.Port) == 0:
		return fmt.Errorf("service: %w: it has no port", ErrInvalid)
	case s.Health != "" && !strings.HasPrefix(s.Health, "/") || s.Metrics != "" && !strings.HasPrefix(s.Metrics, "/"):
		return fmt.Errorf("service: %w: want paths that begin with a slash", ErrInvalid)
	case s.Probe != "" && s.Probe != ProbeHealth && s.Probe != ProbeGenerate:
		return fmt.Errorf("--probe %q: %w: want health or generate", s.Probe, ErrInvalid)
	case s.OnWedge != "" && s.OnWedge != WedgeReport && s.OnWedge != WedgeRestart:
		return fmt.Errorf("--on-wedge %q: %w: want report or restart", s.OnWedge, ErrInvalid)
	case s.Restarts < 0 || s.Per < 0 || (s.Restarts > 0) != (s.Per > 0):
		return fmt.Errorf("--restart %d/%s: %w: want a number of tries in a time, such as 3/hour", s.Restarts, s.Per, ErrInvalid)
	}
	return nil
}
