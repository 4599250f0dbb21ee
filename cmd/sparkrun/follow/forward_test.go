package follow

import (
	"context"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Ranks that were suspended by Ctrl-Z go on when the terminal closes: nobody is left
// to wake them. Those that were woken before, or never suspended, hear nothing.
func TestHangUpResumesWhatWasSuspended(t *testing.T) {
	const stop, cont = int(syscall.SIGTSTP), int(syscall.SIGCONT)
	for name, tc := range map[string]struct {
		before []syscall.Signal
		fails  func(int) error
		want   []int
	}{
		"never":     {nil, nil, nil},
		"suspended": {[]syscall.Signal{syscall.SIGTSTP}, nil, []int{stop, cont}},
		"woken":     {[]syscall.Signal{syscall.SIGTSTP, syscall.SIGCONT}, nil, []int{stop, cont}},
		"again": {[]syscall.Signal{syscall.SIGTSTP, syscall.SIGCONT, syscall.SIGTSTP}, nil,
			[]int{stop, cont, stop, cont}},
		"an agent restarts meanwhile": {[]syscall.Signal{syscall.SIGTSTP}, func(call int) error {
			if call == 2 {
				return wire.ErrUnreachable
			}
			return nil
		}, []int{stop, cont, cont}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				to := &apptest.FakeRanks{Fails: tc.fails}
				s := newSession(&apptest.FakeRunner{Ranks: to, OnLaunch: func(ctx context.Context, _ int,
					tell func(rendezvous.Progress) error) error {
					if err := apptest.TellAll(tell, apptest.Planned(1), apptest.Started("spark1"), apptest.Runs); err != nil {
						return err
					}
					<-ctx.Done()
					return ctx.Err()
				}})
				for _, sig := range tc.before {
					s.passOn(t.Context(), sig)
				}
				go func() { time.Sleep(time.Second); s.signal <- syscall.SIGHUP }()
				code, err := s.Run(t.Context())
				if err != nil || code != 129 || !slices.Equal(to.Signals, tc.want) {
					t.Errorf("code %d, %v; the ranks got %v, want %v", code, err, to.Signals, tc.want)
				}
			})
		})
	}
}

// A hang-up does not wait for ever for ranks that nobody can reach.
func TestHangUpLeavesAllTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &apptest.FakeRanks{}
		f := &Follower{Agent: apptest.Agent(to), Say: func(string) {}}
		f.passOn(t.Context(), syscall.SIGTSTP)
		to.Fails = func(int) error { return wire.ErrUnreachable }
		began := time.Now()
		f.resume(t.Context())
		if took := time.Since(began); took != resumeWithin {
			t.Errorf("it took %s", took)
		}
		synctest.Wait()
	})
}

// Whatever goes down on the way, each byte arrives once, and then the end.
func TestFeedSendsEachByteOnce(t *testing.T) {
	text := strings.Repeat("0123456789", 10000)
	f := &apptest.FakeRanks{Fails: func(call int) error {
		if call%2 == 1 {
			return wire.ErrUnreachable // after it was written
		}
		return nil
	}}
	Feed(t.Context(), f.Input, wire.InputRequest{Job: "abcd"}, strings.NewReader(text), func(s string) { t.Error(s) })
	if f.Got.String() != text || !f.Ended {
		t.Errorf("%d of %d bytes, ended %v", f.Got.Len(), len(text), f.Ended)
	}
}

// A rank that reads no more is like a closed pipe: nothing to complain about.
func TestFeedStopsWithItsReaders(t *testing.T) {
	f := &apptest.FakeRanks{Fails: func(int) error { return wire.ErrNoReader }}
	Feed(t.Context(), f.Input, wire.InputRequest{Job: "abcd"}, endless{}, func(s string) { t.Error(s) })
	var said string
	f = &apptest.FakeRanks{Fails: func(int) error { return wire.ErrDenied }}
	Feed(t.Context(), f.Input, wire.InputRequest{Job: "abcd"}, endless{}, func(s string) { said = s })
	if !strings.Contains(said, "no more input: "+wire.ErrDenied.Error()) {
		t.Errorf("said %q", said)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

func TestForwardedSignal(t *testing.T) {
	f := &apptest.FakeRanks{}
	Forward(t.Context(), f.Signal, "abcd", syscall.SIGUSR1, func(s string) { t.Error(s) })
	if len(f.Signals) != 1 || f.Signals[0] != int(syscall.SIGUSR1) {
		t.Errorf("signals %v", f.Signals)
	}
}
