package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

func TestFollow(t *testing.T) {
	tests := map[string]struct {
		launch func(context.Context, int, func(rendezvous.Progress) error) error
		code   int
		out    string
		said   []string
	}{
		"success says nothing": {
			launch: apptest.Tells(apptest.Planned(2), apptest.Started("spark1"), apptest.Runs,
				apptest.Ended(apptest.Completed)), out: "[0] hi\n",
		},
		"a failing rank is named": {
			launch: apptest.Tells(apptest.Planned(2), apptest.Started("spark1"), apptest.Runs,
				apptest.Ended(apptest.Failed7)), code: 7, out: "[0] hi\n",
			said: []string{"rank 1 on spark2: exit 7; the job was ended"},
		},
		"a job of one rank has no others": {
			launch: apptest.Tells(apptest.Planned(1), apptest.Started("spark2"), apptest.Ended(apptest.Failed7)),
			code:   7, out: "[0] hi\n",
			said: []string{"rank 1 on spark2: exit 7"},
		},
		"nothing was started": {
			launch: apptest.Tells(apptest.Planned(2), apptest.Ended(apptest.Rejected)), code: 125,
			said: []string{`spark2: program "x": not found; no rank was started`},
		},
		"somebody else stopped it": {
			launch: apptest.Tells(apptest.Planned(2), apptest.Started("spark1"), apptest.Ended(apptest.Stopped)),
			code:   143, out: "[0] hi\n",
			said: []string{"job job2345678 was ended: stopped by ada"},
		},
		"a failure without a code is no success": {
			launch: apptest.Tells(apptest.Planned(1), apptest.Started("a"),
				apptest.Ended(rendezvous.Outcome{End: rendezvous.Failed})), code: 125, out: "[0] hi\n",
			said: []string{"no cause was recorded"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &apptest.FakeRunner{OnLaunch: tc.launch, OnLogs: apptest.Prints(apptest.Out(0, 0, "hi"))}
				s := newSession(g)
				code, err := s.Run(t.Context())
				s.want(t, code, tc.code, err, tc.out, tc.said...)
				if len(g.Stops) > 0 {
					t.Errorf("stops were asked for: %q", g.Stops)
				}
				if tc.out == "" && g.Read > 0 {
					t.Error("output was asked for though no rank was started")
				}
			})
		})
	}
}

// The leader dies under the job: the event log is told again by the next, the
// output goes on at the byte where it broke off.
func TestFollowThroughLeaderChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &apptest.FakeRunner{}
		begun, over := time.Now(), make(chan struct{})
		g.OnLaunch = func(_ context.Context, _ int, tell func(rendezvous.Progress) error) error {
			if err := apptest.TellAll(tell, apptest.Planned(1), apptest.Started("spark2"), apptest.Runs); err != nil {
				return err
			}
			time.Sleep(time.Second)
			return fmt.Errorf("spark1: %w", wire.ErrRetry)
		}
		g.OnWatch = func(_ context.Context, n int, tell func(rendezvous.Progress) error) error {
			if time.Since(begun) < 4*time.Second {
				return fmt.Errorf("%w: an election is under way", wire.ErrNoLeader)
			}
			if err := apptest.TellAll(tell, apptest.Planned(1), apptest.Runs); err != nil {
				return err
			}
			time.Sleep(2 * time.Second)
			close(over)
			return apptest.TellAll(tell, apptest.Ended(apptest.Completed))
		}
		g.OnLogs = func(ctx context.Context, n int, r wire.LogsRequest, fn func(wire.LogChunk) error) error {
			at := int64(0)
			for _, c := range r.Cursors {
				at = c.Offset
			}
			all := "one\ntwo\nthree\n"
			switch n {
			case 1:
				if err := fn(apptest.Out(0, 0, all[:6])); err != nil {
					return err
				}
				return wire.ErrUnreachable
			case 2:
				// A server that starts a little before the cursor does no harm.
				if err := fn(apptest.Out(0, at-2, all[at-2:9])); err != nil {
					return err
				}
				time.Sleep(3 * time.Second)
				return context.Canceled // the agent is being stopped
			}
			if r.Follow {
				<-over
			}
			return fn(apptest.Out(0, at, all[at:]))
		}
		s := newSession(g)
		code, err := s.Run(t.Context())
		s.want(t, code, 0, err, "[0] one\n[0] two\n[0] three\n",
			"no leader: an election is under way; the job goes on meanwhile", "following again")
		if len(g.Launched) != 1 {
			t.Errorf("Launch was called %d times: an accepted job must never be submitted again", len(g.Launched))
		}
	})
}

