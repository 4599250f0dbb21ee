package models

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync/hub"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/launcher/filesync/relay"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// take takes an order. Room is asked for before it is kept; with Try that is all.
func (m *Models) take(ctx context.Context, _ wire.Caller, r wire.NodeModelRequest) (wire.Empty, error) {
	o := r.Order
	if err := m.sound(o); err != nil {
		return wire.Empty{}, err
	}
	if o.Image != nil {
		if err := m.mayTake(ctx, o); err != nil {
			return wire.Empty{}, err
		}
	} else if before, err := m.cache.Manifest(o.Manifest.Repo, o.Manifest.Commit); err == nil {
		o.Manifest = joined(o.Manifest, before)
	}
	if err := m.room(o.Manifest); err != nil {
		return wire.Empty{}, err
	}
	if r.Try {
		return wire.Empty{}, m.admit(ctx, o, true)
	}
	p := newPull(o)
	m.mu.Lock()
	for _, other := range m.pulls {
		if other.file == p.file && other.key() != p.key() && !other.ended() {
			m.mu.Unlock()
			return wire.Empty{}, fmt.Errorf("pull %s: %w: %s is another pull's id", o.Manifest.Repo, wire.ErrConflict, o.ID)
		}
	}
	if other := m.pulls[p.key()]; other != nil && !other.ended() {
		m.mu.Unlock()
		if under := other.order.Manifest; len(joined(under, o.Manifest).Files) > len(under.Files) {
			return wire.Empty{}, fmt.Errorf("pull %s: %w: a pull of other files of it is under way: wait for it",
				o.Manifest.Repo, wire.ErrConflict)
		}
		if o.OwnCache && (!other.order.OwnCache || other.order.For != o.For) {
			return wire.Empty{}, fmt.Errorf("pull %s: %w: a pull of it for another cache is under way: wait for it",
				o.Manifest.Repo, wire.ErrConflict)
		}
		if err := m.admitNow(ctx, o); err != nil {
			return wire.Empty{}, err
		}
		return wire.Empty{}, m.anew(other, o) // it is followed in this one's place
	}
	m.pulls[p.key()] = p
	m.mu.Unlock()
	err := m.admitNow(ctx, o)
	if err == nil {
		err = m.keepOrder(p.file, o)
	}
	if err == nil {
		select {
		case m.begun <- p:
			return wire.Empty{}, nil
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	m.done(p) // others may follow it already: they are told
	p.update(func() { p.state, p.err = wire.ModelFailed, err })
	close(p.over)
	return wire.Empty{}, err
}

// admitNow admits while the folder is in use: a removal that is under way would take the rights with it.
func (m *Models) admitNow(ctx context.Context, o wire.ModelOrder) error {
	lease, err := m.cacheOf(o.Manifest.Repo).Hold(o.Manifest.Repo)
	if err != nil {
		return err
	}
	defer lease.Drop()
	return m.admit(ctx, o, false)
}

// sound refuses an order that cannot be followed.
func (m *Models) sound(o wire.ModelOrder) error {
	if err := errors.Join(o.ID.Validate(), o.Manifest.Check()); err != nil {
		return fmt.Errorf("%w: %w", launcher.ErrInvalid, err)
	}
	nodes := slices.Sorted(slices.Values(o.Chain))
	switch {
	case len(slices.Compact(nodes)) < len(o.Chain) || !slices.Contains(o.Chain, m.cfg.Self):
		return fmt.Errorf("pull %s: %w: want a chain that has %s, and each machine once", o.Manifest.Repo, launcher.ErrInvalid,
			m.cfg.Host)
	case (o.Image != nil) != (o.Manifest.Repo.Type == modelcache.Image):
		return fmt.Errorf("pull %s: %w: an image is wanted, or a model", title(o), launcher.ErrInvalid)
	}
	return nil
}

// joined has the files of both: what an earlier pull of the commit has brought stays part of it.
func joined(m, before modelcache.Manifest) modelcache.Manifest {
	has := map[string]bool{}
	for _, f := range m.Files {
		has[f.Path] = true
	}
	m.Files = slices.Clone(m.Files)
	for _, f := range before.Files {
		if !has[f.Path] {
			has[f.Path] = true
			m.Files = append(m.Files, f)
		}
	}
	m.Partial = m.Partial && before.Partial
	m.Left = slices.DeleteFunc(slices.Clone(m.Left), func(f modelcache.File) bool { return has[f.Path] })
	return m
}

// room refuses what does not fit. What there is of a file under way counts: its blocks are taken already.
func (m *Models) room(x modelcache.Manifest) error {
	cache := m.cacheOf(x.Repo)
	missing, err := cache.Missing(x)
	if err != nil {
		return err
	}
	var bytes int64
	for _, f := range missing {
		if !cache.HasPart(x.Repo, f) {
			bytes += f.Size
		}
	}
	if bytes == 0 {
		return nil
	}
	return cache.Room(bytes)
}

// fetch does what an order says, and is done with it: whole or failed. Where ctx ends first the order stays.
func (m *Models) fetch(ctx context.Context, p *pull) {
	defer close(p.over)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gone := false
	p.update(func() { p.giveUp, gone = cancel, p.gone })
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	default:
		p.note(fmt.Sprintf("%d other pulls are under way on %s: waiting for one to end", pullsAtOnce, m.cfg.Host))
		select {
		case m.slots <- struct{}{}:
			defer func() { <-m.slots }()
		case <-ctx.Done():
		}
	}
	p.update(func() { p.state = wire.ModelFetches })
	x, began := p.order.Manifest, time.Now()
	var dir string
	err := errGivenUp
	switch {
	case gone:
	case p.order.Image != nil:
		dir, err = m.bringImage(ctx, p)
	default:
		dir, err = m.bring(ctx, p)
	}
	if err == nil && p.order.OwnCache {
		dir, err = m.ownCopy(ctx, p)
	}
	p.mu.Lock()
	gone = p.gone
	p.mu.Unlock()
	switch {
	case gone:
		err = errGivenUp
	case ctx.Err() != nil:
		return // the next agent goes on
	}
	if err == nil && p.order.Image != nil {
		m.markTaken(p.order, dir)
	}
	m.done(p)
	if errors.Is(err, relay.ErrNoSource) {
		err = m.unreached(p.order, err)
	}
	if errors.Is(err, relay.ErrSum) && len(p.order.Chain) > 1 {
		err = fmt.Errorf("%w: where a machine had it before, its copy may be wrong: `sparkrun model verify %s`", err,
			x.Repo.Name)
	}
	if errors.Is(err, modelcache.ErrRoom) {
		err = fmt.Errorf("%w: make room (`sparkrun model ls` tells what was used last), then pull it again", err)
	}
	if err != nil {
		m.cfg.Logger.Warn("model not pulled", "model", title(p.order), "commit", x.Commit, "error", err)
		p.update(func() { p.state, p.err = wire.ModelFailed, err })
		return
	}
	m.cfg.Logger.Info("model pulled", "model", title(p.order), "commit", x.Commit, "bytes", x.Bytes(),
		"took", time.Since(began).Round(time.Millisecond))
	p.update(func() { p.state, p.dir = wire.ModelDone, dir })
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pulls[p.key()] == p { // the cache tells from now on
		delete(m.pulls, p.key())
	}
}

// unreached says what to do where no node of the chain has a way to the file.
func (m *Models) unreached(o wire.ModelOrder, err error) error {
	if !o.Outside {
		return fmt.Errorf("%w: the machines that have all of it do not answer", err)
	}
	if o.Image != nil {
		return fmt.Errorf("%w; neither %s nor another machine of this pull gets it from its registry: pull it to one that "+
			"does, `sparkrun image pull %s --on HOST`, then here", err, m.cfg.Host, o.Image.Ref)
	}
	return fmt.Errorf("%w; neither %s nor another machine of this pull gets it from %s: pull it to one that does, "+
		"`sparkrun model pull %s --on HOST`, then here", err, m.cfg.Host, cmp.Or(m.cfg.Endpoint, hub.Endpoint),
		o.Manifest.Repo.Name)
}

var errGivenUp = errors.New("it was given up: it is being removed")

// bring fetches what is missing, and links it.
func (m *Models) bring(ctx context.Context, p *pull) (dir string, err error) {
	x := p.order.Manifest
	outside := m.outside(p)
	lease, err := m.cache.Hold(x.Repo)
	if err != nil {
		return "", err
	}
	defer lease.Drop()
	if err := m.admit(ctx, p.order, false); err != nil { // the folder may have been removed since it was taken
		return "", err
	}
	if err := m.cache.Expect(x); err != nil {
		return "", err
	}
	missing, err := m.cache.Missing(x)
	if err != nil {
		return "", err
	}
	have := x.Bytes()
	for _, f := range missing {
		have -= f.Size
	}
	p.update(func() { p.have = have })
	on := presences(p.order)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(filesAtOnce)
	for turn, f := range missing {
		g.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := m.file(ctx, p, turn, f, m.chain(p.order, x.Repo, f, on), outside(f)); err != nil {
				return fmt.Errorf("%s: %w", f.Path, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return "", err
	}
	return m.cache.Commit(x)
}

func presences(o wire.ModelOrder) map[launcher.NodeID]*presence {
	on := map[launcher.NodeID]*presence{}
	for _, id := range o.Chain {
		on[id] = &presence{answered: time.Now()}
	}
	return on
}

// chain are the nodes for one file, without those that are silent.
func (m *Models) chain(o wire.ModelOrder, r modelcache.Repo, f modelcache.File,
	on map[launcher.NodeID]*presence) (c chain) {
	for _, id := range o.Chain {
		if id == m.cfg.Self {
			c.self = len(c.members)
			c.members = append(c.members, relay.Member{Name: m.cfg.Host})
		} else if on[id].present() {
			c.members = append(c.members, relay.Member{Name: m.cfg.Dial.HostOf(id), Source: member{
				Remote: relay.Remote{Client: m.client(id), Base: "https://" + string(id), Key: keyOf(r, f)}, on: on[id],
			}})
		}
	}
	return c
}

type chain struct {
	members []relay.Member
	self    int
}

type openOutside = func(ctx context.Context, off, n int64) (io.ReadCloser, error)

// outside opens files at the Hub.
func (m *Models) outside(p *pull) func(modelcache.File) openOutside {
	o := p.order
	if !o.Outside {
		return func(modelcache.File) openOutside { return nil }
	}
	rev := &hub.Revision{Repo: o.Manifest.Repo.Name, Type: hub.Type(o.Manifest.Repo.Type), Commit: o.Manifest.Commit}
	return func(f modelcache.File) openOutside {
		return func(ctx context.Context, off, n int64) (io.ReadCloser, error) {
			client, err := m.hubOf(p)
			if err != nil {
				return nil, err
			}
			body, err := client.Open(ctx, rev, hub.File(f), off, off+n)
			for _, final := range []error{hub.ErrNoRepo, hub.ErrNoRevision, hub.ErrNoFile, hub.ErrGated, hub.ErrToken,
				hub.ErrLength, hub.ErrNoRange} {
				if errors.Is(err, final) {
					return nil, fmt.Errorf("%w: %w", relay.ErrGone, err)
				}
			}
			return body, err
		}
	}
}

// hub makes a client that has the token, if any. A request may be made so often, and be silent for so long; 0: as the
// package says.
func (m *Models) hub(r wire.NodeModelAskRequest, tries int, idle time.Duration) (*hub.Client, error) {
	cfg := hub.Config{Endpoint: m.cfg.Endpoint, UserAgent: "sparkrun/" + m.cfg.Version, Tries: tries, Idle: idle}
	if r.Token != nil {
		plain, err := m.cfg.Unseal(launcher.Spec{ID: r.ID, User: r.User}, *r.Token)
		if err != nil {
			return nil, fmt.Errorf("open the token: %w", err)
		}
		cfg.Token = string(plain)
	}
	return hub.New(cfg)
}

// file fetches one.
func (m *Models) file(ctx context.Context, p *pull, turn int, f modelcache.File, c chain,
	outside openOutside) error {
	repo := p.order.Manifest.Repo
	part, err := m.begin(ctx, p, f)
	if err != nil || part == nil {
		return err
	}
	defer part.Close()
	sums, state, at := part.Kept()
	file, err := relay.New(relay.Config{Size: f.Size, SHA256: f.SHA256, GitSHA1: f.GitOID, Part: part, Self: c.self,
		Kept: relay.Kept{Sums: sums, Hash: state, At: at}, Chain: c.members, Outside: outside, Buffers: p.buffers,
		Turn: turn, Limit: p.limit, Event: func(e relay.Event) { m.event(p, f, e) }})
	if err != nil {
		return err
	}
	key := keyOf(repo, f)
	m.mu.Lock()
	m.under[key] = file
	m.mu.Unlock()
	p.update(func() { p.under[file] = true })
	err = file.Run(ctx)
	if err == nil {
		err = part.Finish(true)
	} else if errors.Is(err, relay.ErrSum) {
		_ = sleep(ctx, lingers) // ctx may be over
		part.Discard()
	}
	m.mu.Lock()
	delete(m.under, key)
	m.mu.Unlock()
	p.update(func() {
		if delete(p.under, file); err == nil {
			p.have += f.Size
		}
	})
	return err
}

// lingers is how long a file that is found wrong can still be read: those behind get the rest of it, and the verdict.
// Else each would wait for this node, then fetch the rest from outside, to find the same.
const lingers = 5 * time.Second

// begin waits while another program has the file; nil: it has brought it.
func (m *Models) begin(ctx context.Context, p *pull, f modelcache.File) (*modelcache.Part, error) {
	repo := p.order.Manifest.Repo
	for said := false; ; said = true {
		part, err := m.cacheOf(repo).Begin(repo, f)
		if !errors.Is(err, modelcache.ErrBusy) {
			return part, err
		}
		if !said {
			p.note(fmt.Sprintf("%s: another program fetches it at this moment: waiting for it", f.Path))
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if blob, err := m.cacheOf(repo).OpenBlob(repo, f); err == nil {
			p.update(func() { p.have += f.Size })
			return nil, blob.Close()
		}
	}
}

// event tells of a change of source.
func (m *Models) event(p *pull, f modelcache.File, e relay.Event) {
	if e.Err == nil {
		p.update(func() { p.from = e.Source })
		return
	}
	text := fmt.Sprintf("%s was left for %s at byte %d: %v", e.Source, f.Path, e.At, e.Err)
	m.cfg.Logger.Info("source left", "model", title(p.order), "what", text)
	p.note(text)
}

// progress follows an order until it is done or failed.
func (m *Models) progress(ctx context.Context, _ wire.Caller, r wire.NodeModelWatch,
	send func(wire.ModelProgress) error) error {
	m.mu.Lock()
	p := m.pulls[repoKey(r.Repo, r.Commit)]
	m.mu.Unlock()
	if p == nil { // it was done before this agent began
		return m.doneBefore(r, send)
	}
	for notes := 0; ; {
		s, changed := p.seen(m.cfg.Host, notes)
		notes += len(s.Notes)
		if err := send(s); err != nil || s.Ended() {
			return err
		}
		wait := time.NewTimer(progressEvery)
		select {
		case <-wait.C:
		case <-changed:
			wait.Stop()
			if err := sleep(ctx, progressAtMost); err != nil {
				return err
			}
		case <-ctx.Done():
			wait.Stop()
			return ctx.Err()
		}
	}
}

// While an order is followed its bytes are told each half second, changes a little sooner.
const (
	progressEvery  = 500 * time.Millisecond
	progressAtMost = 100 * time.Millisecond
)

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *Models) doneBefore(r wire.NodeModelWatch, send func(wire.ModelProgress) error) error {
	if image, is := m.wasTaken(r.ID); is && r.Repo.Type == modelcache.Image {
		return send(wire.ModelProgress{Host: m.cfg.Host, State: wire.ModelDone, Dir: image})
	}
	h, err := m.cacheOf(r.Repo).Look(r.Repo)
	if err == nil {
		for _, c := range h.Commits {
			if c.Commit == r.Commit && c.Whole() {
				return send(wire.ModelProgress{Host: m.cfg.Host, State: wire.ModelDone, Have: c.Have, Bytes: c.Bytes,
					Dir: m.cache.Dir(r.Repo, r.Commit)})
			}
		}
	}
	return send(wire.ModelProgress{Host: m.cfg.Host, State: wire.ModelFailed, Error: "its order is gone: pull it again"})
}
