package models

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	// askWithin bounds one node's answer to an order.
	askWithin = 10 * time.Second
	// awayFor is how long a node that does not answer is waited for once all others have ended.
	awayFor = 30 * time.Second
)

// pull finds out what is to be fetched, gives each node its order, and tells how far they are. They go on without it.
func (m *Models) pull(ctx context.Context, c wire.Caller, r wire.ModelPullRequest,
	send func(wire.ModelProgress) error) error {
	repo, err := r.Cached()
	if err == nil {
		err = r.ID.Validate()
	}
	who := ""
	if err == nil {
		who, err = c.RunsAs(r.User)
	}
	if err == nil && (r.Limit < 0 || r.Nodes < 0) {
		err = fmt.Errorf("limit %d, nodes %d: %w: want 0 or more", r.Limit, r.Nodes, launcher.ErrInvalid)
	}
	if err != nil {
		return err
	}
	st, err := m.cfg.Everyone.Status(ctx, c, wire.StatusRequest{})
	if err != nil {
		return err
	}
	ask := wire.ModelsRequest{ModelRepo: r.ModelRepo, User: who}
	have, err := wire.Models.Ask(ctx, m.cfg.Everyone, c, ask, m.list)
	if err != nil {
		return err
	}
	found, begun := m.begunBefore(ctx, r, repo, have)
	if !begun {
		found, err = m.resolve(ctx, c, r, repo, st.Nodes, have, send)
		// The Hub may have taken its time: others may have begun it meanwhile.
		if again, aerr := wire.Models.Ask(ctx, m.cfg.Everyone, c, ask, m.list); err == nil && aerr == nil {
			have = again
		}
	}
	if err != nil {
		return fmt.Errorf("pull %s: %w", r.Name, err)
	}
	begun = begun || r.Again // by all, and ended, as far as this node sees
	held := found.held(have)
	if begun {
		goesOn(r.ID, st.Nodes, have, held)
	}
	to, out, err := choose(st.Nodes, r, m.cfg.Self, held)
	if err != nil {
		return fmt.Errorf("pull %s: %w", r.Name, err)
	}
	nodes := inOrder(to, cmp.Or(found.by, m.cfg.Self), held)
	order := wire.ModelOrder{ID: r.ID, User: c.User.Name, For: who, Restricted: found.restricted && !rootsWord(c, r),
		Manifest: found.manifest, Outside: found.offline == "", Token: r.Token, Limit: r.Limit,
		OwnCache: r.OwnCache, OwnDir: r.OwnDir, Chain: found.chain(have, nodes)}
	for _, try := range []bool{true, false} {
		if begun {
			break
		}
		if err := m.give(ctx, c, nodes, st.Nodes, wire.NodeModelRequest{Order: order, Try: try}); err != nil {
			return fmt.Errorf("pull %s: %w", r.Name, err)
		}
	}
	plan := found.plan()
	if order.Restricted {
		plan.For = who
	}
	for _, n := range nodes {
		plan.Hosts = append(plan.Hosts, n.Host)
	}
	if err := send(wire.ModelProgress{Plan: plan}); err != nil {
		return err
	}
	for _, n := range out {
		p := wire.ModelProgress{Host: n.Host, State: wire.ModelAway, Error: "it is away, and was given no order"}
		if err := send(p); err != nil {
			return err
		}
	}
	what := wire.NodeModelWatch{ID: r.ID, Repo: repo, Commit: found.manifest.Commit}
	return m.watchAll(ctx, nodes, what, send)
}

// goesOn is for a pull that was begun before: who is away has its order and is waited for, and who fetches it comes
// before all others.
func goesOn(id launcher.JobID, nodes []wire.NodeStatus, have []wire.NodeModels, held map[launcher.NodeID]int64) {
	for i := range nodes {
		nodes[i].State = ""
	}
	for _, n := range have {
		if slices.ContainsFunc(n.Held, func(h wire.HeldModel) bool { return h.Pulling == id }) {
			held[n.ID] = math.MaxInt64
		}
	}
}

// begunBefore finds what a pull fetches that is asked for again: it is watched, by another agent perhaps, and no node
// gets another order. The Hub, which may be away by now, is not asked.
func (m *Models) begunBefore(ctx context.Context, r wire.ModelPullRequest, repo modelcache.Repo,
	have []wire.NodeModels) (f finding, is bool) {
	for _, n := range have {
		for _, h := range n.Held {
			if h.Pulling != r.ID {
				continue
			}
			ask := wire.NodeModelWatch{ID: r.ID, Repo: repo, Commit: h.Comes}
			x, err := m.manifestOf(ctx, n.ID, ask)
			if err = errors.Join(err, x.Check(), sameCommit(x, ask)); err == nil {
				return finding{manifest: x}, true
			}
		}
	}
	return f, false
}

func isAway(n wire.NodeStatus) bool { return n.State == "away" || n.State == "joined" }