// Before the job is accepted: what is asked again, for how long, with which id.
func TestBeforeAcceptance(t *testing.T) {
	always := func(err error) func(context.Context, int, func(rendezvous.Progress) error) error {
		return func(context.Context, int, func(rendezvous.Progress) error) error { return err }
	}
	noLeader := fmt.Errorf("%w: spark1, the only voter, does not answer", wire.ErrNoLeader)
	tests := map[string]struct {
		launch   func(context.Context, int, func(rendezvous.Progress) error) error
		after    [2]time.Duration // it ends between these
		is       error
		says     string
		silentOn string
	}{
		"no agent": {
			launch: always(node.ErrNoAgent), is: node.ErrNoAgent, silentOn: "whether it was started",
		},
		"refused": {
			launch: always(rendezvous.ErrCannotPlace), is: rendezvous.ErrCannotPlace,
		},
		"no leader for long": {
			launch: always(noLeader), is: wire.ErrNoLeader,
			after: [2]time.Duration{LeaderlessWait, LeaderlessWait + 2*time.Second},
			says:  "the only voter", silentOn: "whether it was started",
		},
		"a leader that took it, perhaps": {
			launch: always(wire.ErrRetry), is: wire.ErrRetry,
			after: [2]time.Duration{app.Patience, app.Patience + 2*time.Second},
			says:  "whether it was started is not known: `sparkrun ps` will tell",
		},
		"taken, perhaps, and then no leader": {
			launch: func(_ context.Context, n int, _ func(rendezvous.Progress) error) error {
				if n == 1 {
					return wire.ErrUnreachable
				}
				return noLeader
			},
			is: wire.ErrNoLeader, after: [2]time.Duration{LeaderlessWait, LeaderlessWait + 2*time.Second},
			says: "whether it was started is not known",
		},
		"the agent went away under the request": {
			launch: func(_ context.Context, n int, _ func(rendezvous.Progress) error) error {
				if n == 1 {
					return wire.ErrUnreachable
				}
				return node.ErrNoAgent
			},
			is: node.ErrNoAgent, after: [2]time.Duration{app.Patience, app.Patience + 2*time.Second},
			says: "whether it was started is not known",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &apptest.FakeRunner{OnLaunch: tc.launch}
				s := newSession(g)
				code, err := s.Run(t.Context())
				took := time.Since(s.begun)
				if code != launcher.ExitOwnFailure || !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("code %d, %v", code, err)
				}
				if tc.silentOn != "" && strings.Contains(err.Error(), tc.silentOn) {
					t.Errorf("it claims too much: %v", err)
				}
				// The error is the one line about it.
				if errors.Is(err, wire.ErrNoLeader) {
					s.wantSaid(t)
				}
				if took < tc.after[0] || took > tc.after[1] {
					t.Errorf("ended after %s, want %s to %s", took, tc.after[0], tc.after[1])
				}
				for _, id := range g.Launched {
					if id != s.Spec.ID {
						t.Errorf("asked with id %s: two jobs would start", id)
					}
				}
			})
		})
	}
}

func TestAskedAgainUntilAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &apptest.FakeRunner{OnLogs: apptest.Prints(apptest.Out(0, 0, "hi\n"))}
		g.OnLaunch = func(_ context.Context, n int, tell func(rendezvous.Progress) error) error {
			if n < 4 {
				return wire.ErrRetry
			}
			return apptest.TellAll(tell, apptest.Planned(1), apptest.Started("a"), apptest.Ended(apptest.Completed))
		}
		s := newSession(g)
		code, err := s.Run(t.Context())
		s.want(t, code, 0, err, "[0] hi\n") // 350 ms: not worth a word
		if diff := cmp.Diff([]launcher.JobID{"job2345678", "job2345678", "job2345678", "job2345678"},
			g.Launched); diff != "" {
			t.Error(diff)
		}
	})
}

// `launch ... | head` ends the job, as it ends a program; where its output is no pipe, or the job is another's
// launch or a service, the job goes on.
func TestBrokenPipe(t *testing.T) {
	const goesOn = "job job2345678 goes on; `sparkrun logs -f job2345678` follows it, `sparkrun stop job2345678` ends it"
	tests := map[string]struct {
		json, standalone, attached bool
		service                    *launcher.Service
		broken                     error
		hangup                     bool // SIGHUP comes just after it
		code                       int
		said                       string // empty: the job was stopped
	}{
		"output":     {code: 141},
		"events":     {json: true, code: 141},
		"standalone": {standalone: true, code: 141, said: "write output: broken pipe: the job ends with it"},
		"attached":   {attached: true, code: 141, said: "write output: broken pipe: " + goesOn},
		"a service":  {service: &launcher.Service{}, code: 141, said: "write output: broken pipe: " + goesOn},
		"full disk":  {broken: syscall.ENOSPC, code: 125, said: "write output: no space left on device: " + goesOn},
		"bad disk":   {broken: syscall.EIO, code: 125, said: "write output: input/output error: " + goesOn},
		"hung up":    {broken: syscall.EIO, hangup: true, code: 129, said: "hung up: " + goesOn},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				events := apptest.GoesOn(apptest.Planned(1), apptest.Started("a"), apptest.Runs)
				g := &apptest.FakeRunner{OnLaunch: events, OnWatch: events,
					OnLogs: apptest.Prints(apptest.Out(0, 0, "y\n"))}
				s := newSession(g)
				s.Standalone, s.Attached, s.Follower.Spec.Service = tc.standalone, tc.attached, tc.service
				if tc.attached {
					s.Heard, s.Runs = 1, true
				}
				if tc.broken == nil {
					tc.broken = syscall.EPIPE
				}
				s.Follower.Out = NewPrinter(apptest.Failing{Err: tc.broken}, io.Discard)
				s.Follower.Out.json = tc.json
				if tc.hangup {
					go func() { time.Sleep(10 * time.Millisecond); s.signal <- syscall.SIGHUP }()
				}
				code, err := s.Run(t.Context())
				var said []string
				if tc.said != "" {
					said = append(said, tc.said)
				}
				s.want(t, code, tc.code, err, "", said...)
				if stopped := len(g.Stops) > 0; stopped != (tc.said == "") {
					t.Errorf("stops: %q", g.Stops)
				}
			})
		})
	}
}

