package node

import (
	"cmp"
	"context"
	"fmt"
	"syscall"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/agent"
	"github.com/sparkrun/sparkrun/launcher/shim"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// exec runs a command in a rank's place, straight on its node: like output and
// input, it needs no leader. Each hop is one call, and the end of any ends the
// command.
func (n *node) exec(ctx context.Context, c wire.Caller, r wire.ExecRequest, send func(wire.ExecChunk) error) error {
	job, err := n.ownJob(ctx, c, r.Job)
	var p rendezvous.Place
	if err == nil {
		p, err = placeOf(job, r.Rank)
	}
	// Not the command, which may hold a secret.
	n.auditUser("exec", c, cmp.Or(string(job.Spec.ID), r.Job), err)
	if err != nil {
		return err
	}
	n.log.Info("exec", "job", job.Spec.ID, "rank", r.Rank, "node", p.Host, "user", c.User.Name)
	req := wire.NodeExecRequest{Key: job.Key(), Rank: r.Rank, Guest: r.Guest, Argv: r.Argv, Env: r.Env, Stdin: r.Stdin, TTY: r.TTY}
	if p.Node == n.m.Node {
		return execHere(ctx, n.agent, req, send)
	}
	if err = n.dial.Client(p.Node).NodeExec(ctx, req, send); err != nil {
		return fmt.Errorf("%s: %w", p.Host, err)
	}
	return nil
}

// placeOf says where a rank runs, as far as the record knows.
func placeOf(job rendezvous.Job, rank int) (rendezvous.Place, error) {
	id := job.Spec.ID
	switch o := job.Outcome; {
	case o != nil:
		return rendezvous.Place{}, fmt.Errorf("exec in job %s: %w (%s, exit code %d): `sparkrun logs %[1]s` has its output", id, rendezvous.ErrJobEnded, o.End, o.ExitCode)
	case job.Plan.World == 0:
		return rendezvous.Place{}, notStarted(id)
	}
	for _, p := range job.Plan.Nodes {
		if rank >= p.FirstRank && rank < p.FirstRank+p.Ranks {
			return p, nil
		}
	}
	return rendezvous.Place{}, noRank(job, rank)
}

func (n *node) nodeExec(ctx context.Context, c wire.Caller, r wire.NodeExecRequest, send func(wire.ExecChunk) error) error {
	n.auditMember("exec", c, string(r.Key.Job), nil)
	return execHere(ctx, n.agent, r, send)
}

func execHere(ctx context.Context, a *agent.Agent, r wire.NodeExecRequest, send func(wire.ExecChunk) error) error {
	e := shim.Exec{Guest: r.Guest, Rank: r.Rank, Argv: r.Argv, Env: r.Env, Stdin: r.Stdin, TTY: r.TTY}
	exit, err := a.Exec(ctx, r.Key, e,
		func() error { return send(wire.ExecChunk{Began: r.Key.Job}) },
		func(s launcher.Stream, data []byte) error { return send(wire.ExecChunk{Stream: s, Data: data}) })
	if err != nil {
		return err
	}
	return send(wire.ExecChunk{Exit: &exit})
}

func (n *node) execReach(ctx context.Context, c wire.Caller, r wire.ExecReachRequest) (wire.Empty, error) {
	job, err := n.ownJob(ctx, c, r.Job)
	if err != nil {
		return wire.Empty{}, err
	}
	p, err := placeOf(job, r.Rank)
	if err != nil {
		return wire.Empty{}, err
	}
	req := wire.NodeExecReachRequest{Key: job.Key(), Guest: r.Guest, Signal: r.Signal, Offset: r.Offset, Data: r.Data, End: r.End, Window: r.Window}
	if p.Node == n.m.Node {
		return n.nodeExecReach(ctx, c, req)
	}
	return wire.Empty{}, n.dial.Client(p.Node).NodeExecReach(ctx, req)
}

func (n *node) nodeExecReach(ctx context.Context, _ wire.Caller, r wire.NodeExecReachRequest) (wire.Empty, error) {
	in := agent.InputChunk{Offset: r.Offset, Data: r.Data, End: r.End, Window: r.Window}
	return wire.Empty{}, noReader(n.agent.ReachGuest(ctx, r.Key, r.Guest, syscall.Signal(r.Signal), in))
}
