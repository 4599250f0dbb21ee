package netplan

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

var (
	// ErrManagement says that the file would reconfigure the interface the cluster talks over.
	ErrManagement = errors.New("it is what the cluster talks over")
	// ErrBusy says that a job uses the interfaces, or that another change is in
	// progress.
	ErrBusy = errors.New("in use")
	// ErrMentioned says that another file names the same interfaces and would break ours.
	ErrMentioned = errors.New("other netplan files name the same interfaces")
	// ErrPending says that an earlier change was interrupted: call Recover first.
	ErrPending = errors.New("an earlier change was cut short")
	// ErrRolledBack says that the change was undone; the previous state is in force again.
	ErrRolledBack = errors.New("rolled back")
	// ErrStuck says that undoing failed too. The marker is kept, and the next Recover tries
	// again.
	ErrStuck = errors.New("not rolled back")
	// ErrNothing says that there is no change to undo.
	ErrNothing = errors.New("nothing to undo")
	// ErrEdited says that somebody has edited the file since.
	ErrEdited = errors.New("edited since")
)

// Files reads and writes below the root folder. Paths are absolute within that root.
type Files interface {
	// Read gives content and permission bits; where there is no file the error is fs.ErrNotExist.
	Read(path string) ([]byte, fs.FileMode, error)
	// Write replaces a file atomically and returns once that survives a power cut. It makes missing folders, with
	// mode 0700.
	Write(path string, data []byte, mode fs.FileMode) error
	// Remove removes a file durably; a missing one is no error.
	Remove(path string) error
	// List lists the files of a folder; none where there is no folder.
	List(dir string) ([]string, error)
}

// Config is everything outside this package that an Applier needs.
type Config struct {
	Files Files
	// State is the folder for the marker and the backup, within Files' root. Default /var/lib/sparkrun/netplan. It
	// must not be on tmpfs: a change interrupted by a power cut could not be undone.
	State string
	// Check says whether netplan accepts these files, without touching the system: netplan generate --root-dir.
	Check func(ctx context.Context, files []Source) error
	// Apply puts the files on disk in force: netplan apply.
	Apply func(ctx context.Context) error
	// Reachable asks once whether a peer answers. It is called again each second until Grace has
	// passed.
	Reachable func(ctx context.Context, p Peer) error
	// Busy names the job that uses one of the interfaces; empty: none. From this call until Try returns the
	// caller starts no job on them.
	Busy func(ctx context.Context, nics []string) (string, error)
	// Grace is how long peers have to answer after Apply where an Order does not say. Default 30 s, which a switch
	// port with spanning tree needs; a shorter time rolls back a good change, a longer one keeps a bad one in
	// force.
	Grace time.Duration
	// ApplyTimeout bounds one Check or Apply. Default 60 s; what takes longer has failed.
	ApplyTimeout time.Duration
	Log          *slog.Logger
}

// probeEvery is the pause between two calls of Reachable; probeTimeout bounds one.
const (
	probeEvery   = time.Second
	probeTimeout = 3 * time.Second
)

// Applier changes the netplan file of this node, and undoes what does not work.
type Applier struct {
	cfg Config
	mu  sync.Mutex
}

// New checks the configuration.
func New(cfg Config) (*Applier, error) {
	cfg.State = cmp.Or(cfg.State, "/var/lib/sparkrun/netplan")
	cfg.Grace = cmp.Or(cfg.Grace, 30*time.Second)
	cfg.ApplyTimeout = cmp.Or(cfg.ApplyTimeout, 60*time.Second)
	switch {
	case cfg.Files == nil || cfg.Check == nil || cfg.Apply == nil || cfg.Reachable == nil || cfg.Busy == nil ||
		cfg.Log == nil:
		return nil, errors.New("configure netplan applier: Files, Check, Apply, Reachable, Busy and Log are all needed")
	case cfg.Grace < 0 || cfg.ApplyTimeout < 0:
		return nil, errors.New("configure netplan applier: Grace and ApplyTimeout must be positive")
	case !path.IsAbs(cfg.State):
		return nil, fmt.Errorf("configure netplan applier: state folder %s: want an absolute path", cfg.State)
	}
	return &Applier{cfg: cfg}, nil
}

