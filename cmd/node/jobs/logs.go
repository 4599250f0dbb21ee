package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/logs"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Logs merges the output of a job's ranks, pulled directly from each node that has some.
// It needs no leader once the plan is known.
func (k *Ranks) Logs(ctx context.Context, c wire.Caller, r wire.LogsRequest, send func(wire.LogChunk) error) error {
	job, aged, err := k.findJob(ctx, c, r.Job)
	if err == nil && aged != "" {
		err = send(wire.LogChunk{Job: job.Spec.ID, Host: k.cfg.Host, Note: aged})
	}
	if err == nil {
		job, err = k.awaitGeneration(ctx, c, job, r)
	}
	if err != nil {
		return err
	}
	sources, err := k.sources(job, r)
	if err != nil {
		return err
	}
	pulls, pctx := errgroup.WithContext(ctx)
	key := launcher.Key{Job: job.Spec.ID, Generation: cmp.Or(r.Generation, job.Plan.Generation)}
	// An attempt that is over writes nothing more, so no node needs to wait for output.
	follow := r.Follow && job.Outcome == nil && key == job.Key()
	var turn sync.Mutex // each chunk's data is its reader's, and so sent before the reader goes on
	for _, s := range sources {
		req := wire.NodeLogsRequest{
			Key: key, Follow: follow, Ranks: s.ranks, Cursors: r.Cursors, From: r.From, Times: r.Times,
		}
		pulls.Go(func() error {
			return k.pull(pctx, s, req, func(c wire.LogChunk) error {
				turn.Lock()
				defer turn.Unlock()
				if err := pctx.Err(); err != nil {
					return err
				}
				return send(c)
			})
		})
	}
	return pulls.Wait()
}

// awaitGeneration waits until this node's copy of the record has a generation that its
// leader has announced; a follower of a queued job waits for the first one. A generation
// that the leader does not know either is refused.
func (k *Ranks) awaitGeneration(
	ctx context.Context, c wire.Caller, job rendezvous.Job, r wire.LogsRequest,
) (rendezvous.Job, error) {
	gen, asked := r.Generation, r.Generation == 0
	if r.Follow {
		gen = max(gen, 1)
	}
	for {
		changed := k.cfg.Record.Changed()
		if now, ok := k.cfg.Record.Job(job.Spec.ID); ok {
			job = now
		}
		if job.Plan.Generation >= gen || job.Outcome != nil {
			return job, nil
		}
		if !asked {
			if err := k.isToCome(ctx, c, job.Spec.ID, r); err != nil {
				return job, err
			}
			asked = true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return job, ctx.Err()
		}
	}
}

// isToCome asks the leader whether its record has a generation that this node's copy
// lacks. Without a leader a follower assumes that it has.
func (k *Ranks) isToCome(ctx context.Context, c wire.Caller, id launcher.JobID, r wire.LogsRequest) error {
	all, err := k.All(ctx, c)
	if err != nil {
		return err
	}
	if all.Problem != "" && r.Follow {
		return nil
	}
	for _, j := range all.Jobs {
		if j.Spec.ID == id && j.Plan.Generation >= r.Generation {
			return nil
		}
	}
	return noGeneration(id, r.Generation)
}

func noGeneration(id launcher.JobID, gen launcher.Generation) error {
	return fmt.Errorf("job %s: generation %d: %w: none that is remembered: `sparkrun ps %[1]s` lists them",
		id, gen, launcher.ErrInvalid)
}

// source is one node's part of the requested output.
type source struct {
	node  launcher.NodeID // empty: it has left the cluster
	host  string
	ranks []int // empty: those that it has
}

// sources says which nodes have what is asked for. Of a past generation only the hosts
// are known: their folders tell which ranks.
func (k *Ranks) sources(job rendezvous.Job, r wire.LogsRequest) (sources []source, err error) {
	if gen := r.Generation; gen == 0 || gen == job.Plan.Generation {
		sources, err = placed(job, r.Ranks)
	} else {
		sources, err = k.pastSources(job, gen, r.Ranks)
	}
	if err != nil || len(r.Hosts) == 0 {
		return sources, err
	}
	for _, host := range r.Hosts {
		if !slices.ContainsFunc(job.Plan.Nodes, func(p rendezvous.Place) bool { return p.Host == host }) &&
			!slices.ContainsFunc(sources, func(s source) bool { return s.host == host }) {
			return nil, fmt.Errorf("job %s: host %s: %w: no rank of it is there: `sparkrun ps %[1]s` shows where it runs",
				job.Spec.ID, host, launcher.ErrInvalid)
		}
	}
	sources = slices.DeleteFunc(sources, func(s source) bool { return !slices.Contains(r.Hosts, s.host) })
	if len(sources) == 0 && len(r.Ranks) > 0 {
		return nil, fmt.Errorf("job %s: host %s: %w: these ranks are not there: `sparkrun ps %[1]s` shows where they are",
			job.Spec.ID, strings.Join(r.Hosts, ","), launcher.ErrInvalid)
	}
	return sources, nil
}

