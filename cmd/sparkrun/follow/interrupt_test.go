package follow

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

func TestInterrupts(t *testing.T) {
	const (
		stopping = "stopping; the ranks have 10s (again to kill)"
		killing  = "killing (again to leave without waiting)"
		gone     = "stopped: every rank has ended"
	)
	tests := map[string]struct {
		signals    []os.Signal
		standalone bool
		endsAfter  int // stops; 0 = never
		stop       func(n int, r wire.StopRequest) error
		outcome    rendezvous.Outcome
		code       int
		stops      []string
		said       []string
	}{
		"once ends": {
			signals: []os.Signal{os.Interrupt}, endsAfter: 1, outcome: apptest.Stopped, code: 130,
			stops: []string{"its own"}, said: []string{stopping, gone},
		},
		"TERM is the same with its own code": {
			signals: []os.Signal{syscall.SIGTERM}, endsAfter: 1, outcome: apptest.Stopped, code: 143,
			stops: []string{"its own"}, said: []string{stopping, gone},
		},
		"without a machine": {
			signals: []os.Signal{os.Interrupt}, endsAfter: 1, code: 130, stops: []string{"its own"},
			outcome: rendezvous.Outcome{End: rendezvous.Stopped, ExitCode: 143,
				Cause: "stopped by root on spark1; not every rank was seen to end: spark2 has not answered for 1m0s"},
			said: []string{stopping, "stopped: not every rank was seen to end: spark2 has not answered for 1m0s"},
		},
		"twice kills": {
			signals: []os.Signal{os.Interrupt, os.Interrupt}, endsAfter: 2, outcome: apptest.Stopped, code: 130,
			stops: []string{"its own", "0s"}, said: []string{stopping, killing, gone},
		},
		"three times leaves": {
			signals: []os.Signal{os.Interrupt, os.Interrupt, os.Interrupt}, code: 130,
			stops: []string{"its own", "0s"},
			said:  []string{stopping, killing, "not waiting any longer; `sparkrun ps` shows whether job job2345678 has ended"},
		},
		"a rank that failed by itself keeps its code": {
			signals: []os.Signal{os.Interrupt}, endsAfter: 1, outcome: apptest.Failed7, code: 7,
			stops: []string{"its own"}, said: []string{stopping, "rank 1 on spark2: exit 7; the job was ended"},
		},
		"asked until heard": {
			signals: []os.Signal{os.Interrupt}, endsAfter: 3, outcome: apptest.Stopped, code: 130,
			stop: func(n int, _ wire.StopRequest) error {
				if n < 3 {
					return wire.ErrNoLeader
				}
				return nil
			},
			stops: []string{"its own", "its own", "its own"}, said: []string{stopping, gone},
		},
		"refused": {
			signals: []os.Signal{os.Interrupt, os.Interrupt, os.Interrupt}, code: 130,
			stop:  func(int, wire.StopRequest) error { return wire.ErrDenied },
			stops: []string{"its own", "0s"},
			said: []string{stopping, "stop job job2345678: not allowed", killing, "stop job job2345678: not allowed",
				"not waiting any longer; `sparkrun ps` shows whether job job2345678 has ended"},
		},
		"a hang-up leaves the job alone": {
			signals: []os.Signal{syscall.SIGHUP}, code: 129,
			said: []string{"hung up: job job2345678 goes on; `sparkrun logs -f job2345678` follows it, `sparkrun stop job2345678` ends it"},
		},
		"a hang-up leaves an ending job alone, too": {
			signals: []os.Signal{os.Interrupt, syscall.SIGHUP}, code: 129, stops: []string{"its own"},
			said: []string{stopping, "hung up: job job2345678 was asked to end; `sparkrun ps` shows whether it has"},
		},
		"a hang-up ends a standalone job": {
			signals: []os.Signal{syscall.SIGHUP}, standalone: true, endsAfter: 1, outcome: apptest.Stopped, code: 129,
			stops: []string{"its own"}, said: []string{stopping, gone},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &apptest.FakeRunner{}
				enough := make(chan struct{})
				g.OnStop = func(n int, r wire.StopRequest) error {
					if n == tc.endsAfter {
						close(enough)
					}
					if tc.stop != nil {
						return tc.stop(n, r)
					}
					return nil
				}
				g.OnLaunch = func(ctx context.Context, _ int, tell func(rendezvous.Progress) error) error {
					if err := apptest.TellAll(tell, apptest.Planned(2), apptest.Started("spark1"), apptest.Runs); err != nil {
						return err
					}
					select {
					case <-enough:
						return apptest.TellAll(tell, apptest.Ended(tc.outcome))
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				s := newSession(g)
				s.Standalone = tc.standalone
				go func() {
					for _, sig := range tc.signals {
						time.Sleep(time.Second)
						s.signal <- sig
					}
				}()
				code, err := s.Run(t.Context())
				s.want(t, code, tc.code, err, "", tc.said...)
				if diff := cmp.Diff(tc.stops, g.Stops); diff != "" {
					t.Errorf("stops -want +got:\n%s", diff)
				}
			})
		})
	}
}

