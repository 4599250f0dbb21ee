package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// talk serves one stream in memory and gives the leader's end, and Serve's end.
func talk(ctx context.Context, side NodeSide) (Link, <-chan error) {
	link, stream := Pipe(ctx)
	ended := make(chan error, 1)
	go func() { ended <- side.Serve(ctx, spark2, stream) }()
	return link, ended
}

var firstWord = Down{Hello: &Hello{Fence: launcher.Fence{Epoch: launcher.Epoch{N: 1}, Term: 1}, Leader: "id2",
	Host: "spark2"}}

func TestServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var orders []string
		var gone bool
		side := NodeSide{
			Attach: func(ctx context.Context, h Hello, c Caller, emit func(Up)) (UpHello, error) {
				if h.Host != "spark2" || c.Node != "id2" {
					t.Errorf("attached %+v by %+v", h, c)
				}
				emit(event(launcher.Prepared)) // before the node's own hello is out
				context.AfterFunc(ctx, func() { gone = true })
				return UpHello{Boot: "b", Ledger: []launcher.LedgerEntry{{Key: launcher.Key{Job: "jjjj", Generation: 1}}}}, nil
			},
			Order:  func(o launcher.Order) { orders = append(orders, string(o.End.Job)) },
			Logger: quiet,
		}
		link, ended := talk(t.Context(), side)
		go func() {
			link.Send(firstWord)
			for i := range 3 {
				o := orderFor(fmt.Sprint("job", i))
				link.Send(Down{Order: &o})
			}
			link.Send(Down{})
		}()
		var got []string
		for range 3 {
			u, err := link.Receive()
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case u.Hello != nil:
				got = append(got, "hello "+u.Hello.Boot+" "+u.Hello.Ledger[0].String())
			case u.Event != nil:
				got = append(got, "event")
			default:
				got = append(got, "heartbeat")
			}
		}
		if s := strings.Join(got, ", "); s != "hello b jjjj.1, event, heartbeat" {
			t.Errorf("the node said %s", s)
		}
		link.Close()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
		synctest.Wait()
		if strings.Join(orders, " ") != "job0 job1 job2" || !gone {
			t.Errorf("orders %v, detached %v", orders, gone)
		}
	})
}

func TestServeRefuses(t *testing.T) {
	o := orderFor("jjjj")
	stale := fmt.Errorf("fence 1.1: %w", launcher.ErrStaleFence)
	for name, tt := range map[string]struct {
		first Down
		err   error
	}{
		"a stale leader":       {firstWord, launcher.ErrStaleFence},
		"an order for a hello": {Down{Order: &o}, launcher.ErrInvalid},
		"a heartbeat":          {Down{}, launcher.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				link, ended := talk(t.Context(), NodeSide{
					Attach: func(context.Context, Hello, Caller, func(Up)) (UpHello, error) { return UpHello{}, stale },
					Order:  func(launcher.Order) { t.Error("its order was taken") },
					Logger: quiet,
				})
				link.Send(tt.first)
				link.Send(Down{Order: &o})
				if _, err := link.Receive(); !errors.Is(err, io.EOF) {
					t.Errorf("receive: %v", err)
				}
				if err := <-ended; !errors.Is(err, tt.err) {
					t.Errorf("serve: %v", err)
				}
			})
		})
	}
}

func attachTo(emit *func(Up)) NodeSide {
	return NodeSide{
		Attach: func(_ context.Context, _ Hello, _ Caller, e func(Up)) (UpHello, error) {
			*emit = e
			return UpHello{}, nil
		},
		Order:  func(launcher.Order) {},
		Logger: quiet,
	}
}

func TestSilentLeader(t *testing.T) {
	for name, words := range map[string]int{"from the beginning": 0, "after its hello": 1, "later": 8} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var emit func(Up)
				link, ended := talk(t.Context(), attachTo(&emit))
				go func() {
					for _, err := link.Receive(); err == nil; _, err = link.Receive() {
					}
				}()
				began := time.Now()
				for i := range words {
					if i == 0 {
						link.Send(firstWord)
						continue
					}
					time.Sleep(9 * time.Second)
					link.Send(Down{})
				}
				last := time.Since(began)
				err := <-ended
				if !errors.Is(err, ErrUnreachable) {
					t.Errorf("serve: %v", err)
				}
				if took := time.Since(began) - last; took != 10*time.Second {
					t.Errorf("given up %s after its last word", took)
				}
			})
		})
	}
}