// Sources reads the node's netplan files.
func (a *Applier) Sources() ([]Source, error) {
	var out []Source
	for _, dir := range folders {
		names, err := a.cfg.Files.List(dir)
		if err != nil {
			return nil, fmt.Errorf("list netplan folder %s: %w", dir, err)
		}
		for _, name := range names {
			if !strings.HasSuffix(name, ".yaml") || strings.HasPrefix(name, ".") {
				continue // netplan's glob does not match these either
			}
			p := path.Join(dir, name)
			data, _, err := a.cfg.Files.Read(p)
			if err != nil {
				return nil, fmt.Errorf("read netplan file %s: %w", p, err)
			}
			out = append(out, Source{Path: p, Data: data})
		}
	}
	return out, nil
}

// Try makes a change and keeps it only if every peer answers within Grace and Agree returns nil. Errors before
// anything is written are ErrPending, ErrManagement, ErrBusy, ErrMentioned or netplan's own; after that
// ErrRolledBack with its cause, or ErrStuck. Ending ctx rolls back.
func (a *Applier) Try(ctx context.Context, o Order) (Outcome, error) {
	unlock, err := a.lock()
	if err != nil {
		return Outcome{}, err
	}
	defer unlock()
	return a.try(ctx, o)
}

func (a *Applier) lock() (func(), error) {
	if !a.mu.TryLock() {
		return nil, fmt.Errorf("apply netplan: another change is under way: %w", ErrBusy)
	}
	return a.mu.Unlock, nil
}

// change is one run of Try.
type change struct {
	a     *Applier
	order Order
	out   Outcome
}

// advance is the only place where a change's state changes.
func (c *change) advance(s State) {
	c.out.State = s
	c.a.cfg.Log.Info("netplan change", "state", string(s), "path", Path)
	if c.order.Tell != nil {
		c.order.Tell(s)
	}
}

func (a *Applier) try(ctx context.Context, o Order) (Outcome, error) {
	o.Grace = cmp.Or(o.Grace, a.cfg.Grace)
	c := &change{a: a, order: o}
	old, err := c.check(ctx)
	if err != nil || c.out.State == StateUnchanged {
		return c.out, err
	}
	m := marker{Version: markerVersion, ID: rand.Text(), Change: o.Change, At: time.Now().UTC(), Old: old, New: o.Text}
	if err := a.writeMarker(pendingName, m); err != nil {
		return c.out, fmt.Errorf("back up %s: %w", Path, err)
	}
	c.advance(StateMarked)
	cause := c.run(ctx, m)
	if cause == nil {
		c.advance(StateCommitted)
		// If the marker stays, its id shows that it is committed: see Recover.
		if err := a.cfg.Files.Remove(a.state(pendingName)); err != nil {
			a.cfg.Log.Warn("netplan marker stays until the next start", "error", err)
		}
		return c.out, nil
	}
	// A commit that failed may still be on disk: with another id the marker does not count as committed.
	m.ID = rand.Text()
	err = a.writeMarker(pendingName, m)
	// The end of the caller's ctx must not interrupt restore, which has its own time limits. On a full disk there
	// may be no room for a marker and yet a way back: what could not be written need not be undone.
	if back := a.restore(context.WithoutCancel(ctx), m); back != nil {
		err = errors.Join(err, back)
		return c.out, fmt.Errorf("apply netplan: %w; %w: %w; restart sparkrun agent, which tries again; the backup is in "+
			"%s", cause, ErrStuck, err, a.state(pendingName))
	}
	c.advance(StateRolledBack)
	return c.out, fmt.Errorf("apply netplan: %w; %w", cause, ErrRolledBack)
}

