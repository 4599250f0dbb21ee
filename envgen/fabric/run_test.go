package fabric

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
)

// world is a machine in memory: its links and its events.
type world struct {
	mu    sync.Mutex
	links []Link
	fail  error
	reads int
	slow  time.Duration // a read takes so long
	poke  func()
}

func (w *world) list(context.Context) ([]Link, error) {
	time.Sleep(w.slow)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads++
	if w.fail != nil {
		return nil, w.fail
	}
	return append([]Link(nil), w.links...), nil
}

func (w *world) set(fail error, links ...Link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail, w.links = fail, links
}

func (w *world) events(ctx context.Context, poke func()) error {
	w.mu.Lock()
	w.poke = poke
	w.mu.Unlock()
	<-ctx.Done()
	return nil
}

// start runs a reader of the world in the bubble and returns when each change was told, since the start.
func start(t *testing.T, w *world, cfg Config) (news func() []time.Duration, stop func() error) {
	t.Helper()
	cfg.Sysfs = t.TempDir()
	cfg.Links = w.list
	if cfg.Events == nil {
		cfg.Events = w.events
	}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	begin := time.Now()
	var mu sync.Mutex
	var at []time.Duration
	done := make(chan error, 1)
	go func() {
		done <- r.Run(ctx, func(envgen.Inventory) {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Since(begin))
		})
	}()
	synctest.Wait()
	return func() []time.Duration {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return append([]time.Duration(nil), at...)
		}, func() error {
			cancel(errStopped)
			return <-done
		}
}

var errStopped = errors.New("stopped by the test")

func wantNews(t *testing.T, got []time.Duration, want ...time.Duration) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("told at %v, want %v", got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("told at %v, want %v", got, want)
		}
	}
}

func TestRunTellsOfEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{links: []Link{{Name: "a"}}}
		news, stop := start(t, w, Config{})
		wantNews(t, news(), 0)

		time.Sleep(3 * time.Second)
		w.set(nil, Link{Name: "b"})
		for range 50 { // a burst costs one read and is told once, 100 ms after its first event
			w.poke()
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		wantNews(t, news(), 0, 3100*time.Millisecond)

		w.poke() // nothing has changed: nothing is told
		time.Sleep(5 * time.Second)
		wantNews(t, news(), 0, 3100*time.Millisecond)

		if err := stop(); !errors.Is(err, errStopped) {
			t.Errorf("Run gave %v, want the cause", err)
		}
	})
}

// A tree that takes seconds to read must not take the machine with it, and its news must still come by events.
func TestRunIsNoBurdenWhereReadingIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = 5 * time.Second
		w := &world{links: []Link{{Name: "a"}}, slow: slow}
		news, stop := start(t, w, Config{})
		time.Sleep(10 * time.Minute)
		w.mu.Lock()
		reads := w.reads
		w.mu.Unlock()
		if most := int(10 * time.Minute / (10 * slow)); reads < most/2 || reads > most+2 {
			t.Errorf("%d reads of %s in 10 min, want about %d", reads, slow, most)
		}
		w.set(nil, Link{Name: "b"})
		before := len(news())
		w.poke()
		time.Sleep(3 * slow)
		if len(news()) != before+1 {
			t.Error("an event waited for the next re-read")
		}
		if err := stop(); !errors.Is(err, errStopped) {
			t.Errorf("Run gave %v, want the cause", err)
		}
	})
}

// Under a storm of events news must still come out, not wait for its end.
func TestRunInAStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{links: []Link{{Name: "a"}}}
		news, stop := start(t, w, Config{})
		w.set(nil, Link{Name: "b"})
		for range 200 {
			w.poke()
			time.Sleep(10 * time.Millisecond)
		}
		wantNews(t, news(), 0, 100*time.Millisecond)
		w.mu.Lock()
		if w.reads > 25 {
			t.Errorf("%d reads in 2 s of events, want at most one each 100 ms", w.reads)
		}
		w.mu.Unlock()
		stop()
	})
}

// The GID table is filled after the event of its address: the second read sees it.
func TestRunReadsAgainAfterAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{links: []Link{{Name: "a"}}}
		news, stop := start(t, w, Config{})
		w.poke()
		time.Sleep(500 * time.Millisecond)
		w.set(nil, Link{Name: "b"}) // no event of its own
		time.Sleep(700 * time.Millisecond)
		wantNews(t, news(), 0, 1100*time.Millisecond)
		stop()
	})
}

// After an event the tables that follow it are looked at sooner, and then as seldom as before.
func TestRunSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		_, stop := start(t, w, Config{})
		reads := func() int {
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.reads
		}
		w.poke()
		before := reads()
		begin := time.Now()
		for _, step := range []struct {
			at   time.Duration
			more int
		}{{99, 0}, {100, 1}, {1099, 1}, {1100, 2}, {3099, 2}, {3100, 3}, {7099, 3}, {7100, 4}, {15_099, 4}, {15_100, 5}, {25_099, 5}, {25_100, 6}, {35_100, 7}} {
			time.Sleep(step.at*time.Millisecond - time.Since(begin))
			if got := reads() - before; got != step.more {
				t.Errorf("%d reads %d ms after an event, want %d", got, step.at, step.more)
			}
		}
		if err := stop(); !errors.Is(err, errStopped) {
			t.Error(err)
		}
	})
}

func TestRunRereads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{links: []Link{{Name: "a"}}}
		news, stop := start(t, w, Config{})
		w.set(nil, Link{Name: "b"})
		time.Sleep(30 * time.Second)
		wantNews(t, news(), 0, 10*time.Second)
		stop()
	})
}

// A read that fails leaves the last inventory standing and is said once it happens; the next good one counts.
func TestRunSurvivesABadRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := &world{links: []Link{{Name: "a"}}}
		news, stop := start(t, w, Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
		w.set(errors.New("netlink is full"))
		time.Sleep(15 * time.Second)
		w.set(nil, Link{Name: "b"})
		time.Sleep(15 * time.Second)
		wantNews(t, news(), 0, 20*time.Second)
		stop()
		if !strings.Contains(log.String(), "netlink is full") {
			t.Errorf("the log lacks the cause: %s", log.String())
		}
	})
}

// An event source that breaks is opened again; what happened meanwhile is seen.
func TestRunSubscribesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{links: []Link{{Name: "a"}}}
		opened := 0
		news, stop := start(t, w, Config{Reread: 10 * time.Second, Events: func(ctx context.Context, poke func()) error {
			if opened++; opened == 1 {
				return errors.New("no buffer")
			}
			poke()
			<-ctx.Done()
			return nil
		}})
		time.Sleep(9 * time.Second)
		wantNews(t, news(), 0)
		time.Sleep(1500 * time.Millisecond)
		w.set(nil, Link{Name: "b"})
		time.Sleep(time.Second)
		if got := news(); len(got) != 2 || got[1] > 11500*time.Millisecond {
			t.Errorf("told at %v, want news soon after the second subscription", got)
		}
		stop()
		if opened != 2 {
			t.Errorf("subscribed %d times, want 2", opened)
		}
	})
}

func TestRunWithoutAFirstRead(t *testing.T) {
	w := &world{fail: errors.New("no netlink here")}
	r, err := New(Config{Sysfs: t.TempDir(), Links: w.list, Events: w.events})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(t.Context(), func(envgen.Inventory) { t.Error("told of nothing") }); err == nil || !strings.Contains(err.Error(), "no netlink here") {
		t.Errorf("got %v", err)
	}
}
