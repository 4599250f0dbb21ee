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

// meeting is where an MPI job's barriers meet, on rank 0's node.
type meeting struct {
	*mpi.Meeting
	nodes []launcher.NodeID // of the job, by their number in it
}

// assign gives an attempt its part of the plan; Agent.mu guards it, for who asks for the meeting.
func (t *attempt) assign(as *launcher.Assignment) {
	t.assignment = as
	t.stays.Store(as != nil && as.Spec.Stepped() && as.Spec.ReplacesOn(as.NodeRank))
	if as != nil && meetsInBarriers(*as) && as.NodeRank == 0 {
		t.meeting = &meeting{mpi.NewMeeting(as.NodeCount), as.Nodes}
	}
}

// meetsInBarriers tells whether ranks on several nodes wait for each other in barriers of ours.
func meetsInBarriers(as launcher.Assignment) bool {
	st := as.Spec.MainStage()
	return st != nil && st.MPI != nil && as.NodeCount > 1
}

// Barrier takes what the ranks of another node have put before a barrier, and waits for
// those of all nodes: this is rank 0's. from has to be node number node of the job: each
// speaks for its own ranks.
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
		return nil, fmt.Errorf("barrier %d of job %s: %w: rank 0 of it is not here", f.Number, k.Job, launcher.ErrInvalid)
	case node < 1 || node >= len(m.nodes) || m.nodes[node] != from:
		return nil, fmt.Errorf("barrier %d of job %s: %w: node %d of it is not %s", f.Number, k.Job,
			launcher.ErrInvalid, node, from)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.ctx, cancel)()
	return m.Bring(ctx, node, f.Number, f.Pairs)
}

// barrierPatience is how long a barrier may fail before the job is told. An agent that is
// started anew, as in an upgrade, is back by then.
const barrierPatience = 10 * time.Second

// carryBarriers takes each barrier of this node's MPI ranks to the other nodes', and what
// these have put back, for as long as there is a shim. It holds nothing that cannot be
// asked for again: a barrier that an agent dies in is its successor's. One that cannot be
// brought is tried again, for the other node may come back, and whether that one is lost is
// the leader's to say; one that can never be passed ends the job's ranks here.
func (t *attempt) carryBarriers(ctx context.Context, as launcher.Assignment) {
	var since time.Time // the first of the failures in a row
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
			t.forsake(ctx, err)
			return
		case since.IsZero():
			since = time.Now()
		case !told && time.Since(since) > barrierPatience:
			t.a.tellPreparing(t.key, "cannot bring the MPI barrier that its ranks wait in to rank 0's machine: "+err.Error())
			told = true
		}
		t.a.cfg.Logger.Warn("carry MPI's barriers", "job", t.key.Job, "error", err)
		pause(ctx, again)
	}
}

// carry passes barriers until that fails; passed tells whether one was. nil: there will be none.
func (t *attempt) carry(ctx context.Context, as launcher.Assignment) (passed bool, err error) {
	client, err := shim.Attach(ctx, t.dir)
	if err == nil && t.meeting != nil {
		var last mpi.Barrier
		if last, err = client.LastBarrier(ctx); err == nil && last.Done {
			t.meeting.Stored(last) // some node may not have had the answer from our predecessor
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
		return passed, nil // attend tells of that
	}
	return passed, err
}

// forsake ends this node's ranks, which would wait in that barrier for ever. Each of the
// job's nodes finds that out, and so no other node's are left.
func (t *attempt) forsake(ctx context.Context, why error) {
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
