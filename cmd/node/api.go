package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/consensus"
	"github.com/sparkrun/sparkrun/rendezvous/lead"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// clusterCalls answers users: here where this node leads, else by the leader.
func (n *node) clusterCalls() wire.Cluster {
	return wire.Cluster{
		Status: n.status, Launch: n.launch, Watch: n.watch, Explain: n.explain, Stop: n.stop,
		Jobs: n.jobs, Logs: n.logs, Token: n.token, Leave: n.leave,
	}
}

// leader finds who answers a request that only a leader can: this node, or the
// one it is to be passed to. A request that was passed on already stays here.
func (n *node) leader(c wire.Caller) (*leadership, *wire.Client, error) {
	if l := n.leading.Load(); l != nil {
		return l, nil, nil
	}
	if c.Forwarded() || c.Node != "" {
		return nil, nil, fmt.Errorf("%s does not lead: %w", n.m.Host, wire.ErrRetry)
	}
	id := n.leaderID()
	if id == "" || id == n.m.Node { // or elected, but not ready yet
		return nil, nil, n.noLeader()
	}
	return nil, n.peers.client(id).OnBehalfOf(c), nil
}

// leaderID is raft's leader, or for a node outside raft the one whose control
// stream it has.
func (n *node) leaderID() launcher.NodeID {
	if id, _ := n.raft.Leader(); id != "" {
		return launcher.NodeID(id)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hint.live {
		return n.hint.leader
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
	case len(voters) == 0:
		return fmt.Errorf("%w: this node has not met its cluster yet: check that another node's agent runs and that the management network joins them", wire.ErrNoLeader)
	case len(voters) == 1 && voters[0] != n.m.Host:
		return fmt.Errorf("%w: %s, the only voter of this cluster, does not answer: start its agent there (`systemctl start sparkrun`); running jobs go on meanwhile, and with a third node the cluster would too", wire.ErrNoLeader, voters[0])
	case 2*len(silent) >= len(voters):
		return fmt.Errorf("%w: of the voters %s, %s do not answer, and a majority is needed: start their agents", wire.ErrNoLeader, strings.Join(voters, ", "), strings.Join(silent, ", "))
	}
	return fmt.Errorf("an election is under way: %w", wire.ErrRetry)
}

func (n *node) gossipAlive() map[launcher.NodeID]bool {
	alive := map[launcher.NodeID]bool{n.m.Node: true}
	if g := n.gossip.Load(); g != nil {
		for _, p := range g.Peers() {
			if p.Alive {
				alive[launcher.NodeID(p.ID)] = true
			}
		}
	}
	return alive
}

// passed turns the loss of the leader on the way into ErrRetry: the client
// asks again with the same id, and finds the next leader.
func (n *node) passed(err error) error {
	if errors.Is(err, wire.ErrUnreachable) {
		return fmt.Errorf("the leader %s does not answer: %w", n.hostOf(n.leaderID()), wire.ErrRetry)
	}
	return err
}

// led does the same for a leadership that ended here.
func led(err error) error {
	if errors.Is(err, lead.ErrOver) || errors.Is(err, consensus.ErrNotLeader) || errors.Is(err, consensus.ErrNoLeader) {
		return fmt.Errorf("%w: %w", wire.ErrRetry, err)
	}
	return err
}

func (n *node) launch(ctx context.Context, c wire.Caller, r wire.LaunchRequest, tell func(rendezvous.Progress) error) error {
	l, leader, err := n.leader(c)
	if err != nil {
		return err
	}
	if l == nil {
		return n.passed(leader.Launch(ctx, r, tell))
	}
	r.Spec.User = c.User.Name // never what the message says
	n.log.Info("launch", "job", r.Spec.ID, "workload", r.Spec.Workload, "user", c.User.Name, "uid", c.User.UID, "from", c.Host)
	if err := l.Launch(ctx, r.Spec); err != nil {
		return led(err)
	}
	return led(l.Watch(ctx, r.Spec.ID, tell))
}

func (n *node) watch(ctx context.Context, c wire.Caller, r wire.JobRequest, tell func(rendezvous.Progress) error) error {
	l, leader, err := n.leader(c)
	if err != nil {
		return err
	}
	if l == nil {
		return n.passed(leader.Watch(ctx, r, tell))
	}
	job, err := n.record.Find(r.Job)
	if err != nil {
		return err
	}
	return led(l.Watch(ctx, job.Spec.ID, tell))
}

func (n *node) stop(ctx context.Context, c wire.Caller, r wire.StopRequest) (wire.StopResponse, error) {
	l, leader, err := n.leader(c)
	if err != nil {
		return wire.StopResponse{}, err
	}
	if l == nil {
		res, err := leader.Stop(ctx, r)
		return res, n.passed(err)
	}
	job, err := n.record.Find(r.Job)
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
	return wire.StopResponse{Job: job.Spec.ID}, led(l.Stop(job.Spec.ID, grace, "stopped by "+c.User.Name))
}

func (n *node) explain(ctx context.Context, c wire.Caller, r wire.LaunchRequest) (wire.ExplainResponse, error) {
	l, leader, err := n.leader(c)
	if err != nil {
		return wire.ExplainResponse{}, err
	}
	if l == nil {
		res, err := leader.Explain(ctx, r)
		return res, n.passed(err)
	}
	spec := r.Spec.WithDefaults()
	spec.User = c.User.Name
	if err := spec.Validate(); err != nil {
		return wire.ExplainResponse{}, err
	}
	roster, _ := l.Roster()
	plan, err := rendezvous.MakePlan(spec, roster, 1)
	if err != nil {
		return wire.ExplainResponse{}, err
	}
	res := wire.ExplainResponse{Plan: plan, Nodes: make([]wire.NodePlan, len(plan.Nodes))}
	each(len(plan.Nodes), func(i int) {
		a := plan.Assignment(spec, i)
		var err error
		if a.Node == n.m.Node {
			res.Nodes[i], err = n.prepared(ctx, c, a)
		} else {
			res.Nodes[i], err = n.peers.client(a.Node).Prepared(ctx, a)
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
	l, leader, err := n.leader(c)
	if err == nil && l != nil {
		if err = n.raft.Verify(ctx); err == nil {
			return wire.JobsResponse{Jobs: l.Jobs()}, nil
		}
		err = led(err)
	} else if err == nil {
		var res wire.JobsResponse
		if res, err = leader.Jobs(ctx); err == nil {
			return res, nil
		}
		err = n.passed(err)
	}
	if c.Node != "" || !errors.Is(err, wire.ErrRetry) && !errors.Is(err, wire.ErrNoLeader) {
		return wire.JobsResponse{}, err
	}
	res := wire.JobsResponse{Problem: err.Error()}
	for _, j := range n.record.Jobs() {
		st := rendezvous.StatusOf(j)
		n.localState(&st)
		res.Jobs = append(res.Jobs, st)
	}
	return res, nil
}

// localState tells of a job what this node's own ledger knows.
func (n *node) localState(st *rendezvous.JobStatus) {
	if st.Outcome != nil {
		return
	}
	for _, e := range n.agent.Ledger() {
		if e.Key == st.Key() && e.Phase == launcher.PhaseStarted {
			st.State = rendezvous.StateRuns
		}
	}
}

func (n *node) status(ctx context.Context, c wire.Caller, r wire.StatusRequest) (wire.Status, error) {
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.Timeout)
		defer cancel()
	}
	for {
		_, changed := n.view()
		st, more, err := n.statusNow(ctx, c, r)
		if err != nil || ready(st) >= r.WaitNodes {
			st.Self = n.m.Host
			return st, err
		}
		select {
		case <-more:
		case <-changed:
		case <-ctx.Done():
			return st, fmt.Errorf("%d of %d nodes are ready after %s%s", ready(st), r.WaitNodes, r.Timeout, because(st.Problem))
		}
	}
}

func ready(st wire.Status) int {
	return len(slices.DeleteFunc(slices.Clone(st.Nodes), func(n wire.NodeStatus) bool { return n.State != "ready" }))
}

func because(problem string) string {
	if problem == "" {
		return ""
	}
	return ": " + problem
}

// statusNow is the leader's view, or without one this node's own. The channel
// is closed, or yields, when asking again makes sense.
func (n *node) statusNow(ctx context.Context, c wire.Caller, r wire.StatusRequest) (wire.Status, <-chan struct{}, error) {
	l, leader, err := n.leader(c)
	switch {
	case err == nil && l != nil:
		roster, more := l.Roster()
		return n.statusOf(roster, l.fence), more, nil
	case err == nil:
		st, err := leader.Status(ctx, r) // the leader does the waiting
		if err == nil || !errors.Is(err, wire.ErrUnreachable) && !errors.Is(err, wire.ErrRetry) {
			return st, nil, err
		}
		return n.statusAlone(n.passed(err)), soon(ctx), nil
	case c.Node != "":
		return wire.Status{}, nil, err
	}
	return n.statusAlone(err), soon(ctx), nil
}

// soon is for waiting out an election, which nothing on this node may tell of.
func soon(ctx context.Context) <-chan struct{} {
	c := make(chan struct{})
	go func() { // ends by itself
		defer close(c)
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}()
	return c
}

func (n *node) statusOf(roster rendezvous.Roster, fence launcher.Fence) wire.Status {
	cluster, epoch, _ := n.record.Cluster()
	st := wire.Status{Cluster: cluster, Epoch: epoch, Term: fence.Term, Leader: n.m.Host}
	roles := n.roles()
	for _, m := range roster {
		s := wire.NodeStatus{ID: m.ID, Host: m.Host, Addr: m.Addr.Addr(), State: "away", Since: m.Since,
			Role: roles[m.ID], Version: m.Version, Inventory: m.Inventory}
		if m.Ready {
			s.State = "ready"
		}
		if m.ID == n.m.Node {
			s.Role = "leader"
		}
		st.Nodes = append(st.Nodes, s)
	}
	return st
}

// statusAlone is what this node knows without a leader: its copy of the
// record, and gossip's hints.
func (n *node) statusAlone(problem error) wire.Status {
	cluster, epoch, _ := n.record.Cluster()
	_, term := n.raft.Leader()
	st := wire.Status{Cluster: cluster, Epoch: epoch, Term: term, Problem: problem.Error()}
	roles, alive := n.roles(), n.gossipAlive()
	inv, _ := n.view()
	for _, m := range n.record.Nodes() {
		s := wire.NodeStatus{ID: m.ID, Host: m.Host, Addr: m.Addr.Addr(), State: "unknown", Role: roles[m.ID]}
		if !alive[m.ID] {
			s.State = "away"
		}
		if m.ID == n.m.Node {
			s.Inventory, s.Version = inv, n.cfg.Version
		}
		st.Nodes = append(st.Nodes, s)
	}
	return st
}

func (n *node) roles() map[launcher.NodeID]string {
	out := map[launcher.NodeID]string{}
	for _, s := range n.raft.Members().Servers {
		out[launcher.NodeID(s.ID)] = s.Role.String()
	}
	return out
}