// Output may come after the end of the job is known; output that never comes
// must not hold the exit code back for ever.
func TestLateOutput(t *testing.T) {
	t.Run("comes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := &apptest.FakeRunner{OnLaunch: apptest.Tells(apptest.Planned(1), apptest.Started("a"),
				apptest.Ended(apptest.Failed7))}
			g.OnLogs = func(_ context.Context, _ int, _ wire.LogsRequest, fn func(wire.LogChunk) error) error {
				for i := range 5 {
					time.Sleep(8 * time.Second)
					if err := fn(apptest.Out(0, int64(2*i), "x\n")); err != nil {
						return err
					}
				}
				return nil
			}
			s := newSession(g)
			code, err := s.Run(t.Context())
			s.want(t, code, 7, err, strings.Repeat("[0] x\n", 5), "rank 1 on spark2: exit 7")
		})
	})
	t.Run("never comes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := &apptest.FakeRunner{OnLaunch: apptest.Tells(apptest.Planned(1), apptest.Started("a"),
				apptest.Ended(apptest.Failed7))}
			g.OnLogs = func(ctx context.Context, _ int, _ wire.LogsRequest, fn func(wire.LogChunk) error) error {
				if err := fn(apptest.Out(0, 0, "x")); err != nil {
					return err
				}
				<-ctx.Done()
				return ctx.Err()
			}
			s := newSession(g)
			code, err := s.Run(t.Context())
			s.want(t, code, 7, err, "[0] x\n",
				"some output is out of reach; `sparkrun logs job2345678` tries again", "rank 1 on spark2: exit 7")
			if took := time.Since(s.begun); took < 10*time.Second || took > 13*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	})
	t.Run("is read slowly", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := &apptest.FakeRunner{OnLaunch: apptest.Tells(apptest.Planned(1), apptest.Started("a"),
				apptest.Ended(apptest.Completed))}
			g.OnLogs = func(ctx context.Context, n int, r wire.LogsRequest, fn func(wire.LogChunk) error) error {
				time.Sleep(time.Second) // all is told by then: the bubble's clock stands while one waits for the printer
				return apptest.Prints(apptest.Out(0, 0, "x\n"), apptest.Out(0, 2, "y\n"))(ctx, n, r, fn)
			}
			s := newSession(g)
			s.Follower.Out = NewPrinter(slow{s.out, time.Minute}, io.Discard)
			code, err := s.Run(t.Context())
			s.want(t, code, 0, err, "[0] x\n[0] y\n")
		})
	})
}

type slow struct {
	w  io.Writer
	by time.Duration
}

func (s slow) Write(b []byte) (int, error) {
	time.Sleep(s.by)
	return s.w.Write(b)
}

// A node that was away while the output was read is asked once more.
func TestOutputOfANodeThatWasAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := rendezvous.Progress{Step: rendezvous.StepNodeDown, Host: "b"}
		up := rendezvous.Progress{Step: rendezvous.StepNodeUp, Host: "b"}
		g := &apptest.FakeRunner{OnLaunch: apptest.Tells(apptest.Planned(2), apptest.Started("a"), apptest.Runs, down,
			up, apptest.Ended(apptest.Completed))}
		g.OnLogs = func(_ context.Context, n int, r wire.LogsRequest, fn func(wire.LogChunk) error) error {
			if n == 1 {
				return errors.Join(fn(apptest.Out(0, 0, "a\n")), fn(wire.LogChunk{Host: "b", Note: "b does not answer"}))
			}
			if r.Follow {
				t.Error("the last look follows")
			}
			return errors.Join(fn(apptest.Out(0, 0, "a\n")), fn(apptest.Out(1, 0, "b\n")))
		}
		s := newSession(g)
		code, err := s.Run(t.Context())
		s.want(t, code, 0, err, "[0] a\n[1] b\n", "b does not answer")
	})
}

// The record reaches this machine a moment after the leader.
func TestOutputOfAJobNotKnownHereYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &apptest.FakeRunner{OnLaunch: apptest.Tells(apptest.Planned(1), apptest.Started("a"), apptest.Runs,
			apptest.Ended(apptest.Completed))}
		g.OnLogs = func(_ context.Context, n int, _ wire.LogsRequest, fn func(wire.LogChunk) error) error {
			if n < 3 {
				return rendezvous.ErrNoJob
			}
			return fn(apptest.Out(0, 0, "x\n"))
		}
		s := newSession(g)
		code, err := s.Run(t.Context())
		s.want(t, code, 0, err, "[0] x\n")
	})
}

