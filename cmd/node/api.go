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

// clusterCalls answers users: here where this node leads, else by the leader.
func (n *node) clusterCalls() wire.Cluster {
	return wire.Cluster{
		Status: n.status, Launch: n.launch, Watch: n.watch, Explain: n.explain,
		Stop:    audited(n, "stop", always(func(r wire.StopRequest) string { return r.Job }), n.stop),
		Service: audited(n, "service", always(func(r wire.ServiceRequest) string { return r.Job }), n.service),
		Jobs:    n.jobs, Logs: n.ranks.Logs, Input: n.ranks.Input,
		InputAt:    audited(n, "attach", always(func(r wire.InputAtRequest) string { return r.Job }), n.ranks.InputAt),
		Signal:     audited(n, "signal", always(func(r wire.SignalRequest) string { return r.Job }), n.ranks.Signal),
		Token:      n.token,
		Leave:      audited(n, "leave", always(func(wire.LeaveRequest) string { return "" }), n.leave),
		RemoveNode: audited(n, "node remove", always(func(r wire.RemoveNodeRequest) string { return r.Host }), n.removeNode),
		MarkDead:   audited(n, "mark-dead", always(func(r wire.MarkDeadRequest) string { return r.Host }), n.markDead),
		Takeover:   audited(n, "takeover", func(r wire.TakeoverRequest) (string, bool) { return strings.Join(r.Dead, " "), !r.Check }, n.takeover),
		Follow:     n.follow, Counters: n.checkup.Counters, Report: n.checkup.Report,
		Exec: n.ranks.Exec, ExecReach: n.ranks.ExecReach,
		Stage: n.ranks.Files.Stage, StageContent: n.ranks.Files.Content, Seal: n.ranks.Secrets.Seal,
		Clients: n.clients, RemoveClients: audited(n, "client remove", always(removedClients), n.removeClients), Refresh: n.refresh,
		Netplan: n.netplanPlan, NetplanApply: n.netplanApply,
		RaftStatus: n.raftStatus, RaftSnapshot: n.raftSnapshot, RaftBring: n.raftBring,
		RaftRestore: audited(n, "restore", func(r wire.RaftRestoreRequest) (string, bool) { return r.Sum, !r.Check }, n.raftRestore),
	}
}

// way is where a request that only a leader can answer goes: to the leadership
// of this node, or on to another's.
type way struct {
	*leadership              // nil: to another
	remote      *wire.Client // on behalf of the caller
	ctx         context.Context
	n           *node
	to          launcher.NodeID
	caller      context.Context
}

// leader finds the way. A request that was passed on already stays here. done
// must be called when the request has been answered.
func (n *node) leader(ctx context.Context, c wire.Caller) (w way, done func(), err error) {
	done = func() {}
	if l := n.leading.Load(); l != nil {
		return way{leadership: l, ctx: ctx}, done, nil
	}
	if c.Forwarded() || c.Node != "" {
		return way{}, done, fmt.Errorf("%s does not lead: %w", n.m.Host, wire.ErrRetry)
	}
	id := n.leaderID()
	if id == "" || id == n.m.Node { // or elected, but not ready yet
		return way{}, done, n.noLeader()
	}
	w = way{remote: n.dial.Client(id).OnBehalfOf(c), n: n, to: id, caller: ctx}
	// Raft knows of another leader before a dead one's connection breaks.
	var cancel context.CancelFunc
	w.ctx, cancel = context.WithCancel(ctx)
	go func() { // ends with done
		for {
			changed := n.raft.LeaderChanged()
			if now, _ := n.raft.Leader(); now != "" && launcher.NodeID(now) != id {
				cancel()
			}
			select {
			case <-changed:
			case <-w.ctx.Done():
				return
			}
		}
	}()
	return w, cancel, nil
}

// passed turns the loss of the leader on the way into ErrRetry: the client
// asks again with the same id, and finds the next leader.
func (w way) passed(err error) error {
	switch {
	case err == nil:
		return nil
	case w.ctx.Err() != nil && w.caller.Err() == nil:
		return fmt.Errorf("%s no longer leads: %w", w.n.hostOf(w.to), wire.ErrRetry)
	case errors.Is(err, wire.ErrUnreachable):
		return fmt.Errorf("the leader %s %w: %w", w.n.hostOf(w.to), errSilent, wire.ErrRetry)
	}
	return err
}

// errSilent: the leader was asked, and there was no answer.
var errSilent = errors.New("does not answer")

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

// led does the same for a leadership that ended here.
func led(err error) error {
	if errors.Is(err, lead.ErrUnknownRetry) {
		return fmt.Errorf("%w: %w", wire.ErrUnknownRetry, err)
	}
	if errors.Is(err, lead.ErrOver) || errors.Is(err, consensus.ErrNotLeader) || errors.Is(err, consensus.ErrNoLeader) {
		return fmt.Errorf("%w: %w", wire.ErrRetry, err)
	}
	return err
}