// check finds all reasons to refuse before anything is touched, and returns what is there now.
func (c *change) check(ctx context.Context) (old *backup, err error) {
	a, o := c.a, c.order
	pending, committed, err := a.pending()
	switch {
	case err != nil:
		return nil, err
	case pending != nil && !committed:
		return nil, fmt.Errorf("apply netplan: %w at %s; restart sparkrun agent, which undoes it", ErrPending,
			pending.At.Format(time.RFC3339))
	}
	sources, old, err := c.describe()
	if err != nil {
		return nil, err
	}
	if old == nil && o.Text == nil || old != nil && o.Text != nil && *o.Text == string(old.Text) && old.Mode == fileMode {
		c.advance(StateUnchanged)
		return old, nil
	}
	if err := c.refuse(sources); err != nil {
		return old, err
	}
	checkCtx, cancel := context.WithTimeout(ctx, a.cfg.ApplyTimeout)
	defer cancel()
	if err := a.cfg.Check(checkCtx, InOrder(replaced(sources, o.Text))); err != nil {
		return old, fmt.Errorf("check %s with netplan generate: %w", Path, err)
	}
	// Asked last, since the answer must hold until Try returns.
	job, err := a.cfg.Busy(ctx, nicNames(o.NICs))
	if err != nil {
		return old, fmt.Errorf("ask for jobs on %s: %w", strings.Join(nicNames(o.NICs), ", "), err)
	}
	if job != "" {
		return old, fmt.Errorf("apply netplan: job %s uses %s: %w; stop it first: sparkrun stop %s", job,
			strings.Join(nicNames(o.NICs), ", "), ErrBusy, job)
	}
	c.advance(StateChecked)
	return old, nil
}

// describe reads the current files and says what would change.
func (c *change) describe() (sources []Source, old *backup, err error) {
	o := c.order
	if sources, err = c.a.Sources(); err != nil {
		return nil, nil, err
	}
	from, to := "", ""
	data, mode, err := c.a.cfg.Files.Read(Path)
	switch {
	case err == nil:
		old, from = &backup{Text: data, Mode: mode}, string(data)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, nil, fmt.Errorf("read %s: %w", Path, err)
	}
	if o.Text != nil {
		to = *o.Text
		ours, err := Parse(Source{Path: Path, Data: []byte(to)})
		if err != nil {
			return nil, nil, err
		}
		docs, _ := ParseAll(sources)
		c.out.Mentions = Mentions(docs, ours, o.NICs)
	}
	c.out.Diff = Unified(diffName(old != nil), diffName(o.Text != nil), from, to)
	c.out.Changes = Changes(sources, o.Text, o.NICs)
	return sources, old, nil
}

// diffName is the name of our file in a diff: /dev/null where it does not exist.
func diffName(there bool) string {
	if there {
		return Path
	}
	return "/dev/null"
}

// Check says what Try would do and, as its error, why it would refuse. It touches nothing.
func (a *Applier) Check(ctx context.Context, o Order) (Outcome, error) {
	o.Tell = nil // no change begins
	c := &change{a: a, order: o}
	_, err := c.check(ctx)
	return c.out, err
}

// refuse gives the reasons in the files that forbid the change.
func (c *change) refuse(sources []Source) error {
	o := c.order
	if o.Management.NIC == "" {
		return fmt.Errorf("apply netplan: the interface the cluster talks over is not known, so it cannot be kept out of " +
			"this; name it with --management IFACE|ADDR")
	}
	docs, unread := ParseAll(sources)
	after := docs
	if o.Text != nil {
		ours, err := Parse(Source{Path: Path, Data: []byte(*o.Text)})
		if err != nil {
			return err
		}
		after = append(slices.Clone(docs), ours)
	}
	// The text that is removed counts as much as the new one: it may be the only one that configures
	// management.
	for _, doc := range after {
		if doc.Path != Path {
			continue
		}
		if what := touches(doc, after, o.Management); what != "" {
			return fmt.Errorf("apply netplan: %s would be reconfigured: %w; take it out of %s", what, ErrManagement, Path)
		}
	}
	var reasons []string
	for _, err := range unread {
		reasons = append(reasons, err.Error()) // what it says of management and of our interfaces is unknown
	}
	for _, m := range c.out.Mentions {
		if m.Blocks {
			reasons = append(reasons, m.String())
		}
	}
	if len(reasons) > 0 && !o.Force {
		return fmt.Errorf("apply netplan: %w: %s; --force overrides", ErrMentioned, strings.Join(reasons, "; "))
	}
	return nil
}

