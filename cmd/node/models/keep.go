package models

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/launcher/login"
	"github.com/sparkrun/sparkrun/launcher/preflight"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// namedFiles is how many files are named that a commit lacks: all of a dataset's would be more than a message takes.
const namedFiles = 20

// list tells what this node has.
func (m *Models) list(ctx context.Context, _ wire.Caller, r wire.ModelsRequest) (wire.NodeModels, error) {
	n := wire.NodeModels{ID: m.cfg.Self, Host: m.cfg.Host, Dir: m.cfg.Dir}
	if free := preflight.FreeAbove(m.cfg.Dir); free != nil {
		n.Free = *free
	}
	var held []modelcache.Held
	var err error
	if r.Name == "" {
		held, err = m.cache.List()
	} else {
		repo, wrong := r.Cached()
		if wrong != nil {
			return n, wrong
		}
		var h modelcache.Held
		if h, err = m.cache.Look(repo); err == nil {
			held = append(held, h)
		} else if errors.Is(err, modelcache.ErrAbsent) {
			err = nil
		}
	}
	if err != nil {
		n.Error = err.Error()
	}
	may := m.rights(ctx, r.User)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range held {
		h.Foreign = h.Foreign[:min(len(h.Foreign), namedFiles)]
		for i, c := range h.Commits {
			h.Commits[i].Missing = c.Missing[:min(len(c.Missing), namedFiles)]
		}
		x := wire.HeldModel{Held: h, Denied: may.denied(h)}
		for _, p := range m.pulls {
			if p.order.Manifest.Repo != h.Repo {
				continue
			}
			switch s, _ := p.seen("", maxNotes); s.State {
			case wire.ModelWaits, wire.ModelFetches:
				x.Pulling, x.Comes = p.order.ID, p.order.Manifest.Commit
			case wire.ModelFailed:
				x.Why = s.Error
			}
		}
		n.Held = append(n.Held, x)
	}
	return n, nil
}

// manifest gives the files of a commit that is whole here.
func (m *Models) manifest(_ context.Context, _ wire.Caller, r wire.NodeModelWatch) (modelcache.Manifest, error) {
	x, err := m.cache.Manifest(r.Repo, r.Commit)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: another tool has fetched it, and says not which files it has to have", wire.ErrConflict)
	}
	return x, err
}

