package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/agent"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// logs merges the output of a job's ranks, pulled straight from each node that
// has some. Leaders play no part in it once the plan is known.
func (n *node) logs(ctx context.Context, c wire.Caller, r wire.LogsRequest, send func(wire.LogChunk) error) error {
	job, err := n.findJob(ctx, c, r.Job)
	if err == nil {
		job, err = n.awaitGeneration(ctx, job, r.Generation)
	}
	if err != nil {
		return err
	}
	for _, rank := range r.Ranks {
		if rank < 0 || rank >= job.Plan.World {
			return fmt.Errorf("job %s has no rank %d: its ranks are 0 to %d: %w", job.Spec.ID, rank, job.Plan.World-1, launcher.ErrInvalid)
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	chunks := make(chan wire.LogChunk)
	pulls, pctx := errgroup.WithContext(ctx)
	for _, p := range job.Plan.Nodes {
		ranks := ranksOf(p, r.Ranks)
		if len(ranks) == 0 {
			continue
		}
		req := wire.NodeLogsRequest{Key: job.Key(), Follow: r.Follow, Ranks: ranks, Cursors: r.Cursors}
		pulls.Go(func() error { return n.pull(pctx, p, req, chunks) })
	}
	g.Go(func() error {
		defer close(chunks)
		return pulls.Wait()
	})
	g.Go(func() error {
		for chunk := range chunks {
			if err := send(chunk); err != nil {
				return err
			}
		}
		return nil
	})
	return g.Wait()
}

// awaitGeneration waits until this node's copy of the record has a generation
// that its leader has told of.
func (n *node) awaitGeneration(ctx context.Context, job rendezvous.Job, gen launcher.Generation) (rendezvous.Job, error) {
	for job.Plan.Generation < gen && job.Outcome == nil {
		changed := n.record.Changed()
		if now, ok := n.record.Job(job.Spec.ID); ok {
			job = now
		}
		if job.Plan.Generation >= gen {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return job, ctx.Err()
		}
	}
	return job, nil
}

// findJob looks in this node's copy of the record, which is enough for a plan
// that does not change; then asks the leader.
func (n *node) findJob(ctx context.Context, c wire.Caller, text string) (rendezvous.Job, error) {
	job, err := n.record.Find(text)
	if err == nil || n.leading.Load() != nil {
		return job, err
	}
	all, askErr := n.jobs(ctx, c, wire.Empty{})
	if askErr != nil {
		return rendezvous.Job{}, askErr
	}
	for _, j := range slices.Backward(all.Jobs) {
		if string(j.Spec.ID) == text || j.Spec.Name == text {
			return j.Job, nil
		}
	}
	return rendezvous.Job{}, err
}

func ranksOf(p rendezvous.Place, wanted []int) []int {
	var out []int
	for r := p.FirstRank; r < p.FirstRank+p.Ranks; r++ {
		if len(wanted) == 0 || slices.Contains(wanted, r) {
			out = append(out, r)
		}
	}
	return out
}

// pull reads one node's part. Following, it goes on by offset when the node's
// agent comes back; a node that stays away is named.
func (n *node) pull(ctx context.Context, p rendezvous.Place, req wire.NodeLogsRequest, out chan<- wire.LogChunk) error {
	at := map[launcher.Cursor]int64{}
	for _, c := range req.Cursors {
		at[launcher.Cursor{Rank: c.Rank, Stream: c.Stream}] = c.Offset
	}
	deliver := func(c wire.LogChunk) error {
		c.Host = p.Host
		c.Data = slices.Clone(c.Data) // the reader's buffer is used again
		select {
		case out <- c:
			at[launcher.Cursor{Rank: c.Rank, Stream: c.Stream}] = c.Offset + int64(len(c.Data))
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	named := false
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := n.pullOnce(ctx, p.Node, req, func(c wire.LogChunk) error {
			wait = 100 * time.Millisecond
			return deliver(c)
		})
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if !errors.Is(err, wire.ErrUnreachable) && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("read output on %s: %w", p.Host, err)
		}
		if !named {
			named = true
			note := p.Host + " does not answer; its ranks' output is missing"
			if req.Follow {
				note = p.Host + " does not answer; its ranks' output goes on when it does"
			}
			select {
			case out <- wire.LogChunk{Rank: p.FirstRank, Host: p.Host, Note: note}:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if job, ok := n.record.Job(req.Key.Job); !req.Follow || ok && job.Outcome != nil {
			return nil
		}
		req.Cursors = nil
		for c, offset := range at {
			c.Offset = offset
			req.Cursors = append(req.Cursors, c)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (n *node) pullOnce(ctx context.Context, id launcher.NodeID, req wire.NodeLogsRequest, fn func(wire.LogChunk) error) error {
	if id == n.m.Node {
		return n.agent.Logs(ctx, agent.LogsRequest{Key: req.Key, Ranks: req.Ranks, Follow: req.Follow, Cursors: req.Cursors}, fn)
	}
	return n.peers.client(id).NodeLogs(ctx, req, fn)
}
