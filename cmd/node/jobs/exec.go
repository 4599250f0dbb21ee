package jobs

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

// Exec runs a command in a rank's place, directly on its node: like output and input, it
// needs no leader. Each hop is one call, and the end of any of them ends the command.
func (k *Ranks) Exec(ctx context.Context, c wire.Caller, r wire.ExecRequest, send func(wire.ExecChunk) error) error {
	job, err := k.ownJob(ctx, c, r.Job)
	var p rendezvous.Place
	if err == nil {
		p, err = placeOf(job, r.Rank)
	}
	// The command itself is left out: it may hold a secret.
	k.cfg.ByUser("exec", c, cmp.Or(string(job.Spec.ID), r.Job), err)
	if err != nil {
		return err
	}
	k.cfg.Logger.Info("exec", "job", job.Spec.ID, "rank", r.Rank, "node", p.Host, "user", c.User.Name)
	req := wire.NodeExecRequest{
		Key: job.Key(), Rank: r.Rank, Session: r.Session, Argv: r.Argv, Env: r.Env, Stdin: r.Stdin, TTY: r.TTY,
	}
	if p.Node == k.cfg.Self {
		return execHere(ctx, k.cfg.Agent, req, send)
	}
	if err = wire.NodeExec.Call(ctx, k.cfg.Dial.Client(p.Node), req, send); err != nil {
		return fmt.Errorf("%s: %w", p.Host, err)
	}
	return nil
}

// placeOf says where a rank runs, by this node's copy of the record.
func placeOf(job rendezvous.Job, rank int) (rendezvous.Place, error) {
	id := job.Spec.ID
	switch o := job.Outcome; {
	case o != nil:
		return rendezvous.Place{}, fmt.Errorf("exec in job %s: %w (%s, exit code %d): `sparkrun logs %[1]s` has its output",
			id, rendezvous.ErrJobEnded, o.End, o.ExitCode)
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

// NodeExec runs a command beside a rank of this node.
func (k *Ranks) NodeExec(ctx context.Context, c wire.Caller, r wire.NodeExecRequest,
	send func(wire.ExecChunk) error) error {
	k.cfg.ByMember("exec", c, string(r.Key.Job), nil)
	return execHere(ctx, k.cfg.Agent, r, send)
}

func execHere(ctx context.Context, a *agent.Agent, r wire.NodeExecRequest, send func(wire.ExecChunk) error) error {
	e := shim.Exec{Session: r.Session, Rank: r.Rank, Argv: r.Argv, Env: r.Env, Stdin: r.Stdin, TTY: r.TTY}
	exit, err := a.Exec(ctx, r.Key, e,
		func() error { return send(wire.ExecChunk{Began: r.Key.Job}) },
		func(s launcher.Stream, data []byte) error { return send(wire.ExecChunk{Stream: s, Data: data}) })
	if err != nil {
		return err
	}
	return send(wire.ExecChunk{Exit: &exit})
}

// ExecReach passes on input, a signal or a terminal size.
func (k *Ranks) ExecReach(ctx context.Context, c wire.Caller, r wire.ExecReachRequest) (wire.Empty, error) {
	job, err := k.ownJob(ctx, c, r.Job)
	if err != nil {
		return wire.Empty{}, err
	}
	p, err := placeOf(job, r.Rank)
	if err != nil {
		return wire.Empty{}, err
	}
	req := wire.NodeExecReachRequest{
		Key: job.Key(), Session: r.Session, Signal: r.Signal, Offset: r.Offset, Data: r.Data, End: r.End, Window: r.Window,
	}
	if p.Node == k.cfg.Self {
		return k.NodeExecReach(ctx, c, req)
	}
	return wire.Empty{}, wire.NodeExecReach.Call(ctx, k.cfg.Dial.Client(p.Node), req)
}

// NodeExecReach does so for a command on this node.
func (k *Ranks) NodeExecReach(ctx context.Context, _ wire.Caller, r wire.NodeExecReachRequest) (wire.Empty, error) {
	in := agent.InputChunk{Offset: r.Offset, Data: r.Data, End: r.End, Window: r.Window}
	return wire.Empty{}, noReader(k.cfg.Agent.ReachSession(ctx, r.Key, r.Session, syscall.Signal(r.Signal), in))
}