// commit finds the commit that a word means; empty stays so.
func commit(h modelcache.Held, revision string) (string, error) {
	if revision == "" {
		return "", nil
	}
	var found []string
	for _, c := range h.Commits {
		if slices.Contains(c.Refs, revision) {
			return c.Commit, nil
		}
		if strings.HasPrefix(c.Commit, revision) {
			found = append(found, c.Commit)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", fmt.Errorf("revision %q: %w: `sparkrun model ls %s` lists them", revision, wire.ErrNoModel, h.Repo.Name)
	}
	return "", fmt.Errorf("revision %q: %w: it begins %d commits", revision, launcher.ErrInvalid, len(found))
}

// having gives the nodes that have a repository and those that cannot be asked for it, or those that are named: they
// say themselves if they have not.
func (m *Models) having(ctx context.Context, c wire.Caller, r wire.ModelRequest) ([]wire.NodeModels, error) {
	if _, err := r.Cached(); err != nil {
		return nil, err
	}
	all, err := wire.Models.Ask(ctx, m.cfg.Everyone, c, wire.ModelsRequest{ModelRepo: r.ModelRepo}, m.list)
	if err != nil {
		return nil, err
	}
	for _, host := range r.On {
		if !slices.ContainsFunc(all, func(n wire.NodeModels) bool { return n.Host == host }) {
			return nil, fmt.Errorf("--on %s: %w: `sparkrun status` lists them", host, rendezvous.ErrNoNode)
		}
	}
	if !slices.ContainsFunc(all, func(n wire.NodeModels) bool {
		return len(n.Held) > 0 || n.Error != "" && slices.Contains(r.On, n.Host)
	}) {
		others := ""
		for _, n := range all {
			if silent(n) {
				others += "; " + notAsked(n)
			}
		}
		return nil, fmt.Errorf("%s: %w: none of the machines that answer has it: `sparkrun model ls` lists what there is%s",
			r.Name, wire.ErrNoModel, others)
	}
	return slices.DeleteFunc(all, func(n wire.NodeModels) bool {
		return len(r.On) == 0 && len(n.Held) == 0 && n.Error == "" || len(r.On) > 0 && !slices.Contains(r.On, n.Host)
	}), nil
}

// silent tells whether a node has not said what it has: it is told of, and not asked again.
func silent(n wire.NodeModels) bool { return n.Error != "" && len(n.Held) == 0 }

func notAsked(n wire.NodeModels) string {
	return "it may be on " + n.Host + ", which was not asked: " + n.Error
}

// verify has all nodes that have it read it.
func (m *Models) verify(ctx context.Context, c wire.Caller, r wire.ModelRequest,
	send func(wire.ModelVerdict) error) error {
	nodes, err := m.having(ctx, c, r)
	if err != nil {
		return err
	}
	var turn sync.Mutex
	var reading sync.WaitGroup
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, n := range nodes {
		reading.Go(func() {
			tell := func(v wire.ModelVerdict) error {
				v.Host = n.Host
				turn.Lock()
				defer turn.Unlock()
				err := send(v)
				if err != nil {
					cancel(err)
				}
				return err
			}
			var err error
			switch {
			case silent(n):
				err = errors.New(notAsked(n))
			case n.ID == m.cfg.Self:
				err = m.nodeVerify(ctx, c, r, tell)
			default:
				err = wire.NodeModelVerify.Call(ctx, m.cfg.Dial.Client(n.ID), r, tell)
			}
			if err != nil && ctx.Err() == nil {
				_ = tell(wire.ModelVerdict{Ended: true, Error: err.Error()})
			}
		})
	}
	reading.Wait()
	return context.Cause(ctx)
}

// verdictEvery is how often the bytes read are told.
const verdictEvery = 500 * time.Millisecond

func (m *Models) nodeVerify(ctx context.Context, _ wire.Caller, r wire.ModelRequest,
	send func(wire.ModelVerdict) error) error {
	repo, err := r.Cached()
	if err != nil {
		return err
	}
	h, err := m.cache.Look(repo)
	if err != nil {
		return err
	}
	which, err := commit(h, r.Revision)
	if err != nil {
		return err
	}
	v := wire.ModelVerdict{Host: m.cfg.Host}
	for _, c := range h.Commits {
		if which == "" || c.Commit == which {
			v.Bytes += c.Have
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	told := time.Now()
	v.Bad, err = m.cache.Verify(ctx, repo, which, func(n int64) {
		if v.Read += n; time.Since(told) > verdictEvery {
			told = time.Now()
			if err := send(v); err != nil {
				cancel(err)
			}
		}
	})
	if err != nil {
		return err
	}
	v.Ended = true
	return send(v)
}

// remove removes it from all nodes that have it, or those named. It takes root: a model is everybody's.
func (m *Models) remove(ctx context.Context, c wire.Caller, r wire.ModelRemoveRequest) (wire.ModelRemoved, error) {
	if err := c.MustBeRoot("model rm"); err != nil {
		return wire.ModelRemoved{}, err
	}
	nodes, err := m.having(ctx, c, r.ModelRequest)
	if err != nil {
		return wire.ModelRemoved{}, err
	}
	res := wire.ModelRemoved{Nodes: make([]wire.NodeModelRemoved, len(nodes))}
	var removing sync.WaitGroup
	for i, n := range nodes {
		removing.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, removeWithin)
			defer cancel()
			var one wire.NodeModelRemoved
			var err error
			switch {
			case silent(n):
				err = errors.New(notAsked(n))
			case n.ID == m.cfg.Self:
				one, err = m.nodeRemove(ctx, c, r)
			default:
				one, err = wire.NodeModelRemove.Call(ctx, m.cfg.Dial.Client(n.ID), r)
			}
			if one.Host = n.Host; err != nil {
				one.Error = err.Error()
			}
			res.Nodes[i] = one
		})
	}
	removing.Wait()
	return res, nil
}

// removeWithin bounds one node's part: a file system may take its time for a terabyte.
const removeWithin = time.Minute