// Ctrl-C while the leader is still recording the job: it may come to life any
// moment, and must be ended then.
func TestInterruptBeforeAcceptance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recorded, enough := make(chan struct{}), make(chan struct{})
		g := &apptest.FakeRunner{}
		g.OnLaunch = func(_ context.Context, _ int, tell func(rendezvous.Progress) error) error {
			time.Sleep(3 * time.Second)
			close(recorded)
			if err := apptest.TellAll(tell, apptest.Planned(1)); err != nil {
				return err
			}
			<-enough
			return apptest.TellAll(tell, apptest.Ended(apptest.Stopped))
		}
		g.OnStop = func(int, wire.StopRequest) error {
			if !closed(recorded) {
				return rendezvous.ErrNoJob
			}
			close(enough)
			return nil
		}
		s := newSession(g)
		s.signal <- os.Interrupt
		code, err := s.Run(t.Context())
		s.want(t, code, 130, err, "", "stopping; the ranks have 10s (again to kill)", "stopped: every rank has ended")
	})
}

// A service that comes up while it is asked to end is not left alone: the ask has to be heard.
func TestInterruptAsItGetsReady(t *testing.T) {
	for _, detach := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			heard := make(chan struct{})
			g := &apptest.FakeRunner{}
			g.OnLaunch = func(ctx context.Context, _ int, tell func(rendezvous.Progress) error) error {
				if err := apptest.TellAll(tell, apptest.Planned(1), apptest.Started("spark1")); err != nil {
					return err
				}
				time.Sleep(2 * time.Second)
				ready := rendezvous.Progress{Step: rendezvous.StepServes, Text: "the service answers",
					Service: &launcher.ServiceSeen{State: launcher.ServiceReady}}
				if err := apptest.TellAll(tell, apptest.Runs, ready); err != nil {
					return err
				}
				select {
				case <-heard:
					return apptest.TellAll(tell, apptest.Ended(apptest.Stopped))
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			g.OnStop = func(int, wire.StopRequest) error {
				time.Sleep(5 * time.Second) // its leader is busy
				close(heard)
				return nil
			}
			s := newSession(g)
			s.Detach = detach
			go func() { time.Sleep(time.Second); s.signal <- os.Interrupt }()
			code, err := s.Run(t.Context())
			if code != 130 || err != nil || !closed(heard) {
				t.Errorf("detached %v: code %d, %v, heard %v", detach, code, err, closed(heard))
			}
		})
	}
}

func TestInterruptWithoutLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &apptest.FakeRunner{
			OnLaunch: func(context.Context, int, func(rendezvous.Progress) error) error { return wire.ErrNoLeader },
			OnStop:   func(int, wire.StopRequest) error { return wire.ErrNoLeader },
		}
		s := newSession(g)
		go func() { time.Sleep(200 * time.Millisecond); s.signal <- os.Interrupt }()
		code, err := s.Run(t.Context())
		if code != 130 || !errors.Is(err, errInterrupted) || !strings.Contains(err.Error(), "nothing was started") {
			t.Errorf("code %d, %v", code, err)
		}
		if took := time.Since(s.begun); took > time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// A leader dies with a stop that it had not passed on: the next one is asked too,
// by stop and by a launch that was interrupted.
func TestStopOutlivesALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSession(apptest.LosesLeader())
		go func() {
			time.Sleep(time.Second)
			s.signal <- os.Interrupt
		}()
		code, err := s.Run(t.Context())
		s.want(t, code, 130, err, "", "stopping; the ranks have 10s (again to kill)", "stopped: every rank has ended")
	})
}

// Who looks at another user's job leaves it by the first Ctrl-C or TERM, and ends nothing.
func TestInterruptOfOthersJob(t *testing.T) {
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		synctest.Test(t, func(t *testing.T) {
			g := &apptest.FakeRunner{OnWatch: apptest.GoesOn(apptest.Planned(1), apptest.Started("a"), apptest.Runs),
				OnLogs: func(ctx context.Context, _ int, _ wire.LogsRequest, _ func(wire.LogChunk) error) error {
					<-ctx.Done()
					return ctx.Err()
				}}
			s := newSession(g)
			signals := make(chan os.Signal, 1)
			s.Attached, s.Others, s.Heard, s.Runs, s.Signals = true, true, 1, true, signals
			s.Follower.Spec.User = "zeta"
			time.AfterFunc(time.Second, func() { signals <- sig })
			code, err := s.Run(t.Context())
			s.want(t, code, 128+int(sig.(syscall.Signal)), err, "", "left: job job2345678 of zeta goes on")
			if len(g.Stops) > 0 {
				t.Errorf("stops: %q", g.Stops)
			}
		})
	}
}

// A service that is looked at goes on when who looks leaves: only stop ends it.
func TestInterruptOfAnAttachedService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &apptest.FakeRunner{OnWatch: apptest.GoesOn(apptest.Planned(1), apptest.Started("a"), apptest.Runs),
			OnLogs: func(ctx context.Context, _ int, _ wire.LogsRequest, _ func(wire.LogChunk) error) error {
				<-ctx.Done()
				return ctx.Err()
			}}
		s := newSession(g)
		signals := make(chan os.Signal, 1)
		s.Attached, s.Heard, s.Runs, s.Signals = true, 1, true, signals
		s.Follower.Spec.Service = &launcher.Service{}
		time.AfterFunc(time.Second, func() { signals <- os.Interrupt })
		code, err := s.Run(t.Context())
		s.want(t, code, 130, err, "", "left: job job2345678 goes on; `sparkrun stop job2345678` ends it")
		if len(g.Stops) > 0 {
			t.Errorf("stops: %q", g.Stops)
		}
	})
}
