package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// meeting is where the barriers of an MPI job meet, on rank 0's node.
type meeting struct {
	*mpi.Meeting
	nodes []launcher.NodeID // of the job; the index is the node's number in it
}

// assign gives an attempt its part of the plan. Agent.mu guards it, for Barrier reads the
// meeting.
func (t *attempt) assign(as *launcher.Assignment) {
	t.assignment = as
	t.serves.Store(as != nil && as.Spec.Service != nil)
	t.restartable.Store(as != nil && as.Spec.Stepped() && as.Spec.ReplacesOn(as.NodeRank))
	if as != nil && meetsInBarriers(*as) && as.NodeRank == 0 {
		t.meeting = &meeting{mpi.NewMeeting(as.NodeCount), as.Nodes}
	}
}

// meetsInBarriers reports whether ranks of several nodes wait for each other in our
// barriers.
func meetsInBarriers(as launcher.Assignment) bool {
	st := as.Spec.MainStage()
	return st != nil && st.MPI != nil && as.NodeCount > 1
}

// Barrier takes what the ranks of another node have put before a barrier, and waits for the
// ranks of all nodes; this is rank 0's node. from must be node number node of the job: a
// node speaks for its own ranks only.
func (a *Agent) Barrier(ctx context.Context, from launcher.NodeID, k launcher.Key, node int,
	f mpi.Barrier) ([]launcher.Pair, error) {
	a.mu.Lock()
	var m *meeting
	if t := a.attempts[k]; t != nil {
		m = t.meeting
	}
	a.mu.Unlock()
	switch {
	case m == nil:
		return nil, fmt.Errorf("barrier %d of job %s: %w: its rank 0 is not here", f.Number, k.Job, launcher.ErrInvalid)
	case node < 1 || node >= len(m.nodes) || m.nodes[node] != from:
		return nil, fmt.Errorf("barrier %d of job %s: %w: its node %d is not %s", f.Number, k.Job,
			launcher.ErrInvalid, node, from)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.ctx, cancel)()
	return m.Bring(ctx, node, f.Number, f.Pairs)
}

// barrierPatience is how long a barrier may fail before the user is warned. An agent that
// restarts, as in an upgrade, is back by then.
const barrierPatience = 10 * time.Second

// carryBarriers passes each barrier of this node's MPI ranks to the other nodes, and brings
// back what their ranks have put, for as long as there is a shim. It keeps nothing that
// cannot be asked for again: if the agent dies in a barrier, the next agent process carries
// it. A barrier that cannot be sent is tried again, for the other node may come back; the
// leader decides whether that node is lost. A barrier that can never be passed ends the
// job's ranks here.
func (t *attempt) carryBarriers(ctx context.Context, as launcher.Assignment) {
	var since time.Time // when the current run of failures began
	told := false
	for ctx.Err() == nil {
		passed, err := t.carry(ctx, as)
		if passed {
			since, told = time.Time{}, false
		}
		switch {
		case err == nil || ctx.Err() != nil:
			return
		case errors.Is(err, launcher.ErrNoBarrier):
			t.endStranded(ctx, err)
			return
		case since.IsZero():
			since = time.Now()
		case !told && time.Since(since) > barrierPatience:
			t.a.emitPreparing(t.key, "cannot bring the MPI barrier that its ranks wait in to rank 0's machine: "+err.Error())
			told = true
		}
		t.a.cfg.Logger.Warn("carry MPI's barriers", "job", t.key.Job, "error", err)
		pause(ctx, again)
	}
}

// carry passes barriers until one fails; passed reports whether any was. nil: no more will
// come.
func (t *attempt) carry(ctx context.Context, as launcher.Assignment) (passed bool, err error) {
	client, err := shim.Attach(ctx, t.dir)
	if err == nil && t.meeting != nil {
		var last mpi.Barrier
		if last, err = client.LastBarrier(ctx); err == nil && last.Done {
			t.meeting.Stored(last) // a node may not have got the answer from the agent process before this one
		}
	}
	for err == nil {
		var f mpi.Barrier
		if f, err = client.Barrier(ctx); err != nil {
			break
		}
		done := mpi.Barrier{Number: f.Number, Done: true}
		if t.meeting != nil {
			done.Pairs, err = t.meeting.Bring(ctx, 0, f.Number, f.Pairs)
		} else {
			done.Pairs, err = t.a.cfg.AskHead(ctx, as, f)
		}
		if err == nil {
			err = client.PassBarrier(ctx, done)
		}
		if err == nil && t.meeting != nil {
			t.meeting.Stored(done)
		}
		passed = passed || err == nil
	}
	if errors.Is(err, shim.ErrGone) || errors.Is(err, shim.ErrEnded) {
		return passed, nil // attend reports that
	}
	return passed, err
}

// endStranded ends this node's ranks, which would wait in that barrier for ever. Each of the
// job's nodes finds that out by itself, so that no ranks are left on any of them.
func (t *attempt) endStranded(ctx context.Context, why error) {
	t.a.cfg.Logger.Error("end ranks", "job", t.key.Job, "reason", why.Error())
	for ctx.Err() == nil {
		client, err := shim.Attach(ctx, t.dir)
		if err == nil {
			err = client.EndFor(ctx, why.Error())
		}
		if err == nil || errors.Is(err, shim.ErrGone) {
			return
		}
		t.a.cfg.Logger.Warn("end ranks", "job", t.key.Job, "error", err)
		pause(ctx, again)
	}
}