func TestDetach(t *testing.T) {
	tests := map[string]struct {
		launch func(context.Context, int, func(rendezvous.Progress) error) error
		code   int
		said   []string
	}{
		"runs": {launch: apptest.GoesOn(apptest.Planned(1), apptest.Started("a"), apptest.Runs)},
		"over": {launch: apptest.Tells(apptest.Planned(1), apptest.Ended(apptest.Completed))},
		"rejected": {launch: apptest.Tells(apptest.Planned(1), apptest.Ended(apptest.Rejected)), code: 125,
			said: []string{`spark2: program "x": not found; no rank was started`}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &apptest.FakeRunner{OnLaunch: tc.launch}
				s := newSession(g)
				s.Detach = true
				code, err := s.Run(t.Context())
				s.want(t, code, tc.code, err, "", tc.said...)
				if g.Read > 0 || len(g.Stops) > 0 {
					t.Error("output was read, or the job stopped")
				}
			})
		})
	}
}

// Each step is printed once, however many leaders tell the event log.
func TestEventsAreToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := rendezvous.Progress{Step: rendezvous.StepNodeDown, Host: "b"}
		up := rendezvous.Progress{Step: rendezvous.StepNodeUp, Host: "b"}
		exit := rendezvous.Progress{Step: rendezvous.StepExited, Host: "b", Rank: new(1), Exit: &launcher.Exit{}}
		g := &apptest.FakeRunner{}
		g.OnLaunch = func(_ context.Context, _ int, tell func(rendezvous.Progress) error) error {
			if err := apptest.TellAll(tell, apptest.Planned(2), apptest.Started("a"), apptest.Started("b"),
				apptest.Runs, down, up, down); err != nil {
				return err
			}
			return wire.ErrRetry
		}
		g.OnWatch = apptest.Tells(apptest.Planned(2), down, up, apptest.Runs, exit, exit, apptest.Ended(apptest.Completed))
		s := newSession(g)
		s.Follower.Out.json = true
		if code, err := s.Run(t.Context()); code != 0 || err != nil {
			t.Errorf("code %d, %v", code, err)
		}
		var steps []string
		for line := range strings.Lines(s.Follower.outText()) {
			_, rest, _ := strings.Cut(line, `"step":"`)
			step, _, _ := strings.Cut(rest, `"`)
			steps = append(steps, step)
		}
		want := "planned started started running node-down node-up node-down node-up exited ended"
		if diff := cmp.Diff(want, strings.Join(steps, " ")); diff != "" {
			t.Error(diff)
		}
	})
}

// A launch that cannot say anything any more still hears Ctrl-C.
func TestNotesNeverBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		n := OpenNotes(apptest.WriterFunc(func(b []byte) (int, error) { <-stuck; return len(b), nil }))
		for range 200 {
			n.Say("x")
		}
		begun := time.Now()
		n.Close()
		if took := time.Since(begun); took != time.Second {
			t.Errorf("Close took %s", took)
		}
		close(stuck)
		<-n.done
	})
}

// What one machine alone has recorded is said, of the job's plan and of its end.
func TestOneCopyIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSession(&apptest.FakeRunner{OnLaunch: func(_ context.Context, _ int,
			tell func(rendezvous.Progress) error) error {
			end := apptest.Ended(apptest.Completed)
			end.OnlyOn = "spark1"
			for _, p := range []rendezvous.Progress{apptest.Planned(1), {Step: rendezvous.StepAlone, OnlyOn: "spark1"},
				apptest.Started("spark1"), apptest.Runs, end} {
				if err := tell(p); err != nil {
					return err
				}
			}
			return nil
		}})
		code, err := s.Run(t.Context())
		const said = "recorded on spark1 only, until another machine has a copy"
		s.want(t, code, 0, err, "", said, said)
		if p := s.OnlyOn.Load(); p == nil || *p != "spark1" {
			t.Errorf("kept for --json: %v", p)
		}
	})
}
