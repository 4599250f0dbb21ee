package discover

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"
)

// fakeWire is a group of one: a test says what comes, and reads what is sent and when.
type fakeWire struct {
	in     chan []byte
	from   netip.AddrPort
	fail   error // of send
	began  time.Time
	closed chan struct{}
	once   sync.Once

	mu   sync.Mutex
	sent [][]byte
	at   []time.Duration
}

func newFakeWire() *fakeWire {
	return &fakeWire{in: make(chan []byte), from: addrPort("10.0.0.9:5353"), began: time.Now(),
		closed: make(chan struct{})}
}

func (w *fakeWire) receive(buf []byte) (int, netip.AddrPort, error) {
	select {
	case p := <-w.in:
		return copy(buf, p), w.from, nil
	case <-w.closed:
		return 0, netip.AddrPort{}, net.ErrClosed
	}
}

func (w *fakeWire) send(p []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fail != nil {
		return w.fail
	}
	w.sent, w.at = append(w.sent, p), append(w.at, time.Since(w.began))
	return nil
}

func (w *fakeWire) close() { w.once.Do(func() { close(w.closed) }) }

// since are the times of what was sent after the first n, in whole steps.
func (w *fakeWire) since(n int, step time.Duration) []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []time.Duration
	for _, at := range w.at[n:] {
		out = append(out, at.Truncate(step))
	}
	return out
}

func browsing(t *testing.T) []byte {
	t.Helper()
	b, err := (&dnsmessage.Message{Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(Members + local),
		Type: dnsmessage.TypePTR, Class: dnsmessage.ClassINET}}}).Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestWhenItIsAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, w, q := announced(t, member("spark1", "10.0.0.1:7940")), newFakeWire(), browsing(t)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- announce(ctx, w, a) }()
		want := func(what string, n int, step time.Duration, at ...time.Duration) {
			t.Helper()
			synctest.Wait()
			if diff := cmp.Diff(at, w.since(n, step)); diff != "" {
				t.Errorf("%s, -want +got:\n%s", what, diff)
			}
		}
		time.Sleep(10 * time.Second)
		want("unasked", 0, time.Second, 0, time.Second, 3*time.Second)

		w.in <- q // at 10 s
		time.Sleep(answerAfter - time.Millisecond)
		want("at once", 3, time.Second)
		time.Sleep(answerWithin)
		want("asked", 3, 200*time.Millisecond, 10*time.Second)

		for range 50 { // until 15 s: an answer a second is all that a flood gets
			w.in <- q
			w.in <- []byte("nonsense")
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
		if n := len(w.since(4, 1)); n < 4 || n > 6 {
			t.Errorf("%d packets for five seconds of questions", n)
		}
		w.mu.Lock()
		for i := 1; i < len(w.at); i++ {
			if gap := w.at[i] - w.at[i-1]; gap < mostOften {
				t.Errorf("a packet %s after another", gap)
			}
		}
		w.mu.Unlock()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if last := w.sent[len(w.sent)-1]; !bytes.Equal(last, a.goodbye) {
			t.Error("its last word is no good-bye")
		}
	})
}

func TestALinkThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := announced(t, member("spark1", "10.0.0.1:7940"))
		w := newFakeWire()
		w.fail = errors.New("network is down")
		if err := announce(t.Context(), w, a); err != w.fail {
			t.Errorf("announce: %v", err)
		}
		if _, err := browse(t.Context(), w, newFinder("eth0", Members)); err != w.fail {
			t.Errorf("browse: %v", err)
		}
		w = newFakeWire()
		w.close()
		if err := announce(t.Context(), w, a); !errors.Is(err, net.ErrClosed) {
			t.Errorf("announce: %v", err)
		}
	})
}

func TestWhenItIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFakeWire()
		go func() {
			w.in <- announced(t, member("spark1", "10.0.0.1:7940")).packet
			w.in <- sshAnswer(t, "spark2", "spark2.local.", [4]byte{10, 0, 0, 2})
		}()
		got, err := browse(t.Context(), w, newFinder("eth0", SSH))
		if err != nil || len(got) != 1 || got[0].Addr != addrPort("10.0.0.2:22") {
			t.Errorf("found %+v, %v", got, err)
		}
		if took := time.Since(w.began); took != browseFor {
			t.Errorf("it took %s", took)
		}
		if diff := cmp.Diff([]time.Duration{0, time.Second}, w.since(0, 1)); diff != "" {
			t.Errorf("asked, -want +got:\n%s", diff)
		}
	})
}

// A flood is read at a bounded pace, and what came before it still counts.
func TestFloodIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, n := newFakeWire(), 0
		ended := listen(w, func([]byte, netip.AddrPort) { n++ })
		stop := time.After(10 * time.Second)
		for flooding := true; flooding; {
			select {
			case w.in <- []byte("x"):
			case <-stop:
				flooding = false
			}
		}
		w.close()
		<-ended
		if n < 9*packetRate || n > 11*packetRate {
			t.Errorf("%d packets were read in ten seconds", n)
		}
	})
}