// A leader that does not read must not hold up what happens on the node, nor
// fill its memory: the stream is closed, and the next ledger heals it.
func TestLeaderThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var emit func(Up)
		link, ended := talk(t.Context(), attachTo(&emit))
		link.Send(firstWord)
		synctest.Wait()
		began := time.Now()
		n := 0
		for ; n < 3*maxBacklog; n++ {
			emit(event(launcher.Exited))
		}
		if time.Since(began) != 0 {
			t.Error("emit waited for the leader")
		}
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "100000 messages wait") {
			t.Errorf("serve: %v", err)
		}
	})
}

func TestServeEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var emit func(Up)
		link, ended := talk(ctx, attachTo(&emit))
		link.Send(firstWord)
		cancel()
		<-ended
		if _, err := link.Receive(); !errors.Is(err, io.EOF) {
			t.Errorf("receive: %v", err)
		}
	})
}

// Below: the same over HTTP/2 on a real socket.

func controlServer(t *testing.T, side NodeSide) (c *Client, ended <-chan error) {
	t.Helper()
	ends := make(chan error, 100)
	c = serve(t, spark2, Control.Serve(func(ctx context.Context, c Caller, s ControlStream) error {
		err := side.Serve(ctx, c, s)
		ends <- err
		return err
	}))
	return c, ends
}

func within[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("%s: nothing within a minute", what)
		panic("unreachable")
	}
}

// channels passes on what a leader is told.
type channels struct {
	*diary // for what is not passed on
	ups    chan UpHello
	downs  chan error
	events chan launcher.Event // nil: to the diary
}

func (c channels) NodeUp(_ launcher.NodeID, up UpHello)  { c.ups <- up }
func (c channels) NodeDown(_ launcher.NodeID, err error) { c.downs <- err }
func (c channels) Event(ev launcher.Event) {
	if c.events == nil {
		c.diary.Event(ev)
		return
	}
	c.events <- ev
}

func TestControlOverHTTP(t *testing.T) {
	n, d := newNear(), newDiary(t)
	ledger := make([]launcher.LedgerEntry, 8) // with a thousand ranks each: about 1 MB
	for i := range ledger {
		ledger[i] = full[launcher.LedgerEntry]()
		for range 1000 {
			ledger[i].Ranks = append(ledger[i].Ranks, full[launcher.RankStatus]())
		}
	}
	attach := n.side.Attach
	n.side.Attach = func(ctx context.Context, h Hello, c Caller, emit func(Up)) (UpHello, error) {
		attach(ctx, h, c, emit)
		return UpHello{Boot: "b", Ledger: ledger}, nil
	}
	c, ended := controlServer(t, n.side)
	ups, downs, events := make(chan UpHello, 1), make(chan error, 1), make(chan launcher.Event, 2000)
	cfg := d.config(func(ctx context.Context, _ launcher.NodeID) (Link, error) { return Control.Open(ctx, c), nil })
	cfg.Observer = channels{d, ups, downs, events}
	l, stop := run(t, cfg, "id2")
	up := within(t, "up", ups)
	if dd := diff(ledger, up.Ledger); dd != "" {
		t.Error(dd)
	}
	var both sync.WaitGroup
	both.Go(func() {
		for i := range 1000 {
			l.Send("id2", orderFor(fmt.Sprint("job", i)))
		}
	})
	for i := range 1000 {
		n.tell(Up{Event: &launcher.Event{Kind: launcher.Exited, Rank: i}})
	}
	for i := range 1000 {
		if ev := within(t, "event", events); ev.Rank != i || ev.Node != "id2" {
			t.Fatalf("event %d is %+v", i, ev)
		}
	}
	both.Wait()
	for deadline := time.Now().Add(time.Minute); ; {
		n.mu.Lock()
		got := len(n.orders)
		n.mu.Unlock()
		if got == 1000 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d orders came", got)
		}
		time.Sleep(time.Millisecond)
	}
	for i, job := range n.orders {
		if job != fmt.Sprint("job", i) {
			t.Fatalf("order %d is for %s", i, job)
		}
	}
	stop()
	within(t, "down", downs)
	within(t, "end of the node's side", ended)
}

