package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/agent"
	"github.com/sparkrun/sparkrun/launcher/shim"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// input writes to the ranks that a job's spec names, straight to their nodes:
// like output, it needs no leader.
func (n *node) input(ctx context.Context, c wire.Caller, r wire.InputRequest) (wire.Empty, error) {
	job, err := n.ownJob(ctx, c, r.Job)
	if err != nil {
		return wire.Empty{}, err
	}
	wanted := reads(job, r.Ranks)
	return wire.Empty{}, reachAll(ctx, job, wanted, func(ctx context.Context, p rendezvous.Place, rank int) error {
		return n.reachOn(ctx, p, wire.NodeReachRequest{Key: job.Key(), Rank: rank, Offset: r.Offset, Data: r.Data, End: r.End, Window: r.Window})
	})
}

// reads tells which of these ranks, of all where none are named, have an input.
// What runs before and after the main stage has none.
func reads(job rendezvous.Job, ranks []int) func(rank int) bool {
	return func(rank int) bool {
		return job.Plan.Stage == "" && job.Spec.MainStage().Stdin.Has(rank) && (len(ranks) == 0 || slices.Contains(ranks, rank))
	}
}

func (n *node) inputAt(ctx context.Context, c wire.Caller, r wire.InputAtRequest) (at wire.InputAtResponse, err error) {
	job, err := n.ownJob(ctx, c, r.Job)
	if err != nil {
		return at, err
	}
	return at, reachAll(ctx, job, reads(job, []int{r.Rank}), func(ctx context.Context, p rendezvous.Place, rank int) (err error) {
		if p.Node == n.m.Node {
			at, err = inputAtHere(ctx, n.agent, wire.NodeInputAtRequest{Key: job.Key(), Rank: rank})
		} else {
			at, err = n.dial.Client(p.Node).NodeInputAt(ctx, wire.NodeInputAtRequest{Key: job.Key(), Rank: rank})
		}
		return err
	})
}

func (n *node) nodeInputAt(ctx context.Context, _ wire.Caller, r wire.NodeInputAtRequest) (wire.InputAtResponse, error) {
	return inputAtHere(ctx, n.agent, r)
}

func inputAtHere(ctx context.Context, a *agent.Agent, r wire.NodeInputAtRequest) (wire.InputAtResponse, error) {
	at, err := a.InputAt(ctx, r.Key, r.Rank)
	return wire.InputAtResponse{Offset: at}, noReader(err)
}

func (n *node) signal(ctx context.Context, c wire.Caller, r wire.SignalRequest) (wire.Empty, error) {
	if err := validSignal(r.Signal); err != nil {
		return wire.Empty{}, err
	}
	job, err := n.ownJob(ctx, c, r.Job)
	if err != nil {
		return wire.Empty{}, err
	}
	n.log.Info("signal", "job", job.Spec.ID, "signal", r.Signal, "ranks", r.Ranks, "user", c.User.Name)
	wanted := func(rank int) bool { return len(r.Ranks) == 0 || slices.Contains(r.Ranks, rank) }
	return wire.Empty{}, reachAll(ctx, job, wanted, func(ctx context.Context, p rendezvous.Place, rank int) error {
		return n.reachOn(ctx, p, wire.NodeReachRequest{Key: job.Key(), Rank: rank, Signal: r.Signal})
	})
}

func validSignal(n int) error {
	if n < 1 || n > 64 {
		return fmt.Errorf("signal %d: %w: want 1 to 64", n, launcher.ErrInvalid)
	}
	return nil
}

// runsAs is the user whose ranks a caller may start: their own, or for root
// any. The message's word alone counts for nothing.
func runsAs(c wire.Caller, wanted string) (string, error) {
	switch {
	case wanted == "" || wanted == c.User.Name:
		return c.User.Name, nil
	case c.User.UID == 0:
		return wanted, nil
	}
	return "", fmt.Errorf("--user %s: %w: only root may run jobs as another user", wanted, wire.ErrDenied)
}

// typedOn is the member whose user calls, or that a client has dialled.
func (n *node) typedOn(c wire.Caller) string {
	if c.Forwarded() {
		return c.Host
	}
	return n.m.Host
}

