package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node/checkup"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/consensus"
	"github.com/sparkrun/sparkrun/rendezvous/lead"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// newServer answers all calls: those of members and newcomers as well.
func (n *node) newServer() *wire.Server {
	calls := slices.Concat(n.Calls(), n.checkup.Calls(), n.rollout.Calls(), n.ranks.Calls())
	return wire.NewServer(wire.ServerConfig{Host: n.m.Host, Leader: n.leader, Over: noLonger, Audit: n.auditUser}, calls...)
}

// Calls are what this node answers whether it leads or not; leadership.Calls are the others.
func (n *node) Calls() []wire.Call {
	return []wire.Call{
		wire.ShowStatus.Around(n.status), wire.Follow.Around(n.follow), wire.Jobs.Around(n.jobs),
		wire.Launch.Around(n.launchFrom), wire.Token.Around(n.tokenFrom),
		wire.Leave.Serve(n.leave), wire.Takeover.Serve(n.takeover), wire.Refresh.Serve(n.refresh),
		wire.ShowRaft.Serve(n.raftStatus), wire.RaftBring.Serve(n.raftBring), wire.RaftRestore.Serve(n.raftRestore),

		wire.Control.Serve(n.control), wire.KeepCA.Serve(n.keepCA), wire.DropCA.Serve(n.dropCA),
		wire.KeepTrusted.Serve(n.keepTrusted), wire.AskTrusted.Serve(n.askTrusted), wire.BeRemoved.Serve(n.beRemoved),
		wire.Seen.Serve(n.seen), wire.Succeed.Serve(n.succeed), wire.Objection.Serve(n.objection),
		wire.ReadRaft.Serve(n.nodeRaft), wire.BeginAnew.Serve(n.beginAnew),
		wire.ServeFence(n.fence), wire.ReadCounters.Serve(n.survey.Counters),

		wire.RenewExpired.Serve(n.renewExpired),
	}
}

// Calls are what only a leader answers.
func (l *leadership) Calls() []wire.Call {
	return []wire.Call{
		wire.ShowStatus.Serve(l.status), wire.Follow.Serve(l.follow), wire.Jobs.Serve(l.jobs),
		wire.Launch.Serve(l.launch), wire.Watch.Serve(l.watch), wire.Explain.Serve(l.explain), wire.Stop.Serve(l.stop),
		wire.Service.Serve(l.service), wire.Token.Serve(l.token),
		wire.RemoveNode.Serve(l.removeNode), wire.MarkDead.Serve(l.markDead),
		wire.Clients.Serve(l.clients), wire.RemoveClients.Serve(l.removeClients),
		wire.SaveRaft.Serve(l.raftSnapshot),
		wire.Renew.Serve(l.renew), wire.Reunite.Serve(l.reunite),
		wire.Join.Serve(l.join), wire.Login.Serve(l.login),
	}
}

