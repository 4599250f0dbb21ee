package wire

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// prover is a leader's proof, and a diary of proofs and echoes.
type prover struct {
	mu     sync.Mutex
	takes  time.Duration
	fails  bool
	began  []time.Time
	echoed map[launcher.NodeID]launcher.Uptime // what OnEcho told last
}

func (p *prover) prove(ctx context.Context) error {
	p.mu.Lock()
	p.began = append(p.began, time.Now())
	takes := p.takes
	p.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fails {
		return errors.New("somebody else leads")
	}
	return ctx.Err()
}

func (p *prover) onEcho(id launcher.NodeID, boot string, at launcher.Uptime) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.echoed[id] = at
}

// leasing makes a node in memory stamp, and note what came back and when.
func leasing(t *testing.T, n *near, p *prover, boot time.Time) *[]time.Time {
	var renewed []time.Time
	uptime := func() launcher.Uptime { return launcher.Uptime(time.Since(boot)) }
	n.side.Uptime = uptime
	n.side.Renew = func(at launcher.Uptime) {
		p.mu.Lock()
		defer p.mu.Unlock()
		made := boot.Add(time.Duration(at))
		if !slices.ContainsFunc(p.began,
			func(b time.Time) bool { return !b.Before(made) && !b.Add(p.takes).After(time.Now()) }) {
			t.Errorf("the stamp of %s came back at %s, with no proof in between: proofs began at %v", made, time.Now(), p.began)
		}
		if p.echoed["id2"] < at && p.echoed["id3"] < at {
			t.Errorf("the echo left before it was noted")
		}
		renewed = append(renewed, made)
	}
	return &renewed
}

// A stamp comes back only after a proof that began behind it, however slow proofs
// are; one proof serves all nodes; without one nobody hears anything.
func TestEchoFollowsTheProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &prover{takes: 700 * time.Millisecond, echoed: map[launcher.NodeID]launcher.Uptime{}}
		two, three, d := newNear(), newNear(), newDiary(t)
		boot := time.Now().Add(-time.Hour)
		of2, of3 := leasing(t, two, p, boot), leasing(t, three, p, boot.Add(time.Minute))
		cfg := d.config(func(ctx context.Context, id launcher.NodeID) (Link, error) {
			if id == "id2" {
				return two.dial(ctx, id)
			}
			return three.dial(ctx, id)
		})
		cfg.Prove, cfg.OnEcho = p.prove, p.onEcho
		_, stop := run(t, cfg, "id2", "id3")
		defer stop()
		time.Sleep(20 * time.Second)
		p.mu.Lock()
		if a, b, proofs := len(*of2), len(*of3), len(p.began); a < 10 || b < 10 || proofs > max(a, b)+2 {
			t.Errorf("%d and %d echoes by %d proofs in 20 s", a, b, proofs)
		}
		if age := time.Since((*of2)[len(*of2)-1]); age > 3*time.Second {
			t.Errorf("the last echo is of a stamp %s old", age)
		}
		p.fails = true
		before := len(*of2)
		p.mu.Unlock()
		time.Sleep(time.Minute)
		p.mu.Lock()
		defer p.mu.Unlock()
		if n := len(*of2) - before; n > 1 { // one may have been on its way
			t.Errorf("%d echoes without a proof", n)
		}
		if words := d.words("id2"); words != "up" {
			t.Errorf("the leader was told %q", words)
		}
	})
}

// A stamp of a stream that has broken since is echoed on no other.
func TestNoEchoOnAnotherStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &prover{takes: time.Second, echoed: map[launcher.NodeID]launcher.Uptime{}}
		n, d := newNear(), newDiary(t)
		boot := time.Now().Add(-time.Hour)
		of := leasing(t, n, p, boot)
		cfg := d.config(n.dial)
		cfg.Prove, cfg.OnEcho = p.prove, p.onEcho
		l, stop := run(t, cfg, "id2")
		time.Sleep(500 * time.Millisecond) // the hello's stamp is being proven
		anew := time.Now()
		l.Reopen("id2")
		time.Sleep(10 * time.Second)
		stop()
		synctest.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(*of) == 0 {
			t.Fatal("no echo on the new stream")
		}
		for _, made := range *of {
			if made.Before(anew) {
				t.Errorf("the stamp of %s before came back", anew.Sub(made))
			}
		}
	})
}

// A node takes nothing that it has not stamped on this stream, as of another boot
// of it; one that gives no leases neither stamps nor listens.
func TestNodeTakesItsOwnStampsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []launcher.Uptime
		boot := time.Now().Add(-time.Minute)
		var emit func(Up)
		side := attachTo(&emit)
		side.Uptime = func() launcher.Uptime { return launcher.Uptime(time.Since(boot)) }
		side.Renew = func(at launcher.Uptime) { got = append(got, at) }
		link, ended := talk(t.Context(), side)
		link.Send(firstWord)
		hello, err := link.Receive()
		if err != nil || hello.Hello.Stamp == 0 {
			t.Fatalf("hello %+v, %v", hello, err)
		}
		first := hello.Hello.Stamp
		time.Sleep(time.Second)
		link.Send(Down{Ping: 1})
		up, err := link.Receive()
		if err != nil {
			t.Fatal(err)
		}
		last := up.Pong.Stamp
		for _, at := range []launcher.Uptime{first, last, last + 1, first - 1, launcher.Uptime(time.Hour)} {
			link.Send(Down{Echo: at})
		}
		synctest.Wait()
		if want := []launcher.Uptime{first, last}; !slices.Equal(got, want) {
			t.Errorf("took %v, want %v", got, want)
		}
		link.Close()
		<-ended

		plain, ended := talk(t.Context(), attachTo(&emit))
		plain.Send(firstWord)
		if hello, err := plain.Receive(); err != nil || hello.Hello.Stamp != 0 {
			t.Errorf("hello %+v, %v", hello, err)
		}
		plain.Send(Down{Echo: 1})
		plain.Send(Down{Ping: 1})
		if up, err := plain.Receive(); err != nil || up.Pong.Stamp != 0 {
			t.Errorf("pong %+v, %v", up, err)
		}
		plain.Close()
		<-ended
	})
}
