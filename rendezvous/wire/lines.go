package wire

import (
	"cmp"
	"maps"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// JobLine is a job as the JSON face and ps --json tell it. Scripts read it: fields may come,
// none may go.
type JobLine struct {
	JobID      launcher.JobID      `json:"job_id"`
	Name       string              `json:"name"`
	Workload   string              `json:"workload"`
	User       string              `json:"user"`
	State      rendezvous.State    `json:"state"`
	ExitCode   *int                `json:"exit_code"`
	Cause      *string             `json:"cause"`
	Hosts      []string            `json:"hosts"`
	Away       []string            `json:"away"`
	Ranks      int                 `json:"ranks"`
	Stage      *string             `json:"stage"`
	Attempt    int                 `json:"attempt"`
	Attempts   int                 `json:"attempts"`
	Generation launcher.Generation `json:"generation"`
	Waits      *string             `json:"waits"`
	Line       int                 `json:"line"`

	OnPartition launcher.PartitionPolicy `json:"on_partition"`
	Image       *string                  `json:"image"`

	Planned time.Time  `json:"planned"`
	Started *time.Time `json:"started"`
	Ended   *time.Time `json:"ended"`

	NoLeader  bool                 `json:"no_leader"`
	AsOf      *time.Time           `json:"as_of"`
	AwaySince map[string]time.Time `json:"away_since"`
	Suspended []string             `json:"suspended"`
	Service   *ServiceLine         `json:"service"`
	AgainAt   *time.Time           `json:"again_at"`

	FabricOnly []string `json:"fabric_only"`
	FabricLost []string `json:"fabric_lost"`
}

// face are all jobs, for the JSON face.
func (r JobsResponse) face() any {
	lines := []JobLine{}
	for _, j := range r.Jobs {
		lines = append(lines, r.Line(j))
	}
	return lines
}

// Line is one of the jobs; without a leader it has the age of the answer, too.
func (r JobsResponse) Line(j rendezvous.JobStatus) JobLine {
	l := JobLine{
		JobID: j.Spec.ID, Name: j.Spec.Name, Workload: j.Spec.Workload, User: j.Spec.User, State: j.State,
		Hosts: []string{}, Away: append([]string{}, j.Away...), Ranks: j.Plan.World, Planned: j.Planned, Started: j.Started,
		AwaySince: map[string]time.Time{}, Suspended: append([]string{}, j.Suspended...),
	}
	l.FabricOnly, l.AgainAt = append([]string{}, j.FabricOnly...), j.AgainAt
	l.FabricLost = append([]string{}, j.FabricLost...)
	maps.Copy(l.AwaySince, j.AwaySince)
	l.Attempt, l.Attempts = j.Plan.Restarts+1, j.Spec.MaxRestarts+1
	l.Line, l.Generation = j.Line, j.Plan.Generation
	l.OnPartition = cmp.Or(j.Spec.OnPartition, launcher.ContinueOnPartition)
	if st := j.Spec.MainStage(); st != nil && st.Container != nil && st.Container.Image != "" {
		l.Image = &st.Container.Image
	}
	if j.Waits != "" {
		l.Waits = &j.Waits
	}
	l.Service = NewServiceLine(j, time.Now())
	l.Hosts = append(l.Hosts, j.MainHosts()...)
	if j.Plan.Stage != "" {
		l.Ranks = j.Spec.WorldOf(len(l.Hosts))
		if j.Outcome == nil {
			l.Stage = &j.Plan.Stage
		}
	}
	if o := j.Outcome; o != nil {
		l.ExitCode, l.Ended = &o.ExitCode, &o.At
		if o.Cause != "" {
			l.Cause = &o.Cause
		}
	}
	if l.NoLeader = r.Problem != ""; l.NoLeader && !r.Heard.IsZero() {
		l.AsOf = &r.Heard
	}
	return l
}

// ServiceLine is what ps --json and service ls --json print of a service. Fields may come,
// none may go.
type ServiceLine struct {
	URL       *string              `json:"url"`
	Model     string               `json:"model"`
	State     string               `json:"state"`
	Since     *time.Time           `json:"since"`
	Text      string               `json:"text"`
	Rate      *float64             `json:"tokens_per_s"`
	Running   *int                 `json:"running"`
	Autostart bool                 `json:"autostart"`
	Restart   string               `json:"restart"`
	Failures  int                  `json:"failures"`
	OnWedge   launcher.WedgePolicy `json:"on_wedge"`
	Metrics   *string              `json:"metrics"`
	// Memory is what it planned of each machine's (--memory), MemoryUsed what it held on the first one when its node
	// reported last; in bytes.
	Memory     *int64 `json:"memory_bytes"`
	MemoryUsed *int64 `json:"memory_used_bytes"`
}

// NewServiceLine gives that of a job; nil where it is no service.
func NewServiceLine(j rendezvous.JobStatus, now time.Time) *ServiceLine {
	v := j.Spec.Service
	if v == nil {
		return nil
	}
	l := &ServiceLine{Model: v.Model, Autostart: v.Autostart, Restart: v.RestartText(), Failures: j.RecentFaults(now),
		OnWedge: cmp.Or(v.OnWedge, launcher.WedgeReport)}
	if m := j.Spec.Memory; m != nil {
		l.Memory = &m.Bytes
	}
	l.State, l.Text = j.ServiceState()
	if j.Outcome != nil {
		return l
	}
	if addr := j.ServiceAddr(); addr != "" {
		url := "http://" + addr
		l.URL = &url
		if v.Metrics != "" {
			metrics := url + v.Metrics
			l.Metrics = &metrics
		}
	}
	if seen := j.Service; seen != nil {
		l.Rate, l.Running, l.MemoryUsed = seen.Rate, seen.Running, seen.Memory
		if l.State == string(seen.State) {
			l.Since = &seen.Since
		}
	}
	return l
}

// face are the clients, as client list --json prints them.
func (r ClientsResponse) face() any { return append([]rendezvous.Client{}, r.Clients...) }
