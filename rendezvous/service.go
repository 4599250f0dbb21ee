package rendezvous

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// JobService records whether a service comes back after all its machines were off.
type JobService struct {
	Job       launcher.JobID `json:"job"`
	Autostart bool           `json:"autostart"`
}

// ErrNoService refuses what only a service can have.
var ErrNoService = errors.New("it is not a service")

// ErrNoRestart refuses to restart a service that no other attempt would follow.
var ErrNoRestart = errors.New("it would not be started again")

// ErrAsleep says that a service on demand which was asked for does not start.
var ErrAsleep = errors.New("cannot be started")

// Entry records it.
func (e JobService) Entry() Entry { return Entry{Kind: KindService, Service: &e} }

func (s *state) service(e JobService) error {
	j, ok := s.Jobs[e.Job]
	switch {
	case !ok:
		return ErrNoJob
	case j.Outcome != nil:
		return ErrJobEnded
	case j.Spec.Service == nil:
		return ErrNoService
	}
	j.Spec = WithAutostart(j.Spec, e.Autostart)
	s.Jobs[e.Job] = j
	return nil
}

// WithAutostart is a copy of a service's spec with another Autostart.
func WithAutostart(spec launcher.Spec, on bool) launcher.Spec {
	v := *spec.Service
	v.Autostart = on
	spec.Service = &v
	return spec
}

// mayRestart bounds the number of attempts after the first. A service has no bound in total: its failures decide
// (nextOfService).
func mayRestart(spec launcher.Spec) int {
	if spec.Service != nil {
		return math.MaxInt
	}
	return spec.MaxRestarts
}

// nextOfService says what follows a generation of a service. Whether it is tried again
// depends only on the record, so that every leader decides the same.
//
// It was moved away from a machine that is drained: it begins elsewhere. It sleeps: it begins when it is asked for. All its machines were off: with Autostart it comes back, and this is not a failure. Nothing of it was started,
// though an earlier generation was: the same, without a limit, because a machine that has just booted may not have
// its disks or dockerd yet. It has failed: it is tried again up to Restarts times within Per, and only if it was
// ready once or lost a machine: what never came up would not come up the second time.
func (j Job) nextOfService(out Outcome) (Next, bool) {
	v, n := j.Spec.Service, Next{Restarts: j.Plan.Restarts, Pause: pauseAfter(j.After(out).Attempts)}
	switch {
	case out.Moved, out.Asleep, j.failsUpdate(out): // what was before comes back
		n.Pause = 0
		return n, true
	case out.End == Rejected && j.Plan.Generation > 1:
		return n, true
	case out.End != Failed:
	case out.AllLost:
		return n, v.Autostart || v.OnDemand != nil
	case j.RecentFaults(out.At) < v.Restarts && (out.Lost || out.Started != nil || j.wasReady()):
		n.Restarts++
		return n, true
	}
	return Next{}, false
}

// WhyNoMore says why a service that failed after it had answered is not tried again; empty for any other job.
func (j Job) WhyNoMore(out Outcome) string {
	v := j.Spec.Service
	switch {
	case v == nil || j.Plan.Stage != "" || out.End != Failed:
		return ""
	case out.AllLost:
		return "all its machines were off, and it has no --autostart"
	case out.Started == nil && !j.wasReady():
		return ""
	case v.Restarts == 0:
		return "--restart no"
	case j.RecentFaults(out.At) >= v.Restarts:
		return fmt.Sprintf("%s in %s used up", count(v.Restarts, "restart"), span(v.Per))
	}
	return ""
}

