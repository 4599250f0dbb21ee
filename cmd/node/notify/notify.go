// Package notify tells people of what happens: by a webhook, or by a command on the machine that leads.
//
// It decides what is news (decide.go), puts that into the record, and brings each notice to each target that wants it
// (deliver.go). The record remembers what was said and what is yet to be brought, so that the next leader says nothing
// twice; only a leader that dies between sending a notice and recording it leaves the next one to send it again. Ends of
// jobs are queued by the record itself.
//
// It must not poll: it waits for changes, and for times that it knows. It must not slow down what it tells of, and must
// not show a URL, a header or an argument to anybody: not in a log, and not in an error.
package notify

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Config of the leader's part. All of it is needed.
type Config struct {
	Host    string // this member's name
	Version string
	// Jobs are all jobs; Backends tell when a service has changed.
	Jobs     func() []rendezvous.JobStatus
	Backends func() ([]rendezvous.Backend, <-chan struct{})
	// Status are the machines, and what is closed when one has changed. Findings are what is wrong with them as far as
	// that shows it: no machine is asked.
	Status   func() (wire.Status, <-chan struct{})
	Findings func(wire.Status) []envgen.Finding
	Record   *rendezvous.Record
	Recorder Recorder
	// Prove returns nil once this node has proven that it leads: another leader may have sent a notice already.
	Prove func(context.Context) error
	// Sealer gives the keys that members alone have.
	Sealer func() (trust.Sealer, error)
	// OnlyHere names this host if no other has what was just recorded.
	OnlyHere func(context.Context) string
	Logger   *slog.Logger
}

// Recorder writes a change into the record.
type Recorder interface {
	Notify(context.Context, rendezvous.NotifyChange) error
}

// Leader tells people for as long as this node leads.
type Leader struct {
	Config
	client *http.Client

	mu      sync.Mutex
	trouble map[string]rendezvous.NotifySent // of targets whose notice is tried again
}

// Lead makes the part.
func Lead(cfg Config) *Leader {
	return &Leader{Config: cfg, client: newClient(), trouble: map[string]rendezvous.NotifySent{}}
}

// Calls are what it answers.
func (l *Leader) Calls() []wire.Call {
	return []wire.Call{wire.ShowNotify.Serve(l.show), wire.ChangeNotify.Serve(l.change), wire.TestNotify.Serve(l.test)}
}

const (
	// coalesce is the least time between two looks.
	coalesce = 100 * time.Millisecond
	// lookLeast and lookMost are the time between two looks at what inventories show: after a change, and without one.
	lookLeast = 30 * time.Second
	lookMost  = 10 * time.Minute
)

// Run looks and tells until ctx, the leadership, ends. While there is no target it does nothing.
func (l *Leader) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return l.watch(ctx, g) })
	return g.Wait()
}

func (l *Leader) watch(ctx context.Context, g *errgroup.Group) error {
	v := view{memory: memory{}}
	begun := map[string]bool{}
	for ctx.Err() == nil {
		now, changed := l.Record.Notify()
		for name := range now.Targets {
			if !begun[name] {
				begun[name] = true // for as long as this node leads: there may be one of this name again
				g.Go(func() error { return l.deliver(ctx, name) })
			}
		}
		if len(now.Targets) == 0 {
			v = view{memory: memory{}}
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		_, served := l.Backends()
		tell, next, nodes := l.look(&v, now, time.Now())
		if len(tell.Told) > 0 {
			if err := l.Recorder.Notify(ctx, rendezvous.NotifyChange{Tell: &tell}); err != nil {
				l.Logger.Warn("record notices", "error", err)
				next = time.Now().Add(time.Second)
			}
		}
		due := time.NewTimer(time.Until(next))
		select {
		case <-changed:
		case <-served:
		case <-nodes:
			v.stale = true
		case <-due.C:
		case <-ctx.Done():
		}
		due.Stop()
		pause(ctx, coalesce)
	}
	return ctx.Err()
}

// view is what a leadership has seen.
type view struct {
	memory
	findings []envgen.Finding
	looked   time.Time // when they were taken
	stale    bool      // a machine has changed since
}

// look finds what is to be told, and when to look again though nothing changes.
func (l *Leader) look(v *view, n rendezvous.Notify, now time.Time) (tell rendezvous.NotifyTell, next time.Time,
	changed <-chan struct{}) {
	st, changed := l.Status()
	sights := append(nodeSights(st), serviceSights(l.Jobs(), n.Told)...)
	again := time.Time{}
	if wanted(n, rendezvous.EventDoctorError) {
		if age := now.Sub(v.looked); v.looked.IsZero() || age >= lookMost || v.stale && age >= lookLeast {
			v.findings, v.looked, v.stale = l.Findings(st), now, false
		}
		again = v.looked.Add(lookMost)
		if v.stale {
			again = v.looked.Add(lookLeast)
		}
		sights = append(sights, findingSights(v.findings, n.Told)...)
	}
	tell, next = v.decide(now, sights, n)
	if next.IsZero() || !again.IsZero() && again.Before(next) {
		next = again
	}
	if v.unsure() { // an error has to be there twice
		v.stale = true
	}
	if next.IsZero() {
		next = now.Add(lookMost)
	}
	return tell, next, changed
}

// wanted tells whether somebody is told of an event.
func wanted(n rendezvous.Notify, e rendezvous.NotifyEvent) bool {
	for _, t := range n.Targets {
		if slices.Contains(t.On, e) {
			return true
		}
	}
	return false
}

// pause returns false when ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (l *Leader) show(context.Context, wire.Caller, wire.Empty) (wire.NotifyResponse, error) {
	now, _ := l.Record.Notify()
	res := wire.NotifyResponse{Targets: []wire.NotifyTarget{}, LeftOut: now.LeftOut}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(now.Targets)) {
		t := now.Targets[name]
		out := wire.NotifyTarget{Name: name, Kind: t.Kind, To: t.Shown, On: t.On, Created: t.Created, By: t.By,
			Waiting: now.Waiting(name)}
		sent := t.Sent
		if now, is := l.trouble[name]; is {
			sent = now
		}
		if !sent.At.IsZero() {
			out.Last, out.Error = &sent.At, sent.Error
		}
		res.Targets = append(res.Targets, out)
	}
	return res, nil
}