// run goes from the marker to the commit. Its error is why the change must be undone.
func (c *change) run(ctx context.Context, m marker) error {
	a := c.a
	if err := a.put(m.New, fileMode); err != nil {
		return err
	}
	c.advance(StateWritten)
	if err := a.apply(ctx); err != nil {
		return err
	}
	c.advance(StateApplied)
	if err := c.agree(ctx, 2*a.cfg.ApplyTimeout); err != nil {
		return err
	}
	if err := c.reach(ctx); err != nil {
		return err
	}
	c.advance(StateReached)
	if err := c.agree(ctx, c.order.Grace+a.cfg.ApplyTimeout); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	// This write is the commit: from here on the change stays, whatever happens.
	if err := a.writeMarker(lastName, m); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// agree waits until the other nodes have got as far as this one.
func (c *change) agree(ctx context.Context, limit time.Duration) error {
	if c.order.Agree == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := c.order.Agree(ctx, c.out.State); err != nil {
		return fmt.Errorf("wait for the other nodes: %w", err)
	}
	return nil
}

// put writes Path, or removes it.
func (a *Applier) put(text *string, mode fs.FileMode) error {
	if text == nil {
		if err := a.cfg.Files.Remove(Path); err != nil {
			return fmt.Errorf("remove %s: %w", Path, err)
		}
		return nil
	}
	if err := a.cfg.Files.Write(Path, []byte(*text), mode); err != nil {
		return fmt.Errorf("write %s: %w", Path, err)
	}
	return nil
}

func (a *Applier) apply(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.ApplyTimeout)
	defer cancel()
	if err := a.cfg.Apply(ctx); err != nil {
		return fmt.Errorf("netplan apply: %w", err)
	}
	return nil
}

// reach waits until every peer has answered once.
func (c *change) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.order.Grace)
	defer cancel()
	silent := make([]error, len(c.order.Peers))
	var wg sync.WaitGroup
	for i, p := range c.order.Peers {
		wg.Go(func() { silent[i] = c.reachOne(ctx, p) })
	}
	wg.Wait()
	return errors.Join(silent...)
}

func (c *change) reachOne(ctx context.Context, p Peer) error {
	var last error
	for {
		once, cancel := context.WithTimeout(ctx, probeTimeout)
		err := c.a.cfg.Reachable(once, p)
		cancel()
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err // a peer's own error, not the end of the time
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("%s did not answer within %s: %w", p, c.order.Grace, last)
			}
			return fmt.Errorf("ask %s: %w", p, context.Cause(ctx))
		case <-time.After(probeEvery):
		}
	}
}

// restore puts back what the marker has and removes the marker. It can be repeated after any failure.
func (a *Applier) restore(ctx context.Context, m marker) error {
	var old *string
	mode := fileMode
	if m.Old != nil {
		old, mode = new(string(m.Old.Text)), m.Old.Mode
	}
	asWas, err := a.same(old)
	if err == nil && asWas && old != nil {
		var now fs.FileMode
		_, now, err = a.cfg.Files.Read(Path)
		asWas = now == mode
	}
	if err != nil || !asWas {
		if err := a.put(old, mode); err != nil {
			return err
		}
	}
	if err := a.apply(ctx); err != nil {
		return err
	}
	if err := a.cfg.Files.Remove(a.state(pendingName)); err != nil {
		return fmt.Errorf("remove marker: %w", err)
	}
	return nil
}

// same reports whether the file on disk has this text; nil means that there is no file.
func (a *Applier) same(text *string) (bool, error) {
	data, _, err := a.cfg.Files.Read(Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return text == nil, nil
	case err != nil:
		return false, fmt.Errorf("read %s: %w", Path, err)
	}
	return text != nil && bytes.Equal(data, []byte(*text)), nil
}

func nicNames(nics []Twin) []string {
	var out []string
	for _, n := range nics {
		out = append(out, n.NIC)
	}
	return out
}