func span(d time.Duration) string {
	switch {
	case d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return d.String()
}

// wasReady tells whether an earlier generation of a service had come up.
func (j Job) wasReady() bool {
	return slices.ContainsFunc(j.Attempts, func(a Attempt) bool { return a.Stage == "" && a.Started != nil })
}

// RecentFaults counts a service's failures within its Per before now.
func (j Job) RecentFaults(now time.Time) (n int) {
	for _, at := range j.Faults {
		if j.recent(at, now) {
			n++
		}
	}
	return n
}

// recent tells whether a failure counts. One in the future does not: a leader's wrong clock may have put it there,
// and it could count for years.
func (j Job) recent(at, now time.Time) bool {
	return now.Sub(at).Abs() < j.Spec.Service.Per
}

// faultsWith are the failures that --restart still counts at the end of a generation,
// including that generation's own.
func (j Job) faultsWith(out Outcome) []time.Time {
	if j.Spec.Service == nil || j.Spec.Service.Restarts == 0 {
		return nil
	}
	var recent []time.Time
	for _, at := range j.Faults {
		if j.recent(at, out.At) {
			recent = append(recent, at)
		}
	}
	if out.End == Failed && !out.AllLost && !out.Moved && !out.Asleep && !j.failsUpdate(out) {
		recent = append(recent, out.At)
	}
	return recent[max(0, len(recent)-launcher.MaxServiceRestarts):]
}

// ServiceAddr is where a service answers, as host:port: what was seen, else what follows
// from the plan and a fixed port; empty: not known.
func (s JobStatus) ServiceAddr() string {
	v := s.Spec.Service
	if v == nil || s.Plan.Generation == 0 || s.State == StateAsleep {
		return ""
	}
	if s.Service != nil && s.Service.Addr != "" {
		return s.Service.Addr
	}
	port := servicePort(s.Spec)
	if port == 0 || len(s.Plan.Nodes) == 0 || len(s.Plan.Nodes[0].Addrs) == 0 {
		return ""
	}
	host := s.Plan.Nodes[0].Management().String()
	if a, err := netip.ParseAddr(v.Listen); err == nil && !a.IsUnspecified() {
		host = v.Listen
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// servicePort is the number of a service's port; 0: not known before its nodes have chosen it.
func servicePort(spec launcher.Spec) uint16 {
	st := spec.MainStage()
	if st == nil || len(spec.Service.Port) != 1 {
		return 0
	}
	for _, p := range st.Ports {
		if spec.Service.Port[0].Ref == launcher.PortNamed(p.Name) {
			return p.At
		}
	}
	return 0
}

// ServiceState is the state of a service in one word; text says what is wrong.
func (s JobStatus) ServiceState() (state, text string) {
	switch seen := s.Service; {
	case s.State != StateRuns && s.State != StateStarts && s.State != StatePlanned || seen == nil:
		return string(s.State), s.Waits
	case s.State == StateStarts && seen.State == launcher.ServiceReady, seen.State == launcher.ServiceStarting:
		return string(s.State), s.Waits // it answers but is not complete yet, or was not asked yet
	default:
		return string(seen.State), seen.Text
	}
}

// RestartsText says how often a service has failed recently, and how often it may.
func (j Job) RestartsText(now time.Time) string {
	v := j.Spec.Service
	if v.Restarts == 0 {
		return "no"
	}
	return fmt.Sprintf("%d of %s", j.RecentFaults(now), v.RestartText())
}

// FailedFor is how long a failed service is told of.
const FailedFor = 7 * 24 * time.Hour

// Services are the services that run and those that should: they failed by themselves,
// and nobody has launched them again.
func Services(jobs []JobStatus, now time.Time) (services []JobStatus) {
	same := func(a, b launcher.Spec) bool {
		return a.Service != nil && b.Service != nil && a.Name == b.Name && a.User == b.User &&
			(a.Name != "" || a.Workload == b.Workload && a.Service.Model == b.Service.Model)
	}
	for _, j := range jobs {
		if j.Spec.Service == nil {
			continue
		}
		if o := j.Outcome; o != nil {
			again := slices.ContainsFunc(jobs,
				func(k JobStatus) bool { return same(j.Spec, k.Spec) && k.Planned.After(j.Planned) })
			if o.End != Failed || o.Started == nil && len(j.Attempts) == 0 || again || now.Sub(o.At) > FailedFor {
				continue
			}
		}
		services = append(services, j)
	}
	return services
}