// nodeRemove gives up the pull of it that is under way, if any, and removes it.
func (m *Models) nodeRemove(ctx context.Context, _ wire.Caller,
	r wire.ModelRemoveRequest) (wire.NodeModelRemoved, error) {
	res := wire.NodeModelRemoved{Host: m.cfg.Host}
	repo, err := r.Cached()
	if err != nil {
		return res, err
	}
	before, err := m.cache.Look(repo)
	if err != nil {
		return res, err
	}
	which, err := commit(before, r.Revision)
	if err != nil {
		return res, err
	}
	if err := m.unused(before, which); err != nil {
		return res, err
	}
	if err := m.endPulls(ctx, repo, which); err != nil {
		return res, err
	}
	err = m.cache.Remove(repo, which)
	for end := time.Now().Add(readersWithin); errors.Is(err, modelcache.ErrInUse) && time.Now().Before(end); {
		if !m.read(repo) || sleep(ctx, readersAgain) != nil {
			break
		}
		err = m.cache.Remove(repo, which)
	}
	if err != nil {
		if errors.Is(err, modelcache.ErrInUse) {
			err = fmt.Errorf("%w: %w: a job uses it, or a machine takes it from here: `sparkrun ps` shows jobs",
				wire.ErrConflict, err)
		}
		return res, err
	}
	after, err := m.cache.Look(repo)
	if err != nil && !errors.Is(err, modelcache.ErrAbsent) {
		return res, err
	}
	res.Bytes = before.Bytes - after.Bytes
	return res, nil
}

// readersWithin is how long a removal waits for other machines that were reading.
const (
	readersWithin = 5 * time.Second
	readersAgain  = 200 * time.Millisecond
	readNow       = time.Second // since when a reader counts as gone
)

// read tells whether other machines read a repository's files, or have just done so; the others are closed.
func (m *Models) read(repo modelcache.Repo) (is bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, h := range m.held {
		switch {
		case h.repo != repo:
		case time.Since(h.used) > readNow:
			m.letGo(key)
			is = true // it was held until now
		default:
			is = true
		}
	}
	return is
}

// endPulls gives up the pulls of a repository, and waits for them.
func (m *Models) endPulls(ctx context.Context, repo modelcache.Repo, commit string) error {
	m.mu.Lock()
	var ending []*pull
	for key, p := range m.pulls {
		if p.order.Manifest.Repo == repo && (commit == "" || p.order.Manifest.Commit == commit) {
			ending = append(ending, p)
			delete(m.pulls, key)
		}
	}
	m.mu.Unlock()
	m.read(repo)
	for _, p := range ending {
		p.update(func() {
			if p.gone = true; p.giveUp != nil {
				p.giveUp()
			}
		})
		select {
		case <-p.over:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// add takes a folder of a user's as a model.
func (m *Models) add(ctx context.Context, c wire.Caller, r wire.ModelAddRequest) (wire.ModelAdded, error) {
	began := time.Now()
	repo, err := r.Cached()
	res := wire.ModelAdded{Host: m.cfg.Host, Repo: repo}
	if err != nil {
		return res, err
	}
	if c.Node != "" {
		return res, fmt.Errorf("model add: %w: ask the agent of the machine that has the folder", wire.ErrDenied)
	}
	user, err := c.RunsAs(r.User)
	if err != nil {
		return res, err
	}
	if !filepath.IsAbs(r.Dir) {
		return res, fmt.Errorf("add %s: %w: want its full path", r.Dir, launcher.ErrInvalid)
	}
	if c.User.UID != 0 && !strings.HasPrefix(r.Name, user+"/") {
		return res, fmt.Errorf("add %s: %w: want a name that begins with %s/, since others would take it for the Hub's; "+
			"root may give any (sudo)", r.Name, wire.ErrDenied, user)
	}
	as, err := login.Lookup(ctx, user)
	if err != nil {
		return res, err
	}
	var src *os.Root
	if err := as.Do(func() (err error) {
		src, err = os.OpenRoot(r.Dir)
		return err
	}); err != nil {
		return res, fmt.Errorf("add %s: %w: %w", r.Name, launcher.ErrInvalid, err)
	}
	defer src.Close()
	x, err := m.cache.Add(ctx, src, res.Repo, modelcache.AddOptions{Ref: r.Ref, As: as.Do})
	if err != nil {
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrInvalid) {
			err = fmt.Errorf("%w: %w", launcher.ErrInvalid, err)
		}
		return res, err
	}
	res.Commit, res.Files, res.Bytes, res.Dir = x.Commit, len(x.Files), x.Bytes(), m.cache.Dir(x.Repo, x.Commit)
	res.Took = time.Since(began).Round(time.Millisecond)
	m.cfg.Logger.Info("model added", "model", res.Repo.Name, "commit", res.Commit, "bytes", res.Bytes, "user", user)
	return res, nil
}