// The reason why a node refuses reaches the leader with its sentinel.
func TestRefusalOverHTTP(t *testing.T) {
	c, _ := controlServer(t, NodeSide{
		Attach: func(context.Context, Hello, Caller, func(Up)) (UpHello, error) {
			return UpHello{}, fmt.Errorf("fence 1.1: %w: 1.2 has been here", launcher.ErrStaleFence)
		},
		Logger: quiet,
	})
	link := Control.Open(t.Context(), c)
	defer link.Close()
	if err := link.Send(firstWord); err != nil {
		t.Fatal(err)
	}
	if _, err := link.Receive(); !errors.Is(err, launcher.ErrStaleFence) ||
		!strings.Contains(err.Error(), "1.2 has been here") {
		t.Errorf("receive: %v", err)
	}
	for range 100 { // sooner or later a Send learns that the stream has ended
		if err := link.Send(Down{}); err != nil {
			if !errors.Is(err, io.EOF) {
				t.Errorf("send: %v", err)
			}
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := link.Receive(); !errors.Is(err, launcher.ErrStaleFence) {
		t.Errorf("the reason is told once only: %v", err)
	}
}

func TestLeaderHangsUpOverHTTP(t *testing.T) {
	var emit func(Up)
	c, ended := controlServer(t, attachTo(&emit))
	link := Control.Open(t.Context(), c)
	link.Send(firstWord)
	if _, err := link.Receive(); err != nil {
		t.Fatal(err)
	}
	received := make(chan error, 1)
	go func() { _, err := link.Receive(); received <- err }()
	link.Close()
	if err := within(t, "receive", received); !errors.Is(err, context.Canceled) {
		t.Errorf("receive after close: %v", err)
	}
	within(t, "end of the node's side", ended)
	link.Close() // twice is harmless
}

// A leader that keeps the stream open, says nothing and reads nothing: HTTP/2's
// flow control blocks the node's writer, and still the stream must end.
func TestStuckLeaderOverHTTP(t *testing.T) {
	for name, floods := range map[string]bool{"silence": false, "silence, and the window is full": true} {
		t.Run(name, func(t *testing.T) {
			emits := make(chan func(Up), 1)
			side := NodeSide{
				Attach: func(_ context.Context, _ Hello, _ Caller, e func(Up)) (UpHello, error) {
					emits <- e
					return UpHello{}, nil
				},
				Logger: quiet, Silence: 300 * time.Millisecond,
			}
			c, ended := controlServer(t, side)
			link := Control.Open(t.Context(), c)
			defer link.Close()
			link.Send(firstWord)
			emit := within(t, "attach", emits)
			if floods {
				for range maxBacklog / 2 {
					emit(Up{Event: &launcher.Event{Text: strings.Repeat("x", 200)}})
				}
			}
			if err := within(t, "end of the node's side", ended); !errors.Is(err, ErrUnreachable) {
				t.Errorf("serve: %v", err)
			}
			var err error
			for err == nil {
				_, err = link.Receive()
			}
			if !floods && !strings.Contains(err.Error(), "leader at spark2: does not answer for 300ms") {
				t.Errorf("the leader is told %v", err)
			}
		})
	}
}

// A node's side of the stream ends while the node answers: the leader has the
// next stream at once, and the node was never down.
func TestStreamIsOpenedAnewOverHTTP(t *testing.T) {
	n, d := newNear(), newDiary(t)
	die := make(chan struct{})
	c := serve(t, spark2, Control.Serve(func(ctx context.Context, c Caller, s ControlStream) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		gone := make(chan struct{})
		defer func() { <-gone }()
		go func() {
			defer close(gone)
			select {
			case <-die:
				cancel()
			case <-ctx.Done():
			}
		}()
		defer cancel()
		return n.side.Serve(ctx, c, s)
	}))
	cfg := d.config(func(ctx context.Context, _ launcher.NodeID) (Link, error) { return Control.Open(ctx, c), nil })
	ups, downs := make(chan UpHello, 9), make(chan error, 9)
	cfg.Observer = channels{d, ups, downs, nil}
	cfg.Silence, cfg.Ping = time.Second, 50*time.Millisecond
	_, stop := run(t, cfg, "id2")
	within(t, "up", ups)
	select { // heartbeats alone keep the stream
	case err := <-downs:
		t.Fatalf("a quiet stream went down: %v", err)
	case <-time.After(1500 * time.Millisecond):
	}
	die <- struct{}{}
	within(t, "up again", ups)
	stop()
	if len(downs) != 1 {
		t.Errorf("down %d times, want the end's only", len(downs))
	}
	within(t, "down at the end", downs)
}
