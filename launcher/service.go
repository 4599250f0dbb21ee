package launcher

import (
	"fmt"
	"strings"
	"time"
)

// Service makes a job a service: once ready it runs until it is stopped, even if the user
// who launched it has logged out.
type Service struct {
	// Port is where rank 0's node answers: a named port of the main stage. It is open to
	// all who can reach that node, but see Behind.
	Port Value `json:"port"`
	// Behind: it is behind the gateway, so that of the hosts only the cluster's members reach Port, unless the job
	// publishes it.
	Behind bool `json:"behind,omitempty"`
	// Listen is the address that it listens on, for a dry run; empty: not known. Its real
	// address is found by asking (ServiceSeen.Addr).
	Listen string `json:"listen,omitempty"`
	// Health is the path that answers 200 while it is healthy, such as /health; empty: it
	// is healthy while it accepts connections.
	Health string `json:"health,omitempty"`
	// Metrics is the path of its Prometheus metrics; empty: it has none.
	Metrics string `json:"metrics,omitempty"`
	// Model is the model name that requests must give; empty: not known.
	Model string `json:"model,omitempty"`
	// Probe is how it is checked once it is ready.
	Probe LiveProbe `json:"probe,omitempty"`
	// OnWedge is what happens to it when it has requests and generates nothing.
	OnWedge WedgePolicy `json:"on_wedge,omitempty"`
	// Restarts bounds the restarts within Per: --restart 3/hour. 0: it is not restarted.
	Restarts int           `json:"restarts,omitempty"`
	Per      time.Duration `json:"per,omitempty"`
	// Autostart makes it start again after all its machines were off.
	Autostart bool `json:"autostart,omitempty"`
	// OnDemand has it run only while it is used; nil: always.
	OnDemand *OnDemand `json:"on_demand,omitempty"`
}

// OnDemand has a service sleep until a request comes for it, and again once none has come for some time. While it sleeps
// it has no ranks and holds no machine.
type OnDemand struct {
	Idle  time.Duration `json:"idle"`   // it sleeps once no request has come for so long; 0: DefaultIdle
	MinUp time.Duration `json:"min_up"` // it is not ended within this time after it got ready; 0: DefaultMinUp
}

// Defaults and bounds of OnDemand. Members tell the leader of requests each 30 s.
const (
	DefaultIdle  = 20 * time.Minute
	DefaultMinUp = 5 * time.Minute
	minIdle      = time.Minute
	maxIdle      = 30 * 24 * time.Hour
)

// LiveProbe is how a service is checked.
type LiveProbe string

const (
	ProbeHealth   LiveProbe = "health"   // GET Health; also what "" means
	ProbeGenerate LiveProbe = "generate" // also one token of a completion
)

// WedgePolicy says what happens to a service that is stuck.
type WedgePolicy string

const (
	WedgeReport  WedgePolicy = "report" // it is reported; also what "" means
	WedgeRestart WedgePolicy = "restart"
)

// Bounds of --restart: each failure within Per is kept in the record.
const (
	MaxServiceRestarts = 100
	MaxRestartPer      = 30 * 24 * time.Hour
)

// OnDemand is how a service sleeps; nil: it does not, or is none.
func (s Spec) OnDemand() *OnDemand {
	if s.Service == nil {
		return nil
	}
	return s.Service.OnDemand
}

// ServiceState is the state of a service.
type ServiceState string

const (
	ServiceStarting  ServiceState = "starting"  // it has not answered yet
	ServiceReady     ServiceState = "ready"     // it answers
	ServiceUnhealthy ServiceState = "unhealthy" // it has answered before, and does not now
	ServiceWedged    ServiceState = "wedged"    // it has requests, and generates nothing
)

// ServiceSeen is what the agent of rank 0's node has seen of a service.
type ServiceSeen struct {
	State ServiceState `json:"state"`
	Since time.Time    `json:"since"` // of the state; that node's clock
	// Addr is where it answers, as host:port; empty: nowhere yet.
	Addr string `json:"addr,omitempty"`
	// Ready is when it first answered in this generation.
	Ready *time.Time `json:"ready,omitempty"`
	Text  string     `json:"text,omitempty"` // what is wrong with it
	// Models are the names that it answers to beside Service.Model, those of LoRA adapters for example, as it lists them.
	Models []string `json:"models,omitempty"`
	// Rate is how many tokens it generates a second, and Running how many requests are
	// under way; nil: its metrics do not say.
	Rate    *float64 `json:"rate,omitempty"`
	Running *int     `json:"running,omitempty"`
	// Memory is what its ranks on that node held when this was reported, in bytes; nil: it is not known.
	Memory *int64 `json:"memory,omitempty"`
}