// leader is the other node that leads.
func (n *node) leader() (wire.Leader, error) {
	id := n.leaderID()
	if id == "" || id == n.m.Node { // or elected, but not ready yet
		return wire.Leader{}, n.noLeader()
	}
	return wire.Leader{Host: n.hostOf(id), Client: n.dial.Client(id), Gone: func(ctx context.Context) {
		// Raft knows of another leader before a dead one's connection breaks.
		for {
			changed := n.raft.LeaderChanged()
			if now, _ := n.raft.Leader(); now != "" && launcher.NodeID(now) != id {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}}, nil
}

// leaderID is raft's leader, or for a node outside raft the one whose control
// stream it has.
func (n *node) leaderID() launcher.NodeID {
	if id, _ := n.raft.Leader(); id != "" {
		return launcher.NodeID(id)
	}
	if s := n.leads.Load(); s != nil {
		return s.leader.Node
	}
	return ""
}

// noLeader says in one line what is wrong and what helps: ErrNoLeader where
// waiting does not, ErrRetry where an election is under way.
func (n *node) noLeader() error {
	var voters, silent []string
	alive := n.gossipAlive()
	for _, s := range n.raft.Members().Servers {
		if s.Role != consensus.Voter {
			continue
		}
		host := n.hostOf(launcher.NodeID(s.ID))
		voters = append(voters, host)
		if !alive[launcher.NodeID(s.ID)] {
			silent = append(silent, host)
		}
	}
	switch {
	case n.shunned.Load():
		return fmt.Errorf("%w: the other members refuse this machine: %s", wire.ErrNoLeader, shunnedText)
	case n.noVote() != "" && len(voters) == 1 && voters[0] == n.m.Host:
		return fmt.Errorf("%w: %s, the only voter of this cluster, takes no part in the vote: %s", wire.ErrNoLeader, voters[0], n.noVote())
	case time.Since(n.began) < justStarted:
		return fmt.Errorf("the agent of %s has just been started: %w", n.m.Host, wire.ErrRetry)
	case n.blank.Load():
		return fmt.Errorf("%w: this machine has lost its copy of the record (%s is gone, or was put back to a backup) and votes again once a leader has taken it in anew; "+
			"if no machine leads, `sudo sparkrun takeover --confirm-dead %s` on one that has a copy, or `sudo sparkrun raft restore FILE` from a snapshot", wire.ErrNoLeader, n.cfg.Paths.raft(), n.m.Host)
	case len(voters) == 0:
		return fmt.Errorf("%w: this node has not met its cluster yet: check that another node's agent runs and that the management network joins them", wire.ErrNoLeader)
	case len(voters) == 1 && voters[0] != n.m.Host:
		text := fmt.Sprintf("%s, the only voter of this cluster, does not answer: start its agent there; running jobs go on meanwhile", voters[0])
		if n.hasRecord() {
			text += fmt.Sprintf("; if that machine is off, `sudo sparkrun takeover --confirm-dead %s` here", voters[0])
		}
		return fmt.Errorf("%w: %s", wire.ErrNoLeader, text)
	case 2*len(silent) >= len(voters):
		return fmt.Errorf("%w: %s", wire.ErrNoLeader, noMajority(silent, voters, n.hasRecord()))
	}
	return fmt.Errorf("an election is under way: %w", wire.ErrRetry)
}

// noMajority says who of the voters is silent, and what helps; one that has a copy
// of the record may take over.
func noMajority(silent, voters []string, copied bool) string {
	do, start, off := "does", "its agent", "that machine is off"
	if len(silent) > 1 {
		do, start, off = "do", "their agents", "those machines are off"
	}
	text := fmt.Sprintf("%s %s not answer, and a majority of the voters (%s) is needed: start %s; running jobs go on meanwhile",
		strings.Join(silent, ", "), do, strings.Join(voters, ", "), start)
	if copied {
		text += fmt.Sprintf("; if %s, `sudo sparkrun takeover --confirm-dead %s` here", off, strings.Join(silent, " --confirm-dead "))
	}
	return text
}

// justStarted is how long a node that has come up may need to hear of its
// leader, or to elect one.
const justStarted = 5 * time.Second

func (n *node) gossipAlive() map[launcher.NodeID]bool {
	alive := map[launcher.NodeID]bool{n.m.Node: true}
	for _, p := range n.present.Load() {
		if p.Alive {
			alive[launcher.NodeID(p.ID)] = true
		}
	}
	return alive
}

// gossipDead tells of a member whether gossip misses it, and since when: the zero
// time where this agent has never heard it.
func (n *node) gossipDead() func(launcher.NodeID) (since time.Time, gone bool) {
	alive, since := n.gossipAlive(), map[launcher.NodeID]time.Time{}
	for _, p := range n.present.Load() {
		since[launcher.NodeID(p.ID)] = p.Since
	}
	return func(id launcher.NodeID) (time.Time, bool) { return since[id], !alive[id] }
}

// noLonger turns the end of a leadership under an answer into ErrRetry.
func noLonger(err error) error {
	if errors.Is(err, lead.ErrUnknownRetry) {
		return fmt.Errorf("%w: %w", wire.ErrUnknownRetry, err)
	}
	if errors.Is(err, lead.ErrOver) || errors.Is(err, consensus.ErrNotLeader) || errors.Is(err, consensus.ErrNoLeader) {
		return fmt.Errorf("%w: %w", wire.ErrRetry, err)
	}
	return err
}

// launchFrom is asked where a launch is typed, before anything is placed.
func (n *node) launchFrom(ctx context.Context, c wire.Caller, r wire.LaunchRequest, tell func(rendezvous.Progress) error,
	ask wire.AskAll[wire.LaunchRequest, rendezvous.Progress]) error {
	user, err := c.RunsAs(r.Spec.User)
	if err != nil {
		return err
	}
	if err := n.ranks.Policy.Launch(ctx, c, user); err != nil {
		return err
	}
	return ask(ctx, r, tell)
}

func (l *leadership) launch(ctx context.Context, c wire.Caller, r wire.LaunchRequest, tell func(rendezvous.Progress) error) error {
	n := l.n
	user, err := c.RunsAs(r.Spec.User)
	if err != nil {
		return err
	}
	if why := n.rollout.Holds(); why != "" {
		return fmt.Errorf("%s: %w", why, wire.ErrRetry)
	}
	r.Spec.User = user
	r.Spec.Near = n.nearOf(c)
	n.log.Info("launch", "job", r.Spec.ID, "workload", r.Spec.Workload, "user", c.User.Name, "uid", c.User.UID, "from", c.Host)
	if err := l.Launch(ctx, r.Spec); err != nil {
		return err
	}
	return l.Watch(ctx, r.Spec.ID, tell)
}

func (l *leadership) watch(ctx context.Context, c wire.Caller, r wire.JobRequest, tell func(rendezvous.Progress) error) error {
	n := l.n
	job, err := n.record.Find(r.Job)
	if err != nil {
		return err
	}
	return l.Watch(ctx, job.Spec.ID, tell)
}

func (l *leadership) stop(ctx context.Context, c wire.Caller, r wire.StopRequest) (wire.StopResponse, error) {
	n := l.n
	job, err := n.record.Find(r.Job)
	if hosts := n.stopStrays(l, c, r, job); len(hosts) > 0 {
		return wire.StopResponse{Job: launcher.JobID(cmp.Or(string(job.Spec.ID), r.Job)), Strays: hosts}, nil
	}
	if err != nil {
		return wire.StopResponse{}, err
	}
	if c.User.UID != 0 && c.User.Name != job.Spec.User {
		return wire.StopResponse{}, fmt.Errorf("stop job %s: %w: it is %s's", job.Spec.ID, wire.ErrDenied, job.Spec.User)
	}
	grace := job.Spec.Grace
	if r.Grace != nil {
		grace = *r.Grace
	}
	return wire.StopResponse{Job: job.Spec.ID}, l.Stop(ctx, job.Spec.ID, grace, "stopped by "+c.User.Name)
}

func (l *leadership) explain(ctx context.Context, c wire.Caller, r wire.LaunchRequest) (wire.ExplainResponse, error) {
	n := l.n
	spec := r.Spec.WithDefaults()
	user, err := c.RunsAs(spec.User)
	if err != nil {
		return wire.ExplainResponse{}, err
	}
	spec.User = user
	spec.Near = n.nearOf(c)
	if err := spec.Validate(); err != nil {
		return wire.ExplainResponse{}, err
	}
	plan, findings, err := l.Place(spec)
	if err != nil {
		return wire.ExplainResponse{}, err
	}
	res := wire.ExplainResponse{Plan: plan, Findings: findings, Nodes: make([]wire.NodePlan, len(plan.Nodes))}
	each(len(plan.Nodes), func(i int) {
		a := wire.NodePlanRequest{Assignment: plan.Assignment(spec, i), Model: r.Model}
		var err error
		if a.Node == n.m.Node {
			res.Nodes[i], err = n.ranks.Prepared(ctx, c, a)
		} else {
			res.Nodes[i], err = wire.Prepared.Call(ctx, n.dial.Client(a.Node), a)
		}
		if err != nil {
			res.Nodes[i] = wire.NodePlan{Error: err.Error()}
		}
		res.Nodes[i].Host = a.Host
	})
	return res, nil
}

// jobs answers from the leader, who must prove that it still is one.
func (l *leadership) jobs(ctx context.Context, _ wire.Caller, _ wire.Empty) (wire.JobsResponse, error) {
	if err := l.n.raft.Verify(ctx); err != nil {
		return wire.JobsResponse{}, err
	}
	roster, _ := l.Roster()
	return wire.JobsResponse{Jobs: overFabric(l.Jobs(), l.statusOf(roster))}, nil
}

// jobs answers without a leader from this node's copy, and says so.
func (n *node) jobs(ctx context.Context, _ wire.Caller, r wire.Empty,
	ask wire.Ask[wire.Empty, wire.JobsResponse]) (wire.JobsResponse, error) {
	res, err := ask(ctx, r)
	if !errors.Is(err, wire.ErrRetry) && !errors.Is(err, wire.ErrNoLeader) {
		return res, err
	}
	res = wire.JobsResponse{Problem: n.better(err).Error(), Heard: n.raft.LastContact()}
	for _, j := range n.record.Jobs() {
		st := rendezvous.StatusOf(j)
		n.localState(&st)
		res.Jobs = append(res.Jobs, st)
	}
	return res, nil
}

// jobsFor is what jobs answers to c.
func (n *node) jobsFor(ctx context.Context, c wire.Caller, r wire.Empty) (wire.JobsResponse, error) {
	return wire.Jobs.Call(ctx, n.server().As(c), r)
}

// localState tells of a job what this node's own ledger knows.
func (n *node) localState(st *rendezvous.JobStatus) {
	if st.Outcome != nil || st.Verdict != nil || st.Stop != nil {
		return
	}
	for _, e := range n.agent.Ledger() {
		if e.Key == st.Key() && e.Phase == launcher.PhaseStarted {
			st.State = rendezvous.StateRuns
			if e.Suspended {
				st.Suspended = []string{n.m.Host}
			}
		}
	}
}

// better says why there is no leader, where that is known by now, in place of
// what asking the last one gave. The control stream of a leader that lost its power
// is missed 10 s after raft's word; until then it counts only as long as the leader
// answers or gossips. Silence of gossip alone is no evidence: it runs on management only.
func (n *node) better(err error) error {
	elected, _ := n.raft.Leader()
	last := n.leaderID()
	switch {
	case n.leading.Load() != nil, elected != "":
		return err
	case last == "", errors.Is(err, wire.ErrUnreachable) && !n.gossipAlive()[last] && len(n.raft.Members().Servers) > 0:
		return n.noLeader()
	}
	return err
}

// overFabric says of each job which of its machines management does not reach.
func overFabric(jobs []rendezvous.JobStatus, st wire.Status) []rendezvous.JobStatus {
	var over []string
	for _, f := range checkup.FabricOnly(st) {
		over = append(over, f.Host)
	}
	for i, j := range jobs {
		for _, p := range j.Plan.Nodes {
			if j.Outcome == nil && slices.Contains(over, p.Host) {
				jobs[i].FabricOnly = append(jobs[i].FabricOnly, p.Host)
			}
		}
	}
	return jobs
}
