package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// assign gives a try its part of the plan, before its loop begins. On rank 0's node of
// an MPI job the others' fences meet in it.
func (t *try) assign(as *launcher.Assignment) {
	t.assignment = as
	t.stays.Store(as != nil && as.Spec.Stepped() && as.Spec.ReplacesOn(as.NodeRank))
	if as != nil && fenced(*as) && as.NodeRank == 0 {
		t.meeting = mpi.NewMeeting(as.NodeCount)
	}
}

// fenced tells whether ranks on several nodes wait for each other in fences of ours.
func fenced(as launcher.Assignment) bool {
	st := as.Spec.MainStage()
	return st != nil && st.MPI != nil && as.NodeCount > 1
}

// Fence takes what the ranks of another node have put before a fence, and waits for
// those of all nodes: this is rank 0's.
func (a *Agent) Fence(ctx context.Context, k launcher.Key, node int, f mpi.Fence) ([]launcher.Pair, error) {
	a.mu.Lock()
	t := a.tries[k]
	a.mu.Unlock()
	if t == nil || t.meeting == nil {
		return nil, fmt.Errorf("fence %d of job %s: %w: rank 0 of it is not here", f.Number, k.Job, launcher.ErrInvalid)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.ctx, cancel)()
	return t.meeting.Bring(ctx, node, f.Number, f.Pairs)
}

// carryFences takes each fence of this node's MPI ranks to the other nodes', and what
// these have put back, for as long as there is a shim. It holds nothing that cannot be
// asked for again: a fence that an agent dies in is its successor's.
func (t *try) carryFences(ctx context.Context, as launcher.Assignment) {
	for ctx.Err() == nil {
		err := t.carry(ctx, as)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			t.a.cfg.Logger.Warn("carry MPI's fences", "job", t.key.Job, "error", err)
			pause(ctx, again)
		}
	}
}

func (t *try) carry(ctx context.Context, as launcher.Assignment) error {
	client, err := shim.Attach(ctx, t.dir)
	if err == nil && t.meeting != nil {
		var last mpi.Fence
		if last, err = client.LastFence(ctx); err == nil && last.Done {
			t.meeting.Stored(last) // some node may not have had the answer from our predecessor
		}
	}
	for err == nil {
		var f mpi.Fence
		if f, err = client.Fence(ctx); err != nil {
			break
		}
		done := mpi.Fence{Number: f.Number, Done: true}
		if t.meeting != nil {
			done.Pairs, err = t.meeting.Bring(ctx, 0, f.Number, f.Pairs)
		} else {
			done.Pairs, err = t.a.cfg.AskHead(ctx, as, f)
		}
		if err == nil {
			err = client.PassFence(ctx, done)
		}
		if err == nil && t.meeting != nil {
			t.meeting.Stored(done)
		}
	}
	if errors.Is(err, shim.ErrGone) || errors.Is(err, shim.ErrEnded) {
		return nil // attend tells of that
	}
	return err
}