// nearOf is the member that a job would better be near: where its user typed. A
// client's user is near none, whichever it has dialled.
func (n *node) nearOf(c wire.Caller) string {
	if c.Client != nil {
		return ""
	}
	return n.typedOn(c)
}

// ownJob finds a job that its caller may touch.
func (n *node) ownJob(ctx context.Context, c wire.Caller, text string) (rendezvous.Job, error) {
	job, _, err := n.findJob(ctx, c, text)
	if err == nil && c.User.UID != 0 && c.User.Name != job.Spec.User {
		err = fmt.Errorf("reach job %s: %w: it is %s's", job.Spec.ID, wire.ErrDenied, job.Spec.User)
	}
	return job, err
}

// reachAll calls fn for each wanted rank, all at once. Ranks that have ended
// count for nothing as long as one is reached.
func reachAll(ctx context.Context, job rendezvous.Job, wanted func(rank int) bool, fn func(context.Context, rendezvous.Place, int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	ended := make([]error, job.Plan.World)
	reached := 0
	for _, p := range job.Plan.Nodes {
		for rank := p.FirstRank; rank < p.FirstRank+p.Ranks; rank++ {
			if !wanted(rank) {
				continue
			}
			reached++
			g.Go(func() error {
				err := fn(ctx, p, rank)
				if errors.Is(err, wire.ErrNoReader) {
					ended[rank], err = err, nil
				}
				return err
			})
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	none := slices.DeleteFunc(ended, func(err error) bool { return err == nil })
	switch {
	case reached == 0:
		return fmt.Errorf("job %s: %w", job.Spec.ID, wire.ErrNoReader)
	case len(none) == reached:
		return none[0]
	}
	return nil
}

func (n *node) reachOn(ctx context.Context, p rendezvous.Place, r wire.NodeReachRequest) error {
	if p.Node == n.m.Node {
		return reachHere(ctx, n.agent, r)
	}
	return n.dial.Client(p.Node).NodeReach(ctx, r)
}

func (n *node) nodeReach(ctx context.Context, _ wire.Caller, r wire.NodeReachRequest) (wire.Empty, error) {
	return wire.Empty{}, reachHere(ctx, n.agent, r)
}

func reachHere(ctx context.Context, a *agent.Agent, r wire.NodeReachRequest) (err error) {
	if r.Signal != 0 {
		err = a.Signal(ctx, r.Key, r.Rank, syscall.Signal(r.Signal))
	} else {
		err = a.Input(ctx, r.Key, r.Rank, agent.InputChunk{Offset: r.Offset, Data: r.Data, End: r.End, Window: r.Window})
	}
	return noReader(err)
}

func noReader(err error) error {
	if errors.Is(err, shim.ErrNoRank) || errors.Is(err, shim.ErrGone) {
		return fmt.Errorf("%w: %w", wire.ErrNoReader, err)
	}
	return err
}

// Input writes to the ranks of a job on this machine.
func (s *Standalone) Input(ctx context.Context, r wire.InputRequest) error {
	job, err := s.record.Find(r.Job)
	if err != nil {
		return err
	}
	return reachAll(ctx, job, reads(job, r.Ranks), func(ctx context.Context, _ rendezvous.Place, rank int) error {
		return reachHere(ctx, s.agent, wire.NodeReachRequest{Key: job.Key(), Rank: rank, Offset: r.Offset, Data: r.Data, End: r.End, Window: r.Window})
	})
}

// Signal passes a signal to the ranks of a job on this machine.
func (s *Standalone) Signal(ctx context.Context, r wire.SignalRequest) error {
	job, err := s.record.Find(r.Job)
	if err == nil {
		err = validSignal(r.Signal)
	}
	if err != nil {
		return err
	}
	wanted := func(rank int) bool { return len(r.Ranks) == 0 || slices.Contains(r.Ranks, rank) }
	return reachAll(ctx, job, wanted, func(ctx context.Context, _ rendezvous.Place, rank int) error {
		return reachHere(ctx, s.agent, wire.NodeReachRequest{Key: job.Key(), Rank: rank, Signal: r.Signal})
	})
}
