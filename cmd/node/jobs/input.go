package jobs

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

// Input writes to those ranks that the job's spec names, directly on their nodes: like
// output, it needs no leader.
func (k *Ranks) Input(ctx context.Context, c wire.Caller, r wire.InputRequest) (wire.Empty, error) {
	job, err := k.ownJob(ctx, c, r.Job)
	if err != nil {
		return wire.Empty{}, err
	}
	wanted := reads(job, r.Ranks)
	return wire.Empty{}, reachAll(ctx, job, wanted, func(ctx context.Context, p rendezvous.Place, rank int) error {
		return k.reachOn(ctx, p, wire.NodeReachRequest{
			Key: job.Key(), Rank: rank, Offset: r.Offset, Data: r.Data, End: r.End, Window: r.Window,
		})
	})
}

// reads tells which of these ranks have an input; an empty list means all ranks. Stages
// before and after the main one have none.
func reads(job rendezvous.Job, ranks []int) func(rank int) bool {
	return func(rank int) bool {
		return job.Plan.Stage == "" && job.Spec.MainStage().Stdin.Has(rank) &&
			(len(ranks) == 0 || slices.Contains(ranks, rank))
	}
}

// InputAt gives the offset at which a rank's input continues.
func (k *Ranks) InputAt(
	ctx context.Context, c wire.Caller, r wire.InputAtRequest,
) (at wire.InputAtResponse, err error) {
	job, err := k.ownJob(ctx, c, r.Job)
	if err != nil {
		return at, err
	}
	wanted := reads(job, []int{r.Rank})
	return at, reachAll(ctx, job, wanted, func(ctx context.Context, p rendezvous.Place, rank int) (err error) {
		if p.Node == k.cfg.Self {
			at, err = inputAtHere(ctx, k.cfg.Agent, wire.NodeInputAtRequest{Key: job.Key(), Rank: rank})
		} else {
			at, err = wire.NodeInputAt.Call(ctx, k.cfg.Dial.Client(p.Node), wire.NodeInputAtRequest{Key: job.Key(), Rank: rank})
		}
		return err
	})
}

// NodeInputAt gives it for a rank of this node.
func (k *Ranks) NodeInputAt(
	ctx context.Context, _ wire.Caller, r wire.NodeInputAtRequest,
) (wire.InputAtResponse, error) {
	return inputAtHere(ctx, k.cfg.Agent, r)
}

func inputAtHere(ctx context.Context, a *agent.Agent, r wire.NodeInputAtRequest) (wire.InputAtResponse, error) {
	at, err := a.InputAt(ctx, r.Key, r.Rank)
	return wire.InputAtResponse{Offset: at}, noReader(err)
}

// Signal passes a signal to ranks.
func (k *Ranks) Signal(ctx context.Context, c wire.Caller, r wire.SignalRequest) (wire.Empty, error) {
	if err := validSignal(r.Signal); err != nil {
		return wire.Empty{}, err
	}
	job, err := k.ownJob(ctx, c, r.Job)
	if err != nil {
		return wire.Empty{}, err
	}
	k.cfg.Logger.Info("signal", "job", job.Spec.ID, "signal", r.Signal, "ranks", r.Ranks, "user", c.User.Name)
	wanted := func(rank int) bool { return len(r.Ranks) == 0 || slices.Contains(r.Ranks, rank) }
	return wire.Empty{}, reachAll(ctx, job, wanted, func(ctx context.Context, p rendezvous.Place, rank int) error {
		return k.reachOn(ctx, p, wire.NodeReachRequest{Key: job.Key(), Rank: rank, Signal: r.Signal})
	})
}

func validSignal(n int) error {
	if n < 1 || n > 64 {
		return fmt.Errorf("signal %d: %w: want 1 to 64", n, launcher.ErrInvalid)
	}
	return nil
}

// reachAll calls fn for each wanted rank, all at once. Ranks that have ended are no error
// as long as one is reached.
func reachAll(ctx context.Context, job rendezvous.Job, wanted func(rank int) bool,
	fn func(context.Context, rendezvous.Place, int) error) error {
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

func (k *Ranks) reachOn(ctx context.Context, p rendezvous.Place, r wire.NodeReachRequest) error {
	if p.Node == k.cfg.Self {
		return reachHere(ctx, k.cfg.Agent, r)
	}
	return wire.NodeReach.Call(ctx, k.cfg.Dial.Client(p.Node), r)
}

// NodeReach takes input or a signal for a rank of this node.
func (k *Ranks) NodeReach(ctx context.Context, _ wire.Caller, r wire.NodeReachRequest) (wire.Empty, error) {
	return wire.Empty{}, reachHere(ctx, k.cfg.Agent, r)
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
	if errors.Is(err, agent.ErrPreparing) {
		return fmt.Errorf("%w: %w", wire.ErrConflict, err)
	}
	return err
}