// change records a change of root's: what a command may do, and whom a machine calls, is its administrator's to say.
func (l *Leader) change(ctx context.Context, c wire.Caller, r wire.NotifyChangeRequest) (wire.Acknowledged, error) {
	if err := c.MustBeRoot("change who is told of events"); err != nil {
		return wire.Acknowledged{}, err
	}
	now, _ := l.Record.Notify()
	var err error
	switch _, has := now.Targets[r.Remove]; {
	case (r.Add == nil) == (r.Remove == ""):
		err = fmt.Errorf("notify: %w: want one change", launcher.ErrInvalid)
	case r.Add != nil:
		err = l.add(ctx, now, *r.Add, c.User.Name)
	case !has:
		err = fmt.Errorf("notify %.64q: %w: `sparkrun notify ls` lists them", r.Remove, rendezvous.ErrNoNotify)
	default:
		err = l.Recorder.Notify(ctx, rendezvous.NotifyChange{Remove: r.Remove})
	}
	if err != nil {
		return wire.Acknowledged{}, err
	}
	l.Logger.Info("notify", "change", r.String(), "user", c.User.Name, "from", c.Host)
	return wire.Acknowledged{OnlyOn: l.OnlyHere(ctx)}, nil
}

func (l *Leader) add(ctx context.Context, now rendezvous.Notify, r wire.NotifyAdd, user string) error {
	e := endpoint{URL: r.URL, Headers: r.Headers, Command: r.Command}
	if err := e.validate(); err != nil {
		return fmt.Errorf("notify %.64s: %w", r.Name, err)
	}
	if t, taken := now.Targets[r.Name]; taken {
		if old, err := l.open(t); err == nil && old.equal(e) && slices.Equal(t.On, r.On) {
			return nil // asked twice
		}
		return fmt.Errorf("notify %s: %w: remove it first, or give another --name", r.Name, rendezvous.ErrNotifyExists)
	}
	sealer, err := l.Sealer()
	if err != nil {
		return err
	}
	t := rendezvous.NotifyTarget{Name: r.Name, Kind: e.kind(), Shown: e.shown(), On: r.On, By: user,
		Created: time.Now().UTC().Truncate(time.Second)}
	if t.Box, err = e.seal(sealer, r.Name); err == nil {
		err = t.Validate()
	}
	if err != nil {
		return err
	}
	return l.Recorder.Notify(ctx, rendezvous.NotifyChange{Add: &t})
}

func (l *Leader) open(t rendezvous.NotifyTarget) (endpoint, error) {
	sealer, err := l.Sealer()
	if err != nil {
		return endpoint{}, err
	}
	return openEndpoint(sealer, t)
}

// test sends a target something at once, and says why it does not arrive.
func (l *Leader) test(ctx context.Context, c wire.Caller, r wire.NotifyTestRequest) (wire.NotifyTestResponse, error) {
	res := wire.NotifyTestResponse{Host: l.Host}
	if err := c.MustBeRoot("send a test"); err != nil {
		return res, err
	}
	now, _ := l.Record.Notify()
	t, has := now.Targets[r.Name]
	if !has {
		return res, fmt.Errorf("notify %.64q: %w: `sparkrun notify ls` lists them", r.Name, rendezvous.ErrNoNotify)
	}
	e, err := l.open(t)
	if err == nil {
		m := l.message(rendezvous.Notice{Event: "test", At: time.Now()})
		m.User, m.Text = c.User.Name, fmt.Sprintf("a test of sparkrun's notify %s, by %s", t.Name, c.User.Name)
		err = l.send(ctx, e, m)
	}
	if err != nil {
		return res, fmt.Errorf("notify %s from %s: %w", t.Name, l.Host, err)
	}
	return res, nil
}
