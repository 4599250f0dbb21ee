package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
)

// diary notes what a leader is told, and that no two callbacks of one node run
// at the same time.
type diary struct {
	t     testing.TB
	began time.Time
	onUp  func(launcher.NodeID) // nil: nothing more than a line

	mu    sync.Mutex
	lines map[launcher.NodeID][]string
	when  map[launcher.NodeID][]time.Duration
	busy  map[launcher.NodeID]bool
	pause map[string]time.Duration // by the first word of a line
}

func newDiary(t testing.TB) *diary {
	return &diary{t: t, began: time.Now(), lines: map[launcher.NodeID][]string{},
		when: map[launcher.NodeID][]time.Duration{},
		busy: map[launcher.NodeID]bool{}, pause: map[string]time.Duration{}}
}

func (d *diary) note(id launcher.NodeID, format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	d.mu.Lock()
	if d.busy[id] {
		d.t.Errorf("%s: %q while another callback runs", id, line)
	}
	d.busy[id] = true
	d.lines[id] = append(d.lines[id], line)
	d.when[id] = append(d.when[id], time.Since(d.began))
	first, _, _ := strings.Cut(line, " ")
	pause := d.pause[first]
	d.mu.Unlock()
	if pause > 0 {
		time.Sleep(pause)
	}
	d.mu.Lock()
	d.busy[id] = false
	d.mu.Unlock()
}

func (d *diary) of(id launcher.NodeID) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.lines[id])
}

// words are the first words of a node's lines.
func (d *diary) words(id launcher.NodeID) string {
	var out []string
	for _, l := range d.of(id) {
		w, _, _ := strings.Cut(l, " ")
		out = append(out, w)
	}
	return strings.Join(out, " ")
}

func (d *diary) config(dial func(context.Context, launcher.NodeID) (Link, error)) LinksConfig {
	return LinksConfig{
		Hello: Hello{Fence: launcher.Fence{Epoch: launcher.Epoch{N: 1}, Term: 5}, Leader: "id1", Host: "spark1"},
		Dial:  dial, Observer: d, Logger: quiet,
	}
}

func (d *diary) NodeUp(id launcher.NodeID, up UpHello) {
	if d.onUp != nil {
		d.onUp(id)
	}
	d.note(id, "up %s", up.Boot)
}

func (d *diary) NodeDown(id launcher.NodeID, err error) { d.note(id, "down %v", err) }
func (d *diary) Event(ev launcher.Event)                { d.note(ev.Node, "event %s", ev.Kind) }
func (d *diary) Inventory(id launcher.NodeID, inv envgen.Inventory) {
	d.note(id, "inventory %s", inv.Host)
}

// run starts links for some nodes and returns what ends them.
func run(t testing.TB, cfg LinksConfig, nodes ...launcher.NodeID) (l *Links, stop func()) {
	t.Helper()
	l, err := NewLinks(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l.Want(nodes)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	return l, func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("run: %v", err)
		}
	}
}

// near is a node in memory.
type near struct {
	side NodeSide

	mu     sync.Mutex
	emit   func(Up)
	orders []string
	dials  []time.Duration
	began  time.Time
	refuse error // by Dial
	ended  []error
}

func newNear() *near {
	n := &near{began: time.Now()}
	n.side = NodeSide{
		Attach: func(_ context.Context, _ Hello, _ Caller, emit func(Up)) (UpHello, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.emit = emit
			return UpHello{Boot: "b"}, nil
		},
		Order: func(o launcher.Order) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.orders = append(n.orders, string(o.End.Job))
		},
		Logger: quiet,
	}
	return n
}

func (n *near) dial(ctx context.Context, _ launcher.NodeID) (Link, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dials = append(n.dials, time.Since(n.began))
	if n.refuse != nil {
		return nil, n.refuse
	}
	link, stream := Pipe(ctx)
	go func() {
		err := n.side.Serve(ctx, Caller{Node: "id1"}, stream)
		n.mu.Lock()
		n.ended = append(n.ended, err)
		n.mu.Unlock()
		link.Close()
	}()
	return link, nil
}

func (n *near) tell(ups ...Up) {
	n.mu.Lock()
	emit := n.emit
	n.mu.Unlock()
	for _, u := range ups {
		emit(u)
	}
}

func event(kind launcher.EventKind) Up {
	return Up{Event: &launcher.Event{Node: "somebody else", Kind: kind}}
}

func TestLinksTellInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, d := newNear(), newDiary(t)
		_, stop := run(t, d.config(n.dial), "id2")
		synctest.Wait()
		n.tell(event(launcher.Prepared), Up{Inventory: &envgen.Inventory{Host: "spark2"}}, event(launcher.Started), Up{})
		time.Sleep(20 * time.Second) // heartbeats keep it up
		stop()
		want := []string{"up b", "event prepared", "inventory spark2", "event started", "down context canceled"}
		if dd := diff(want, d.of("id2")); dd != "" { // under the name the stream proves
			t.Error(dd)
		}
		if len(n.dials) != 1 {
			t.Errorf("dialled %d times", len(n.dials))
		}
	})
}

// An idle leader is woken once a second by all its nodes together: each gets one ping and answers it, at one moment
// for all, whenever its stream was opened.
func TestPingsComeTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDiary(t)
		var mu sync.Mutex
		moments, pings := map[time.Time]bool{}, 0
		near := newNear()
		_, stop := run(t, d.config(func(ctx context.Context, id launcher.NodeID) (Link, error) {
			time.Sleep(time.Duration(len(id)) * 37 * time.Millisecond) // none opens with another
			link, err := near.dial(ctx, id)
			return &counted{Link: link, sent: func() {
				mu.Lock()
				defer mu.Unlock()
				pings++
				moments[time.Now()] = true
			}}, err
		}), "a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg")
		time.Sleep(10*time.Second + 500*time.Millisecond) // between two pings
		mu.Lock()
		clear(moments)
		pings = 0
		mu.Unlock()
		time.Sleep(time.Minute)
		stop()
		if len(moments) > 60 || pings > 7*60 {
			t.Errorf("%d pings at %d moments of a minute", pings, len(moments))
		}
	})
}

// counted tells of each message that is sent.
type counted struct {
	Link
	sent func()
}

func (c *counted) Send(d Down) error {
	c.sent()
	return c.Link.Send(d)
}

func TestOrdersKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, d := newNear(), newDiary(t)
		cfg := d.config(n.dial)
		var l *Links
		d.onUp = func(id launcher.NodeID) { l.Send(id, orderFor("first")) } // as the leader does when it reads the ledger
		l, err := NewLinks(cfg)
		if err != nil {
			t.Fatal(err)
		}
		l.Want([]launcher.NodeID{"id2"})
		l.Send("id2", orderFor("lost")) // no stream yet
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { l.Run(ctx) })
		synctest.Wait()
		want := []string{"first"}
		for i := range 500 {
			job := fmt.Sprintf("job%d", i)
			want = append(want, job)
			l.Send("id2", orderFor(job))
			l.Send("stranger", orderFor("lost"))
			if i%100 == 0 {
				time.Sleep(time.Second) // pings in between
			}
		}
		synctest.Wait()
		cancel()
		wg.Wait()
		l.Send("id2", orderFor("late"))
		if dd := diff(want, n.orders); dd != "" {
			t.Error(dd)
		}
	})
}

func TestLinksComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, d := newNear(), newDiary(t)
		off := errors.New("switched off")
		n.refuse = off
		l, stop := run(t, d.config(n.dial), "id2")
		time.Sleep(9 * time.Second)
		n.mu.Lock()
		var got []string
		for _, at := range n.dials {
			got = append(got, at.String())
		}
		n.mu.Unlock()
		want := "0s 100ms 300ms 700ms 1.5s 3.1s 5.1s 7.1s" // the pause doubles up to 2 s
		if s := strings.Join(got, " "); s != want {
			t.Errorf("dialled at %s, want %s", s, want)
		}
		n.mu.Lock()
		n.refuse = nil
		n.mu.Unlock()
		l.Kick("id2")
		l.Kick("stranger")
		synctest.Wait()
		if d.words("id2") != "up" {
			t.Errorf("a kicked node was not dialled at once: %q", d.of("id2"))
		}
		stop()
	})
}

func TestStreamThatEndsIsDialledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDiary(t)
		streams := make(chan ControlStream, 9)
		_, stop := run(t, d.config(func(ctx context.Context, _ launcher.NodeID) (Link, error) {
			link, s := Pipe(ctx)
			streams <- s
			return link, nil
		}), "id2")
		for i := range 3 {
			s := <-streams
			if h, err := s.Receive(); err != nil || h.Hello == nil || h.Hello.Fence.Term != 5 {
				t.Errorf("first word %+v, %v", h, err)
			}
			s.Send(Up{Hello: &UpHello{Boot: fmt.Sprint(i)}})
			s.Send(event(launcher.Ended))
			s.Close()
		}
		s := <-streams
		stop()
		s.Close()
		if got, want := d.words("id2"), strings.TrimSpace(strings.Repeat("up event down ", 3)); got != want {
			t.Errorf("told %s, want %s", got, want)
		}
		if took := time.Since(d.began); took > time.Second {
			t.Errorf("three streams took %s", took)
		}
	})
}

// A stream that breaks under a node that answers over another route, or that is
// to take another route, is opened anew: the node is never down.
func TestStreamIsOpenedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, d := newNear(), newDiary(t)
		var last Link
		l, stop := run(t, d.config(func(ctx context.Context, id launcher.NodeID) (link Link, err error) {
			link, err = n.dial(ctx, id)
			last = link
			return link, err
		}), "id2")
		time.Sleep(5 * time.Second)
		n.tell(event(launcher.Prepared))
		synctest.Wait()
		broke := time.Now()
		last.Close()
		synctest.Wait()
		n.tell(event(launcher.Started))
		l.Send("id2", orderFor("after the break"))
		synctest.Wait()
		if took := time.Since(broke); took != 0 {
			t.Errorf("the next stream came after %s", took)
		}
		time.Sleep(5 * time.Second)
		for range 3 { // however young the stream is that is to move
			l.Reopen("id2")
			l.Reopen("stranger")
			synctest.Wait()
		}
		l.Send("id2", orderFor("over the other route"))
		synctest.Wait()
		if got, want := d.words("id2"), "up event up event up up up"; got != want {
			t.Errorf("told %s, want %s", got, want)
		}
		if dd := diff([]string{"after the break", "over the other route"}, n.orders); dd != "" {
			t.Error(dd)
		}
		stop()
	})
}

// A stream that breaks and cannot be opened again within Reopen: the node is
// down, once.
func TestStreamThatCannotBeOpenedAnew(t *testing.T) {
	for name, refuse := range map[string]bool{"refused": true, "silent": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, d := newNear(), newDiary(t)
				var last Link
				var dead atomic.Bool
				_, stop := run(t, d.config(func(ctx context.Context, id launcher.NodeID) (link Link, err error) {
					if dead.Load() && !refuse {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					link, err = n.dial(ctx, id)
					last = link
					return link, err
				}), "id2")
				time.Sleep(5 * time.Second)
				dead.Store(true)
				n.mu.Lock()
				if refuse {
					n.refuse = errors.New("refused")
				}
				n.mu.Unlock()
				last.Close()
				time.Sleep(10 * time.Second)
				stop()
				if got := d.words("id2"); got != "up down" {
					t.Fatalf("told %s", got)
				}
				if at := d.when["id2"][1]; at > 6*time.Second {
					t.Errorf("down after %s", at)
				}
			})
		})
	}
}

// stuck is a link to a peer whose power went: nothing fails, nothing comes.
type stuck struct {
	hello  bool // it said hello before
	closed chan struct{}
	once   sync.Once
	mu     sync.Mutex
	said   bool
}

func (s *stuck) Send(Down) error {
	s.mu.Lock()
	first := s.hello && !s.said
	s.mu.Unlock()
	if first {
		return nil
	}
	<-s.closed
	return io.EOF
}

func (s *stuck) Receive() (Up, error) {
	s.mu.Lock()
	first := s.hello && !s.said
	s.said = true
	s.mu.Unlock()
	if first {
		return Up{Hello: &UpHello{Boot: "b"}}, nil
	}
	<-s.closed
	return Up{}, io.EOF
}

func (s *stuck) Close() { s.once.Do(func() { close(s.closed) }) }

func TestSilenceIsKnownWithin3s(t *testing.T) {
	for name, hello := range map[string]bool{"in mid-stream": true, "from the beginning": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDiary(t)
				var links []*stuck
				_, stop := run(t, d.config(func(context.Context, launcher.NodeID) (Link, error) {
					links = append(links, &stuck{hello: hello, closed: make(chan struct{})})
					return links[len(links)-1], nil
				}), "id2")
				time.Sleep(5500 * time.Millisecond)
				stop()
				if !hello {
					if d.words("id2") != "" || len(links) != 2 {
						t.Errorf("told %q after %d dials", d.of("id2"), len(links))
					}
					return
				}
				lines := d.of("id2")
				if len(lines) < 4 || lines[0] != "up b" || !strings.Contains(lines[1], "does not answer for 2.5s") {
					t.Fatalf("told %q", lines)
				}
				if at := d.when["id2"][1]; at > 3*time.Second {
					t.Errorf("the silence was known after %s", at)
				}
			})
		})
	}
}

func TestDialThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDiary(t)
		dials := 0
		_, stop := run(t, d.config(func(ctx context.Context, _ launcher.NodeID) (Link, error) {
			dials++
			<-ctx.Done()
			return nil, ctx.Err()
		}), "id2")
		time.Sleep(11 * time.Second)
		stop()
		if dials != 3 || d.words("id2") != "" {
			t.Errorf("%d dials, told %q", dials, d.of("id2"))
		}
	})
}

// A handshake and a long ledger take a busy node longer than a heartbeat.
func TestSlowHelloIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, d := newNear(), newDiary(t)
		n.side.Attach = func(context.Context, Hello, Caller, func(Up)) (UpHello, error) {
			time.Sleep(4 * time.Second)
			return UpHello{Boot: "b"}, nil
		}
		_, stop := run(t, d.config(n.dial), "id2")
		time.Sleep(10 * time.Second)
		if d.words("id2") != "up" {
			t.Errorf("told %q", d.of("id2"))
		}
		stop()
	})
}

// The leader's own slowness is not the node's silence.
func TestSlowCallbackIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, d := newNear(), newDiary(t)
		d.pause["up"], d.pause["event"] = 5*time.Second, 5*time.Second
		_, stop := run(t, d.config(n.dial), "id2")
		time.Sleep(time.Second)
		n.tell(event(launcher.Prepared), event(launcher.Started))
		time.Sleep(30 * time.Second)
		if got := d.words("id2"); got != "up event event" {
			t.Errorf("told %s", got)
		}
		stop()
	})
}

func TestWant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, d := newNear(), newDiary(t)
		l, stop := run(t, d.config(n.dial), "id2")
		synctest.Wait()
		l.Want([]launcher.NodeID{"id2", "id3"})
		l.Want([]launcher.NodeID{"id2", "id3"})
		synctest.Wait()
		if d.words("id2") != "up" || d.words("id3") != "up" {
			t.Errorf("told %q and %q", d.of("id2"), d.of("id3"))
		}
		// Struck, and a member again at once, while the leader is still busy
		// with the end of the old stream.
		d.mu.Lock()
		d.pause["down"] = time.Second
		d.mu.Unlock()
		l.Want([]launcher.NodeID{"id3"})
		synctest.Wait()
		l.Want([]launcher.NodeID{"id3", "id2"})
		l.Want([]launcher.NodeID{"id3"})
		l.Want([]launcher.NodeID{"id3", "id2"})
		time.Sleep(5 * time.Second)
		if got := d.words("id2"); got != "up down up" {
			t.Errorf("told %s", got)
		}
		stop()
		if a, b := d.words("id2"), d.words("id3"); a != "up down up down" || b != "up down" {
			t.Errorf("told %s and %s", a, b)
		}
		l.Want([]launcher.NodeID{"id9"}) // after the end
		l.Kick("id9")
		time.Sleep(time.Second)
		if d.words("id9") != "" {
			t.Error("dialled after Run had ended")
		}
	})
}

func TestFirstWordMustBeHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDiary(t)
		_, stop := run(t, d.config(func(ctx context.Context, _ launcher.NodeID) (Link, error) {
			link, s := Pipe(ctx)
			go func() {
				for s.Send(event(launcher.Ended)) == nil {
				}
			}()
			return link, nil
		}), "id2")
		time.Sleep(3 * time.Second)
		stop()
		if d.words("id2") != "" {
			t.Errorf("told %q", d.of("id2"))
		}
	})
}

func TestNewLinksWantsAll(t *testing.T) {
	d := newDiary(t)
	dial := func(context.Context, launcher.NodeID) (Link, error) { return nil, nil }
	for name, change := range map[string]func(*LinksConfig){
		"Dial":     func(c *LinksConfig) { c.Dial = nil },
		"Observer": func(c *LinksConfig) { c.Observer = nil },
		"Logger":   func(c *LinksConfig) { c.Logger = nil },
	} {
		c := d.config(dial)
		change(&c)
		if _, err := NewLinks(c); err == nil {
			t.Errorf("links without %s were made", name)
		}
	}
}