// RestartText is --restart as the user types it.
func (s *Service) RestartText() string {
	if s.Restarts == 0 {
		return "no"
	}
	for _, u := range RestartUnits {
		if s.Per == u.Span {
			return fmt.Sprintf("%d/%s", s.Restarts, u.Name)
		}
	}
	return fmt.Sprintf("%d/%s", s.Restarts, s.Per)
}

// RestartUnits are the intervals that --restart has names for.
var RestartUnits = []struct {
	Name string
	Span time.Duration
}{{"minute", time.Minute}, {"hour", time.Hour}, {"day", 24 * time.Hour}}

// validateService checks the options of a service, and refuses those that would end one:
// only a stop does.
func (s Spec) validateService() error {
	v := s.Service
	if v == nil {
		return nil
	}
	switch {
	case len(v.Port) == 0:
		return fmt.Errorf("service: %w: no port is given", ErrInvalid)
	case v.Health != "" && !strings.HasPrefix(v.Health, "/") || v.Metrics != "" && !strings.HasPrefix(v.Metrics, "/"):
		return fmt.Errorf("service: %w: --health %q, --metrics %q: want paths that begin with a slash", ErrInvalid,
			v.Health, v.Metrics)
	case v.Probe != "" && v.Probe != ProbeHealth && v.Probe != ProbeGenerate:
		return fmt.Errorf("--probe %q: %w: want health or generate", v.Probe, ErrInvalid)
	case v.OnWedge != "" && v.OnWedge != WedgeReport && v.OnWedge != WedgeRestart:
		return fmt.Errorf("--on-wedge %q: %w: want report or restart", v.OnWedge, ErrInvalid)
	case v.OnWedge == WedgeRestart && v.Restarts == 0:
		return fmt.Errorf("--on-wedge restart: %w: --restart no leaves it no attempt", ErrInvalid)
	case v.OnWedge == WedgeRestart && v.Metrics == "":
		return fmt.Errorf("--on-wedge restart: %w: only its metrics show that it is wedged: say where they are "+
			"(--metrics)", ErrInvalid)
	case v.OnDemand != nil && v.OnDemand.Idle != 0 && (v.OnDemand.Idle < minIdle || v.OnDemand.Idle > maxIdle):
		return fmt.Errorf("--idle %s: %w: want 1m to %d days", v.OnDemand.Idle, ErrInvalid, maxIdle/(24*time.Hour))
	case v.OnDemand != nil && (v.OnDemand.MinUp < 0 || v.OnDemand.MinUp > maxIdle):
		return fmt.Errorf("--min-up %s: %w: want up to %d days", v.OnDemand.MinUp, ErrInvalid, maxIdle/(24*time.Hour))
	case v.Restarts < 0 || v.Restarts > MaxServiceRestarts || v.Per < 0 || v.Per > MaxRestartPer ||
		(v.Restarts > 0) != (v.Per > 0):
		return fmt.Errorf("--restart %d/%s: %w: want up to %d attempts in up to %d days, such as 3/hour", v.Restarts,
			v.Per, ErrInvalid, MaxServiceRestarts, MaxRestartPer/(24*time.Hour))
	case s.NodeTimeout != 0 && s.NodeTimeout != Never:
		return fmt.Errorf("--node-timeout: %w: silence never ends a service", ErrInvalid)
	case s.OnPartition == EndOnPartition:
		return fmt.Errorf("--on-partition end: %w: silence never ends a service", ErrInvalid)
	case s.Timeout != 0:
		return fmt.Errorf("--timeout: %w: a service ends when it is stopped", ErrInvalid)
	case s.MaxRestarts > 0:
		return fmt.Errorf("--max-restarts: %w: a service has --restart", ErrInvalid)
	case s.OnFailure == ContinueOnFailure:
		return fmt.Errorf("--on-failure continue: %w: a service needs all its ranks, or is restarted", ErrInvalid)
	case s.Stage(StageAfter) != nil:
		return fmt.Errorf("--after: %w: a service has no end of its own", ErrInvalid)
	}
	for _, text := range []string{v.Health, v.Metrics, v.Model, v.Listen} {
		if err := validText(text); err != nil || len(text) > maxWordBytes {
			return fmt.Errorf("service: %w: %.32q: want text of at most %d bytes", ErrInvalid, text, maxWordBytes)
		}
	}
	return v.Port.validate()
}
