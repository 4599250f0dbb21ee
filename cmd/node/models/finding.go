package models

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync/hub"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

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

// addedLast are the nodes that have the commit which was added last under a revision's name, or some of it.
func addedLast(nodes []wire.NodeModels, revision string) (out []wire.NodeModels) {
	var last modelcache.Commit
	for _, n := range nodes {
		c := commitOf(n, func(c modelcache.Commit) bool { return !c.Added.IsZero() && c.Named(revision) })
		switch {
		case c == nil:
		case c.Commit == last.Commit:
			out = append(out, n)
		case c.Added.After(last.Added):
			last, out = *c, []wire.NodeModels{n}
		}
	}
	return out
}

// wholeAt is the commit that a revision stands for, where a node has it whole.
func wholeAt(n wire.NodeModels, revision string) *modelcache.Commit {
	return commitOf(n, func(c modelcache.Commit) bool { return c.Whole() && c.Named(revision) })
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
	if added := addedLast(have, cmp.Or(r.Revision, "main")); len(added) > 0 {
		f, err := m.among(ctx, c, r, repo, added, errAdded)
		if errors.Is(err, wire.ErrNoModel) {
			err = fmt.Errorf("%w: add it again, or leave the name to the Hub: `sudo sparkrun model rm %s`", err, r.Name)
		}
		return f, err
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
