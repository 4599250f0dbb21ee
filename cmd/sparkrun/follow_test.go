package main

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
			launch: tells(planned(2), started("spark1"), runs, ended(completed)), out: "[0] hi\n",
		},
		"a failing rank is named": {
			launch: tells(planned(2), started("spark1"), runs, ended(failed7)), code: 7, out: "[0] hi\n",
			said: []string{"rank 1 on spark2: exit 7; the gang was ended"},
		},
		"a gang of one has no others": {
			launch: tells(planned(1), started("spark2"), ended(failed7)), code: 7, out: "[0] hi\n",
			said: []string{"rank 1 on spark2: exit 7"},
		},
		"nothing was started": {
			launch: tells(planned(2), ended(rejected)), code: 125,
			said: []string{`spark2: program "x": not found; no rank was started`},
		},
		"somebody else stopped it": {
			launch: tells(planned(2), started("spark1"), ended(stopped)), code: 143, out: "[0] hi\n",
			said: []string{"job job2345678 was ended: stopped by ada"},
		},
		"a failure without a code is no success": {
			launch: tells(planned(1), started("a"), ended(rendezvous.Outcome{End: rendezvous.Failed})), code: 125, out: "[0] hi\n",
			said: []string{"no cause was recorded"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &fakeGangs{launch: tc.launch, logs: prints(out(0, 0, "hi"))}
				s := newSession(g)
				code, err := s.run(t.Context())
				s.want(t, code, tc.code, err, tc.out, tc.said...)
				if len(g.stops) > 0 {
					t.Errorf("stops were asked for: %q", g.stops)
				}
				if tc.out == "" && g.read > 0 {
					t.Error("output was asked for though no rank was started")
				}
			})
		})
	}
}

// The leader dies under the job: the story is told again by the next, the
// output goes on at the byte where it broke off.
func TestFollowThroughLeaderChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &fakeGangs{}
		begun, over := time.Now(), make(chan struct{})
		g.launch = func(_ context.Context, _ int, tell func(rendezvous.Progress) error) error {
			if err := tellAll(tell, planned(1), started("spark2"), runs); err != nil {
				return err
			}
			time.Sleep(time.Second)
			return fmt.Errorf("spark1: %w", wire.ErrRetry)
		}
		g.watch = func(_ context.Context, n int, tell func(rendezvous.Progress) error) error {
			if time.Since(begun) < 4*time.Second {
				return fmt.Errorf("%w: an election is under way", wire.ErrNoLeader)
			}
			if err := tellAll(tell, planned(1), runs); err != nil {
				return err
			}
			time.Sleep(2 * time.Second)
			close(over)
			return tellAll(tell, ended(completed))
		}
		g.logs = func(ctx context.Context, n int, r wire.LogsRequest, fn func(wire.LogChunk) error) error {
			at := int64(0)
			for _, c := range r.Cursors {
				at = c.Offset
			}
			all := "one\ntwo\nthree\n"
			switch n {
			case 1:
				if err := fn(out(0, 0, all[:6])); err != nil {
					return err
				}
				return wire.ErrUnreachable
			case 2:
				// A server that starts a little before the cursor does no harm.
				if err := fn(out(0, at-2, all[at-2:9])); err != nil {
					return err
				}
				time.Sleep(3 * time.Second)
				return context.Canceled // the agent is being stopped
			}
			if r.Follow {
				<-over
			}
			return fn(out(0, at, all[at:]))
		}
		s := newSession(g)
		code, err := s.run(t.Context())
		s.want(t, code, 0, err, "[0] one\n[0] two\n[0] three\n",
			"no leader: an election is under way; the job goes on meanwhile", "following again")
		if len(g.launched) != 1 {
			t.Errorf("Launch was called %d times: an accepted job must never be submitted again", len(g.launched))
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
			launch: always(noLeader), is: wire.ErrNoLeader, after: [2]time.Duration{leaderlessWait, leaderlessWait + 2*time.Second},
			says: "the only voter", silentOn: "whether it was started",
		},
		"a leader that took it, perhaps": {
			launch: always(wire.ErrRetry), is: wire.ErrRetry, after: [2]time.Duration{patience, patience + 2*time.Second},
			says: "whether it was started is not known: `sparkrun ps` will tell",
		},
		"taken, perhaps, and then no leader": {
			launch: func(_ context.Context, n int, _ func(rendezvous.Progress) error) error {
				if n == 1 {
					return wire.ErrUnreachable
				}
				return noLeader
			},
			is: wire.ErrNoLeader, after: [2]time.Duration{leaderlessWait, leaderlessWait + 2*time.Second}, says: "whether it was started is not known",
		},
		"the agent went away under the request": {
			launch: func(_ context.Context, n int, _ func(rendezvous.Progress) error) error {
				if n == 1 {
					return wire.ErrUnreachable
				}
				return node.ErrNoAgent
			},
			is: node.ErrNoAgent, after: [2]time.Duration{patience, patience + 2*time.Second}, says: "whether it was started is not known",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &fakeGangs{launch: tc.launch}
				s := newSession(g)
				code, err := s.run(t.Context())
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
				for _, id := range g.launched {
					if id != s.spec.ID {
						t.Errorf("asked with id %s: two jobs would start", id)
					}
				}
			})
		})
	}
}

func TestAskedAgainUntilAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &fakeGangs{logs: prints(out(0, 0, "hi\n"))}
		g.launch = func(_ context.Context, n int, tell func(rendezvous.Progress) error) error {
			if n < 4 {
				return wire.ErrRetry
			}
			return tellAll(tell, planned(1), started("a"), ended(completed))
		}
		s := newSession(g)
		code, err := s.run(t.Context())
		s.want(t, code, 0, err, "[0] hi\n") // 350 ms: not worth a word
		if diff := cmp.Diff([]launcher.JobID{"job2345678", "job2345678", "job2345678", "job2345678"}, g.launched); diff != "" {
			t.Error(diff)
		}
	})
}

// `launch ... | head`: the job is no part of the pipe.
func TestBrokenPipe(t *testing.T) {
	tests := map[string]struct {
		json, standalone bool
		said             string
	}{
		"output":     {said: "job job2345678 goes on; `sparkrun logs -f job2345678` follows it, `sparkrun stop job2345678` ends it"},
		"events":     {json: true, said: "job job2345678 goes on; `sparkrun logs -f job2345678` follows it, `sparkrun stop job2345678` ends it"},
		"standalone": {standalone: true, said: "the job ends with it"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &fakeGangs{launch: goesOn(planned(1), started("a"), runs), logs: prints(out(0, 0, "y\n"))}
				s := newSession(g)
				s.standalone = tc.standalone
				s.follower.out = newPrinter(failing{syscall.EPIPE}, io.Discard)
				s.follower.out.json = tc.json
				code, err := s.run(t.Context())
				s.want(t, code, 141, err, "", "write output: broken pipe: "+tc.said)
				if len(g.stops) > 0 {
					t.Errorf("the job was stopped")
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
			g := &fakeGangs{launch: tells(planned(1), started("a"), ended(failed7))}
			g.logs = func(_ context.Context, _ int, _ wire.LogsRequest, fn func(wire.LogChunk) error) error {
				for i := range 5 {
					time.Sleep(8 * time.Second)
					if err := fn(out(0, int64(2*i), "x\n")); err != nil {
						return err
					}
				}
				return nil
			}
			s := newSession(g)
			code, err := s.run(t.Context())
			s.want(t, code, 7, err, strings.Repeat("[0] x\n", 5), "rank 1 on spark2: exit 7")
		})
	})
	t.Run("never comes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := &fakeGangs{launch: tells(planned(1), started("a"), ended(failed7))}
			g.logs = func(ctx context.Context, _ int, _ wire.LogsRequest, fn func(wire.LogChunk) error) error {
				if err := fn(out(0, 0, "x")); err != nil {
					return err
				}
				<-ctx.Done()
				return ctx.Err()
			}
			s := newSession(g)
			code, err := s.run(t.Context())
			s.want(t, code, 7, err, "[0] x\n",
				"some output is out of reach; `sparkrun logs job2345678` tries again", "rank 1 on spark2: exit 7")
			if took := time.Since(s.begun); took < 10*time.Second || took > 13*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	})
	t.Run("is read slowly", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := &fakeGangs{launch: tells(planned(1), started("a"), ended(completed))}
			g.logs = func(ctx context.Context, n int, r wire.LogsRequest, fn func(wire.LogChunk) error) error {
				time.Sleep(time.Second) // all is told by then: the bubble's clock stands while one waits for the printer
				return prints(out(0, 0, "x\n"), out(0, 2, "y\n"))(ctx, n, r, fn)
			}
			s := newSession(g)
			s.follower.out = newPrinter(slow{s.out, time.Minute}, io.Discard)
			code, err := s.run(t.Context())
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
		g := &fakeGangs{launch: tells(planned(2), started("a"), runs, down, up, ended(completed))}
		g.logs = func(_ context.Context, n int, r wire.LogsRequest, fn func(wire.LogChunk) error) error {
			if n == 1 {
				return errors.Join(fn(out(0, 0, "a\n")), fn(wire.LogChunk{Host: "b", Note: "b does not answer"}))
			}
			if r.Follow {
				t.Error("the last look follows")
			}
			return errors.Join(fn(out(0, 0, "a\n")), fn(out(1, 0, "b\n")))
		}
		s := newSession(g)
		code, err := s.run(t.Context())
		s.want(t, code, 0, err, "[0] a\n[1] b\n", "b does not answer")
	})
}

