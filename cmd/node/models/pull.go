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
	"github.com/sparkrun/sparkrun/launcher/filesync/hub"
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
	}
	if err != nil {
		return fmt.Errorf("pull %s: %w", r.Name, err)
	}
	// The Hub may have taken its time: others have begun it meanwhile perhaps.
	if again, err := wire.Models.Ask(ctx, m.cfg.Everyone, c, ask, m.list); err == nil {
		have = again
	}
	begun = begun || r.Again // by all, and ended, as far as this node sees
	held := found.held(have)
	if begun {
		for i := range st.Nodes { // who is away has its order, and is waited for
			st.Nodes[i].State = ""
		}
		for _, n := range have {
			if slices.ContainsFunc(n.Held, func(h wire.HeldModel) bool { return h.Pulling == r.ID }) {
				held[n.ID] = math.MaxInt64
			}
		}
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

// finding is what is to be fetched.
type finding struct {
	manifest modelcache.Manifest
	why      map[string]int  // left out, by the reason
	offline  string          // why the Hub was not asked
	by       launcher.NodeID // who has a way to it
	// restricted: only some may have it, the user for whom it is fetched among them.
	restricted bool
}

// rootsWord: whoever pulls as root, and for nobody else, decides that every user may read it.
func rootsWord(c wire.Caller, r wire.ModelPullRequest) bool { return c.User.UID == 0 && r.User == "" }

func (f finding) plan() *wire.ModelPlan {
	return &wire.ModelPlan{Repo: f.manifest.Repo, Commit: f.manifest.Commit, Files: len(f.manifest.Files),
		Bytes: f.manifest.Bytes(), Left: f.why, Offline: f.offline, Restricted: f.restricted}
}

// Both are more than any model's bytes: a node that has all of it ranks first, then one that fetches it already.
const (
	hasAll  = 1 << 62
	fetches = 1 << 61
)

// held is how much of it each node has, or will have.
func (f finding) held(nodes []wire.NodeModels) map[launcher.NodeID]int64 {
	out := map[launcher.NodeID]int64{}
	for _, n := range nodes {
		c := commitOf(n, func(c modelcache.Commit) bool { return c.Commit == f.manifest.Commit })
		switch {
		case f.whole(n):
			out[n.ID] = hasAll
		case f.comesTo(n):
			out[n.ID] = fetches
		case c != nil:
			out[n.ID] = c.Have
		}
	}
	return out
}

// chain is that of these nodes. Before them come nodes that need none: who has all of it, then who fetches it already.
func (f finding) chain(have []wire.NodeModels, nodes []wire.NodeStatus) (ids []launcher.NodeID) {
	for _, is := range []func(wire.NodeModels) bool{
		f.whole,
		func(n wire.NodeModels) bool { return f.comesTo(n) && !f.whole(n) },
	} {
		for _, n := range have {
			if is(n) && !has(nodes, n.ID) {
				ids = append(ids, n.ID)
			}
		}
	}
	for _, n := range nodes {
		ids = append(ids, n.ID)
	}
	return ids
}

// whole tells whether a node has nothing left to fetch.
func (f finding) whole(n wire.NodeModels) bool {
	c := commitOf(n, func(c modelcache.Commit) bool { return c.Commit == f.manifest.Commit })
	return c != nil && c.Whole() && c.Files >= len(f.manifest.Files)
}

// comesTo tells whether a node fetches it at this moment.
func (f finding) comesTo(n wire.NodeModels) bool {
	return slices.ContainsFunc(n.Held, func(h wire.HeldModel) bool {
		return h.Pulling != "" && h.Comes == f.manifest.Commit
	})
}

// errAdded is why the Hub is not asked for what it cannot know.
var errAdded = errors.New("it was added here, by model add")

// wholeAt is the commit that a revision stands for, where a node has it whole.
func wholeAt(n wire.NodeModels, revision string) *modelcache.Commit {
	return commitOf(n, func(c modelcache.Commit) bool {
		return c.Whole() && (c.Commit == revision || slices.Contains(c.Refs, revision))
	})
}

func commitOf(n wire.NodeModels, is func(modelcache.Commit) bool) *modelcache.Commit {
	for _, h := range n.Held {
		for i := range h.Commits {
			if is(h.Commits[i]) {
				return &h.Commits[i]
			}
		}
	}
	return nil
}

// resolve asks the Hub; where that cannot be reached, or has no such repository, what members have counts. What was
// added here comes before what the Hub has under the same name.
func (m *Models) resolve(ctx context.Context, c wire.Caller, r wire.ModelPullRequest, repo modelcache.Repo,
	nodes []wire.NodeStatus, have []wire.NodeModels, send func(wire.ModelProgress) error) (finding, error) {
	to, _, err := choose(nodes, r, m.cfg.Self, nil)
	if err != nil && !r.Again { // then they may be away
		return finding{}, err
	}
	added := slices.DeleteFunc(slices.Clone(have), func(n wire.NodeModels) bool {
		k := wholeAt(n, cmp.Or(r.Revision, "main"))
		return k == nil || !k.Local
	})
	if len(added) > 0 {
		return m.among(ctx, c, r, repo, added, errAdded)
	}
	ask := wire.NodeModelAskRequest{ID: r.ID, User: c.User.Name, Repo: repo, Revision: r.Revision, Token: r.Token,
		Brief: r.Brief}
	for _, n := range have {
		ask.Brief = ask.Brief || wholeAt(n, cmp.Or(r.Revision, "main")) != nil
	}
	rev, by, err := m.revision(ctx, ask, nodes, to, func() error {
		return send(wire.ModelProgress{Asks: cmp.Or(m.cfg.Endpoint, hub.Endpoint)})
	})
	switch {
	case ctx.Err() != nil, errors.Is(err, wire.ErrDenied):
		return finding{}, err
	case err != nil:
		return m.among(ctx, c, r, repo, have, err)
	case rev.Restricted && !rev.Accepted && !rootsWord(c, r):
		return finding{}, fmt.Errorf("%w: it is gated or private, and %s does not say that this token may have it: root "+
			"may decide that every user of the machines reads it (sudo)", wire.ErrDenied, cmp.Or(m.cfg.Endpoint, hub.Endpoint))
	}
	take, left := hub.Choice{Include: r.Include, Exclude: r.Exclude, Data: repo.Type == modelcache.Dataset}.Choose(rev.Files)
	f := finding{by: by, why: map[string]int{}, restricted: rev.Restricted,
		manifest: modelcache.Manifest{Repo: repo, Commit: rev.Commit}}
	if rev.Asked != rev.Commit {
		f.manifest.Ref = cmp.Or(rev.Asked, "main")
	}
	for _, x := range take {
		f.manifest.Files = append(f.manifest.Files, modelcache.File(x))
	}
	for _, x := range left {
		f.manifest.Left = append(f.manifest.Left, modelcache.File(x.File))
		f.manifest.Partial = f.manifest.Partial || x.Why == hub.WhyPattern
		f.why[x.Why]++
	}
	if len(take) == 0 {
		return f, fmt.Errorf("%w: none of its %d files is wanted: --include and --exclude say which are",
			launcher.ErrInvalid, len(left))
	}
	return f, f.manifest.Check()
}

// among finds the commit among members: one that has it whole says which files it has.
func (m *Models) among(ctx context.Context, c wire.Caller, r wire.ModelPullRequest, repo modelcache.Repo,
	have []wire.NodeModels, why error) (finding, error) {
	ref, denied := cmp.Or(r.Revision, "main"), ""
	for _, n := range have {
		k := wholeAt(n, ref)
		if k == nil {
			continue
		}
		restricted := slices.ContainsFunc(n.Held, func(h wire.HeldModel) bool { return h.Restricted })
		if slices.ContainsFunc(n.Held, func(h wire.HeldModel) bool { return h.Denied }) && !rootsWord(c, r) {
			denied = n.Host
			continue
		}
		ask := wire.NodeModelWatch{ID: r.ID, Repo: repo, Commit: k.Commit}
		x, err := m.manifestOf(ctx, n.ID, ask)
		if err != nil {
			why = errors.Join(why, fmt.Errorf("%s has it: %w", n.Host, err))
			continue
		}
		if err := errors.Join(x.Check(), sameCommit(x, ask)); err != nil {
			return finding{}, err
		}
		if x.Ref = ref; ref == k.Commit {
			x.Ref = ""
		}
		return finding{manifest: x, offline: why.Error(), restricted: restricted}, nil
	}
	if denied != "" {
		return finding{}, fmt.Errorf("%w: %s keeps it for those whose token the Hub has accepted: --secret HF_TOKEN gives "+
			"this shell's; and: %w", wire.ErrDenied, denied, why)
	}
	if errors.Is(why, wire.ErrNoModel) {
		return finding{}, fmt.Errorf("no machine has it whole, and: %w", why)
	}
	return finding{}, fmt.Errorf("%w: no machine has it whole, and %w", wire.ErrNoModel, why)
}

func sameCommit(x modelcache.Manifest, asked wire.NodeModelWatch) error {
	if x.Repo != asked.Repo || x.Commit != asked.Commit {
		return fmt.Errorf("%w: a member tells of %s@%s", launcher.ErrInvalid, x.Repo, x.Commit)
	}
	return nil
}

func (m *Models) manifestOf(ctx context.Context, id launcher.NodeID,
	r wire.NodeModelWatch) (modelcache.Manifest, error) {
	if id == m.cfg.Self {
		return m.manifest(ctx, wire.Caller{Node: m.cfg.Self}, r)
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	return wire.NodeModelManifest.Call(ctx, m.cfg.Dial.Client(id), r)
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