func noRank(job rendezvous.Job, rank int) error {
	if job.Plan.World == 0 {
		return notStarted(job.Spec.ID)
	}
	return fmt.Errorf("job %s: rank %d: %w: its ranks are 0 to %d",
		job.Spec.ID, rank, launcher.ErrInvalid, job.Plan.World-1)
}

func notStarted(id launcher.JobID) error {
	return fmt.Errorf("job %s has not started yet: `sparkrun ps %[1]s` tells what it waits for: %[2]w",
		id, wire.ErrNotYet)
}

func placed(job rendezvous.Job, wanted []int) (sources []source, err error) {
	for _, rank := range wanted {
		if rank < 0 || rank >= job.Plan.World {
			return nil, noRank(job, rank)
		}
	}
	for _, p := range job.Plan.Nodes {
		if ranks := ranksOf(p, wanted); len(ranks) > 0 {
			sources = append(sources, source{p.Node, p.Host, ranks})
		}
	}
	return sources, nil
}

func (k *Ranks) pastSources(job rendezvous.Job, gen launcher.Generation, wanted []int) (sources []source, err error) {
	i := slices.IndexFunc(job.Attempts, func(a rendezvous.Attempt) bool { return a.Generation == gen })
	if i < 0 {
		return nil, noGeneration(job.Spec.ID, gen)
	}
	members := k.cfg.Record.Nodes()
	for _, host := range job.Attempts[i].Hosts {
		s := source{host: host, ranks: wanted}
		for _, m := range members {
			if m.Host == host {
				s.node = m.ID
			}
		}
		sources = append(sources, s)
	}
	return sources, nil
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

// pull reads one node's part. When following, it continues at its offset once the node's
// agent is back; a node that stays away is named.
func (k *Ranks) pull(ctx context.Context, s source, req wire.NodeLogsRequest,
	send func(wire.LogChunk) error) error {
	at := map[launcher.Cursor]int64{}
	for _, c := range req.Cursors {
		at[launcher.Cursor{Rank: c.Rank, Stream: c.Stream}] = c.Offset
	}
	tell := func(c wire.LogChunk) error {
		c.Job, c.Host = req.Key.Job, s.host
		return send(c)
	}
	away := false
	back := func() error {
		if !away {
			return nil
		}
		away = false
		return tell(wire.LogChunk{Note: s.host + " answers again"})
	}
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := k.pullOnce(ctx, s.node, req, func(c wire.LogChunk) error {
			wait = 100 * time.Millisecond
			if err := back(); err != nil {
				return err
			}
			if c.Note != "" {
				c.Note = s.host + ": " + c.Note
			}
			if err := tell(c); err != nil {
				return err
			}
			if c.Stream != "" {
				at[launcher.Cursor{Rank: c.Rank, Stream: c.Stream}] = c.Offset + int64(len(c.Data))
			}
			return nil
		})
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			return back()
		case !errors.Is(err, wire.ErrUnreachable) && !errors.Is(err, context.Canceled):
			return fmt.Errorf("read output on %s: %w", s.host, err)
		}
		if !away {
			away = true
			note := s.host + " does not answer; its ranks' output is missing"
			if req.Follow {
				note = s.host + " does not answer; its ranks' output goes on when it does"
			}
			if err := tell(wire.LogChunk{Note: note, Away: true}); err != nil {
				return err
			}
		}
		job, ok := k.cfg.Record.Job(req.Key.Job)
		if !req.Follow || ok && (job.Outcome != nil || job.Plan.Generation != req.Key.Generation) {
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

func (k *Ranks) pullOnce(ctx context.Context, id launcher.NodeID, req wire.NodeLogsRequest,
	fn func(wire.LogChunk) error) error {
	switch id {
	case k.cfg.Self:
		return k.cfg.Agent.Logs(ctx, logsOf(req), fn)
	case "":
		return fmt.Errorf("%w: it has left the cluster", wire.ErrUnreachable)
	}
	return wire.NodeLogs.Call(ctx, k.cfg.Dial.Client(id), req, fn)
}

// NodeLogs gives this node's part.
func (k *Ranks) NodeLogs(ctx context.Context, _ wire.Caller, r wire.NodeLogsRequest,
	send func(wire.LogChunk) error) error {
	return k.cfg.Agent.Logs(ctx, logsOf(r), send)
}

// logsOf translates the call's request into the agent's.
func logsOf(r wire.NodeLogsRequest) logs.Request {
	return logs.Request{
		Key: r.Key, Ranks: r.Ranks, Follow: r.Follow, Cursors: r.Cursors, From: r.From, Times: r.Times,
	}
}