// choose gives the nodes that are to have it, and those that would be, but are away.
func choose(nodes []wire.NodeStatus, r wire.ModelPullRequest, self launcher.NodeID,
	have map[launcher.NodeID]int64) (to, away []wire.NodeStatus, err error) {
	switch {
	case len(r.On) > 0:
		return named(nodes, r.On)
	case r.All:
		for _, n := range nodes {
			switch {
			case n.Witness:
			case isAway(n):
				away = append(away, n)
			default:
				to = append(to, n)
			}
		}
	case r.Nodes > 0:
		for _, n := range nodes {
			if !n.Witness && !isAway(n) {
				to = append(to, n)
			}
		}
		slices.SortStableFunc(to, func(a, b wire.NodeStatus) int {
			return cmp.Or(cmp.Compare(have[b.ID], have[a.ID]), cmp.Compare(first(b.ID == self), first(a.ID == self)))
		})
		if len(to) < r.Nodes {
			return nil, nil, fmt.Errorf("--nodes %d: %w: %d answer", r.Nodes, rendezvous.ErrCannotPlace, len(to))
		}
		to = to[:r.Nodes]
	default:
		for _, n := range nodes {
			if n.ID == self {
				to = append(to, n)
			}
		}
	}
	if len(to) == 0 {
		return nil, nil, fmt.Errorf("%w: no machine is there for it", rendezvous.ErrCannotPlace)
	}
	return to, away, nil
}

func first(is bool) int {
	if is {
		return 1
	}
	return 0
}

// named gives nodes by their hosts; all must be there.
func named(nodes []wire.NodeStatus, hosts []string) (to, _ []wire.NodeStatus, err error) {
	for _, host := range hosts {
		i := slices.IndexFunc(nodes, func(n wire.NodeStatus) bool { return n.Host == host })
		switch {
		case i < 0:
			return nil, nil, fmt.Errorf("--on %s: %w: `sparkrun status` lists them", host, rendezvous.ErrNoNode)
		case isAway(nodes[i]):
			return nil, nil, fmt.Errorf("--on %s: %w: it is away", host, wire.ErrConflict)
		case !slices.ContainsFunc(to, func(n wire.NodeStatus) bool { return n.Host == host }):
			to = append(to, nodes[i])
		}
	}
	return to, nil, nil
}

// give gives all nodes the order. What any refuses is said of each that does.
func (m *Models) give(ctx context.Context, c wire.Caller, nodes, all []wire.NodeStatus,
	r wire.NodeModelRequest) error {
	errs := make([]error, len(nodes))
	var given sync.WaitGroup
	for i, n := range nodes {
		given.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, askWithin)
			defer cancel()
			var err error
			r := r
			r.Order.Chain = seenBy(n.ID, r.Order.Chain, all)
			if n.ID == m.cfg.Self {
				_, err = m.take(ctx, c, r)
			} else {
				err = wire.NodeModel.Call(ctx, m.cfg.Dial.Client(n.ID), r)
			}
			if err != nil {
				errs[i] = fmt.Errorf("%s: %w", n.Host, err)
			}
		})
	}
	given.Wait()
	refused := slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(refused) == 0 {
		return nil
	}
	texts := make([]string, len(refused))
	for i, err := range refused {
		texts[i] = err.Error()
	}
	if r.Try {
		return fmt.Errorf("%s; nothing was begun: %w", strings.Join(texts, "; "), code(refused[0]))
	}
	return fmt.Errorf("%s: %w", strings.Join(texts, "; "), code(refused[0]))
}

// code is the sentinel that an error carries across the wire.
func code(err error) error {
	for _, is := range []error{launcher.ErrInvalid, wire.ErrDenied, wire.ErrUnreachable, wire.ErrOlder} {
		if errors.Is(err, is) {
			return is
		}
	}
	return wire.ErrConflict
}

// watchAll tells of all nodes until each has ended, or is away for long while all others have.
func (m *Models) watchAll(ctx context.Context, nodes []wire.NodeStatus, w wire.NodeModelWatch,
	send func(wire.ModelProgress) error) error {
	ctx, cancel := context.WithCancel(ctx)
	news := make(chan wire.ModelProgress)
	var watching sync.WaitGroup
	for _, n := range nodes {
		watching.Go(func() { m.watch(ctx, n, w, news) })
	}
	defer watching.Wait()
	defer cancel()
	last := map[string]wire.ModelProgress{}
	var silent *time.Timer // while all that have not ended are away
	var over <-chan time.Time
	for {
		select {
		case p := <-news:
			last[p.Host] = p
			if err := send(p); err != nil {
				return err
			}
		case <-over:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		ended, away := 0, 0
		for _, p := range last {
			switch {
			case p.Ended():
				ended++
			case p.State == wire.ModelAway:
				away++
			}
		}
		switch {
		case ended == len(nodes):
			return nil
		case ended+away < len(nodes):
			if silent != nil {
				silent.Stop()
			}
			silent, over = nil, nil
		case silent == nil:
			silent = time.NewTimer(awayFor)
			defer silent.Stop()
			over = silent.C
		}
	}
}

// watch follows one node; where it does not answer it is asked again.
func (m *Models) watch(ctx context.Context, n wire.NodeStatus, w wire.NodeModelWatch, news chan<- wire.ModelProgress) {
	var last wire.ModelProgress
	tell := func(p wire.ModelProgress) error {
		p.Host, last = n.Host, p
		select {
		case news <- p:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for {
		var err error
		if n.ID == m.cfg.Self {
			err = m.progress(ctx, wire.Caller{Node: m.cfg.Self}, w, tell)
		} else {
			err = wire.NodeModelProgress.Call(ctx, m.cfg.Dial.Client(n.ID), w, tell)
		}
		if ctx.Err() != nil || last.Ended() {
			return
		}
		away := wire.ModelProgress{State: wire.ModelAway, Have: last.Have, Bytes: last.Bytes}
		if err != nil {
			away.Error = err.Error()
		}
		if last.State != wire.ModelAway && tell(away) != nil || sleep(ctx, time.Second) != nil {
			return
		}
	}
}
