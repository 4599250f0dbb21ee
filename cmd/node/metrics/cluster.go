package metrics

import (
	"cmp"
	"runtime"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node/gateway"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// member tells what this member knows of the cluster, leader or not.
func (m *Metrics) member(p *page, told gateway.Told) {
	p.gauge("sparkrun_build_info", "What runs on this member; the value is 1.").add(1, "host", m.cfg.Host, "version",
		m.cfg.Version, "goversion", runtime.Version())
	if all := len(m.cfg.Members()); all > 0 {
		p.gauge("sparkrun_members", "Members of the cluster, as far as this one knows.").add(float64(all))
	}
	seen := 1 // this one
	for _, peer := range m.cfg.Present.Load() {
		if peer.Alive && launcher.NodeID(peer.ID) != m.cfg.Self {
			seen++
		}
	}
	p.gauge("sparkrun_members_seen", "Members that gossip hears now, this one among them.").add(float64(seen))
	p.gauge("sparkrun_has_leader", "Whether this member knows who leads.").is(m.cfg.Raft.Leader() != "")
	p.gauge("sparkrun_is_leader", "Whether this member leads.").is(m.leads.Load() != nil)
	if !told.Since.IsZero() {
		p.gauge("sparkrun_gateway_cut_off", "Whether the gateway goes by an old map, as it hears no leader.").is(told.Cut)
	}
	if m.cfg.Raft.HasRecord() {
		_, _, index := m.cfg.Record.Cluster()
		p.gauge("sparkrun_record_index", "Raft's index up to which this member has the record.").add(float64(index))
	}
}

// States that are told of even where nothing is in them.
var (
	jobStates = []rendezvous.State{rendezvous.StatePlanned, rendezvous.StateStarts, rendezvous.StateRuns,
		rendezvous.StateEnds, rendezvous.StateWaits, rendezvous.StateAgain}
	serviceStates = append(slices.Clone(jobStates), rendezvous.StateAsleep, rendezvous.State(launcher.ServiceReady),
		rendezvous.State(launcher.ServiceUnhealthy), rendezvous.State(launcher.ServiceWedged),
		rendezvous.State(rendezvous.Failed))
)

// cluster tells what the leader alone knows; nothing where this member does not lead.
func (m *Metrics) cluster(p *page, now time.Time) {
	c := m.leads.Load()
	if c == nil {
		return
	}
	ready := p.gauge("sparkrun_node_ready", "Whether a machine answers the leader.")
	drained := p.gauge("sparkrun_node_drained", "Whether a machine answers and gets no ranks.")
	st, _ := c.Status()
	for _, n := range st.Nodes {
		ready.is(n.State == "ready" || n.State == "drained", "node", n.Host)
		drained.is(n.State == "drained", "node", n.Host)
	}
	all := c.Jobs()
	count := map[rendezvous.State]int{}
	for _, j := range all {
		if j.Outcome == nil && j.Spec.Service == nil {
			count[j.State]++
		}
	}
	states(p.gauge("sparkrun_jobs", "Jobs that have not ended, without services."), jobStates, count)
	counts := c.Counts()
	ended := p.counter("sparkrun_jobs_ended_total", "Jobs and services that have ended since this member leads, by how.")
	for _, end := range []rendezvous.End{rendezvous.Completed, rendezvous.Failed, rendezvous.Stopped, rendezvous.Rejected} {
		ended.add(float64(counts.Ended[end]), "end", string(end))
	}
	p.counter("sparkrun_job_retries_total", "Attempts of jobs and services that have followed one that failed, since this "+
		"member leads.").add(float64(counts.Again))

	count = map[rendezvous.State]int{}
	answers := p.gauge("sparkrun_service_ready", "Whether a service answers; one that sleeps is left out.")
	wedged := p.gauge("sparkrun_service_wedged", "Whether a service has requests and gives no tokens.")
	restarts := p.counter("sparkrun_service_restarts_total", "How often a service was started anew after a failure.")
	for _, j := range rendezvous.Services(all, now) {
		word, _ := j.ServiceState()
		count[rendezvous.State(word)]++
		of := []string{"service", cmp.Or(j.Spec.Name, string(j.Spec.ID)), "job_id", string(j.Spec.ID), "model",
			j.Spec.Service.Model}
		restarts.add(float64(j.Plan.Restarts), of...)
		if j.State == rendezvous.StateAsleep {
			continue
		}
		answers.is(word == string(launcher.ServiceReady), of...)
		wedged.is(word == string(launcher.ServiceWedged), of...)
	}
	states(p.gauge("sparkrun_services", "Services, those among them that should run and have failed."), serviceStates,
		count)
}

func states(f *family, always []rendezvous.State, count map[rendezvous.State]int) {
	for _, s := range always {
		f.add(float64(count[s]), "state", s.Text())
		delete(count, s)
	}
	for s, n := range count {
		f.add(float64(n), "state", s.Text())
	}
}

// requests tells what the gateway was asked for. The times are by model alone: else a key more would be 14 series.
func requests(p *page, counts []wire.GatewayCount) {
	asked := p.counter("sparkrun_gateway_requests_total", "Requests that came to this member.")
	failed := p.counter("sparkrun_gateway_errors_total",
		"Requests that were refused, broke off or were answered with an error.")
	underWay := p.gauge("sparkrun_gateway_requests_under_way", "Requests that are not answered yet.")
	waiting := p.gauge("sparkrun_gateway_requests_waiting", "Requests that wait for a service.")
	in := p.counter("sparkrun_gateway_tokens_read_total", "Tokens of prompts, as far as answers tell.")
	out := p.counter("sparkrun_gateway_tokens_generated_total", "Tokens of answers, as far as these tell.")
	first := p.gauge("sparkrun_gateway_first_byte_seconds", "How long answers took to begin.")
	times := map[string]wire.GatewayFirstByte{}
	var models []string
	for _, c := range counts {
		of := []string{"model", c.Model, "key", c.Key}
		asked.add(float64(c.Requests), of...)
		failed.add(float64(c.Errors), of...)
		underWay.add(float64(c.UnderWay), of...)
		waiting.add(float64(c.Waiting), of...)
		in.add(float64(c.TokensIn), of...)
		out.add(float64(c.TokensOut), of...)
		sum, known := times[c.Model]
		if !known {
			models, sum.UpTo = append(models, c.Model), make([]int64, len(wire.GatewayTimes))
		}
		sum.Count, sum.Sum = sum.Count+c.FirstByte.Count, sum.Sum+c.FirstByte.Sum
		for i, n := range c.FirstByte.UpTo {
			sum.UpTo[i] += n
		}
		times[c.Model] = sum
	}
	for _, model := range models {
		t := times[model]
		first.histogram(wire.GatewayTimes[:], t.UpTo, t.Count, t.Sum, "model", model)
	}
}