func (n *node) launch(ctx context.Context, c wire.Caller, r wire.LaunchRequest, tell func(rendezvous.Progress) error) (err error) {
	taken := false // a launch lasts as long as its job: its line comes when the cluster has taken it
	took := func(err error) {
		if !taken {
			n.auditUser("launch", c, string(r.Spec.ID), err)
		}
		taken = true
	}
	defer func() { took(err) }()
	user, err := c.RunsAs(r.Spec.User)
	if err == nil {
		err = n.ranks.Policy.Launch(ctx, c, user)
	}
	if err != nil {
		return err
	}
	to, done, err := n.leader(ctx, c)
	defer done()
	if err != nil {
		return err
	}
	if to.leadership == nil {
		return to.passed(to.remote.Launch(to.ctx, r, func(p rendezvous.Progress) error {
			took(nil)
			return tell(p)
		}))
	}
	if why := n.rollout.Holds(); why != "" {
		return fmt.Errorf("%s: %w", why, wire.ErrRetry)
	}
	r.Spec.User = user
	r.Spec.Near = n.nearOf(c)
	n.log.Info("launch", "job", r.Spec.ID, "workload", r.Spec.Workload, "user", c.User.Name, "uid", c.User.UID, "from", c.Host)
	if err := to.Launch(ctx, r.Spec); err != nil {
		return led(err)
	}
	took(nil)
	return led(to.Watch(ctx, r.Spec.ID, tell))
}

func (n *node) watch(ctx context.Context, c wire.Caller, r wire.JobRequest, tell func(rendezvous.Progress) error) error {
	to, done, err := n.leader(ctx, c)
	defer done()
	if err != nil {
		return err
	}
	if to.leadership == nil {
		return to.passed(to.remote.Watch(to.ctx, r, tell))
	}
	job, err := n.record.Find(r.Job)
	if err != nil {
		return err
	}
	return led(to.Watch(ctx, job.Spec.ID, tell))
}

func (n *node) stop(ctx context.Context, c wire.Caller, r wire.StopRequest) (wire.StopResponse, error) {
	to, done, err := n.leader(ctx, c)
	defer done()
	if err != nil {
		return wire.StopResponse{}, err
	}
	if to.leadership == nil {
		res, err := to.remote.Stop(to.ctx, r)
		return res, to.passed(err)
	}
	job, err := n.record.Find(r.Job)
	if hosts := n.stopStrays(to.leadership, c, r, job); len(hosts) > 0 {
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
	return wire.StopResponse{Job: job.Spec.ID}, led(to.Stop(ctx, job.Spec.ID, grace, "stopped by "+c.User.Name))
}

func (n *node) explain(ctx context.Context, c wire.Caller, r wire.LaunchRequest) (wire.ExplainResponse, error) {
	to, done, err := n.leader(ctx, c)
	defer done()
	if err != nil {
		return wire.ExplainResponse{}, err
	}
	if to.leadership == nil {
		res, err := to.remote.Explain(to.ctx, r)
		return res, to.passed(err)
	}
	spec := r.Spec.WithDefaults()
	if spec.User, err = c.RunsAs(spec.User); err != nil {
		return wire.ExplainResponse{}, err
	}
	spec.Near = n.nearOf(c)
	if err := spec.Validate(); err != nil {
		return wire.ExplainResponse{}, err
	}
	plan, findings, err := to.Place(spec)
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
			res.Nodes[i], err = n.dial.Client(a.Node).Prepared(ctx, a)
		}
		if err != nil {
			res.Nodes[i] = wire.NodePlan{Error: err.Error()}
		}
		res.Nodes[i].Host = a.Host
	})
	return res, nil
}

// jobs answers from the leader, who must prove that it still is one; without a
// leader, from this node's copy, and says so.
func (n *node) jobs(ctx context.Context, c wire.Caller, _ wire.Empty) (wire.JobsResponse, error) {
	to, done, err := n.leader(ctx, c)
	defer done()
	if err == nil && to.leadership != nil {
		if err = n.raft.Verify(ctx); err == nil {
			roster, _ := to.Roster()
			return wire.JobsResponse{Jobs: overFabric(to.Jobs(), n.statusOf(roster, to.fence))}, nil
		}
		err = led(err)
	} else if err == nil {
		var res wire.JobsResponse
		if res, err = to.remote.Jobs(to.ctx); err == nil {
			return res, nil
		}
		err = to.passed(err)
	}
	if c.Node != "" || !errors.Is(err, wire.ErrRetry) && !errors.Is(err, wire.ErrNoLeader) {
		return wire.JobsResponse{}, err
	}
	res := wire.JobsResponse{Problem: n.better(err).Error(), Heard: n.raft.LastContact()}
	for _, j := range n.record.Jobs() {
		st := rendezvous.StatusOf(j)
		n.localState(&st)
		res.Jobs = append(res.Jobs, st)
	}
	return res, nil
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
	case last == "", errors.Is(err, errSilent) && !n.gossipAlive()[last] && len(n.raft.Members().Servers) > 0:
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