// The record reaches this machine a moment after the leader.
func TestOutputOfAJobNotKnownHereYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &fakeGangs{launch: tells(planned(1), started("a"), runs, ended(completed))}
		g.logs = func(_ context.Context, n int, _ wire.LogsRequest, fn func(wire.LogChunk) error) error {
			if n < 3 {
				return rendezvous.ErrNoJob
			}
			return fn(out(0, 0, "x\n"))
		}
		s := newSession(g)
		code, err := s.run(t.Context())
		s.want(t, code, 0, err, "[0] x\n")
	})
}

func TestDetach(t *testing.T) {
	tests := map[string]struct {
		launch func(context.Context, int, func(rendezvous.Progress) error) error
		code   int
		said   []string
	}{
		"runs":     {launch: goesOn(planned(1), started("a"), runs)},
		"over":     {launch: tells(planned(1), ended(completed))},
		"rejected": {launch: tells(planned(1), ended(rejected)), code: 125, said: []string{`spark2: program "x": not found; no rank was started`}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &fakeGangs{launch: tc.launch}
				s := newSession(g)
				s.detach = true
				code, err := s.run(t.Context())
				s.want(t, code, tc.code, err, "", tc.said...)
				if g.read > 0 || len(g.stops) > 0 {
					t.Error("output was read, or the job stopped")
				}
			})
		})
	}
}

// Each step is printed once, however many leaders tell the story.
func TestEventsAreToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := rendezvous.Progress{Step: rendezvous.StepNodeDown, Host: "b"}
		up := rendezvous.Progress{Step: rendezvous.StepNodeUp, Host: "b"}
		exit := rendezvous.Progress{Step: rendezvous.StepExited, Host: "b", Rank: 1, Exit: &launcher.Exit{}}
		g := &fakeGangs{}
		g.launch = func(_ context.Context, _ int, tell func(rendezvous.Progress) error) error {
			if err := tellAll(tell, planned(2), started("a"), started("b"), runs, down, up, down); err != nil {
				return err
			}
			return wire.ErrRetry
		}
		g.watch = tells(planned(2), down, up, runs, exit, exit, ended(completed))
		s := newSession(g)
		s.follower.out.json = true
		if code, err := s.run(t.Context()); code != 0 || err != nil {
			t.Errorf("code %d, %v", code, err)
		}
		var steps []string
		for line := range strings.Lines(s.follower.outText()) {
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
		n := openNotes(writerFunc(func(b []byte) (int, error) { <-stuck; return len(b), nil }))
		for range 200 {
			n.say("x")
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
		s := newSession(&fakeGangs{launch: func(_ context.Context, _ int, tell func(rendezvous.Progress) error) error {
			end := ended(completed)
			end.OnlyOn = "spark1"
			for _, p := range []rendezvous.Progress{planned(1), {Step: rendezvous.StepAlone, OnlyOn: "spark1"}, started("spark1"), runs, end} {
				if err := tell(p); err != nil {
					return err
				}
			}
			return nil
		}})
		code, err := s.run(t.Context())
		const said = "recorded on spark1 only, until another machine has a copy"
		s.want(t, code, 0, err, "", said, said)
		if p := s.onlyOn.Load(); p == nil || *p != "spark1" {
			t.Errorf("kept for --json: %v", p)
		}
	})
}
