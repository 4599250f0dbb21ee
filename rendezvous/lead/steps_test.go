package lead

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// inSteps is a head, workers on the other nodes, which the head has to see, and a
// command on the head. The ranks on three nodes: head 0, command 1, workers 2 and 3.
func inSteps(id launcher.JobID) launcher.Spec {
	s := spec(id, 3, 1)
	st := func(name string, where launcher.Where) launcher.Stage {
		return launcher.Stage{Name: name, Where: where, RanksPerNode: 1, Argv: launcher.Lits("true"), Workdir: "/"}
	}
	head, workers, command := st("head", launcher.OnHead), st("workers", launcher.OnRest), st("command", launcher.OnHead)
	head.Ports = []launcher.NamedPort{{Name: "gcs"}}
	head.Ready = []launcher.Probe{{Kind: launcher.ProbeTCP, What: "the head",
		Port: launcher.Of(launcher.PortNamed("gcs"))}}
	workers.Ready = []launcher.Probe{{Kind: launcher.ProbeExec, Head: true, What: "nodes", Argv: launcher.Lits("true")}}
	workers.Spares, workers.Patience = true, time.Minute
	command.Main = true
	s.Stages = []launcher.Stage{head, workers, command}
	return s
}

// lives gives some ranks an end by themselves; the others run until they are ended.
func lives(ends map[int]launcher.Exit, after time.Duration) func(launcher.Key, int) (time.Duration, *launcher.Exit) {
	return func(_ launcher.Key, rank int) (time.Duration, *launcher.Exit) {
		if e, has := ends[rank]; has {
			return after, &e
		}
		return 0, nil
	}
}

// seen is a job's events in a few words.
func seen(events []rendezvous.Progress) (out []string) {
	for _, p := range events {
		switch p.Step {
		case rendezvous.StepStage:
			out = append(out, p.Text)
		case rendezvous.StepExited:
			out = append(out, fmt.Sprintf("exited %d", *p.Rank))
		case rendezvous.StepRunning:
			out = append(out, "running")
		}
	}
	return out
}

func TestStepsComeUpInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.each(lives(map[int]launcher.Exit{1: {}}, 10*time.Second))
		asked := 0
		w.nodes[0].waits = func(step int) string {
			if step != 1 {
				return ""
			}
			if asked++; asked > 90 { // more than its patience, but something moves
				return ""
			}
			return fmt.Sprintf("%d of 100 files", asked)
		}
		w.nodes[0].says = "INFO loader\nLoading safetensors checkpoint shards:  25% Completed | 1/4\nINFO waits"
		w.ready()
		events, err := w.client(t.Context(), inSteps("aaaa"))
		if err != nil {
			t.Fatal(err)
		}
		j := mustJob(t, w, "aaaa")
		if j.Outcome.End != rendezvous.Completed || j.Outcome.ExitCode != 0 {
			t.Errorf("outcome %+v", j.Outcome)
		}
		got := seen(events)
		if len(got) == 8 { // the two workers end at once
			slices.Sort(got[5:7])
		}
		want := []string{"stage head is ready", "stage workers is ready", "stage command is ready", "running",
			"exited 1", "exited 2", "exited 3", "exited 0"}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		waits := slices.IndexFunc(events, func(p rendezvous.Progress) bool {
			return p.Step == rendezvous.StepWaiting && strings.Contains(p.Text, " of 100 files (spark1), ")
		})
		if waits < 0 {
			t.Error("nobody was told what is waited for")
		} else if text := events[waits].Text; !strings.HasSuffix(text,
			"; spark1: Loading safetensors checkpoint shards:  25% Completed | 1/4") {
			t.Errorf("how far the ranks are by their own word is not told: %s", text)
		}
		w.settle()
	})
}

func TestStepsThatFail(t *testing.T) {
	tests := map[string]struct {
		ends   map[int]launcher.Exit
		waits  string // for ever, in step 1
		change func(*launcher.Spec)
		after  func(*world) // once it runs
		want   string
		code   int
		ranks  int
	}{
		"nothing moves": {waits: "1 of 3 nodes",
			want: "stage workers is not ready, and has made no progress for 1m0s: 1 of 3 nodes (spark1)", code: 125,
			ranks: 3},
		"the head, while others wait": {ends: map[int]launcher.Exit{0: {Code: 3}}, waits: "1 of 3 nodes",
			want: "stage head, rank 0 on spark1: exit 3", code: 3, ranks: 3},
		"the head, by 0": {ends: map[int]launcher.Exit{0: {}},
			want: "stage head, rank 0 on spark1: exit 0, while the job needs it", code: 125, ranks: 4},
		"a worker before it is ready": {ends: map[int]launcher.Exit{3: {Code: 4}}, waits: "2 of 3 nodes",
			want: "stage workers, rank 3 on spark3: exit 4", code: 4, ranks: 3},
		"a worker of a job with attempts left": {ends: map[int]launcher.Exit{3: {Code: 4}},
			change: func(s *launcher.Spec) { s.MaxRestarts = 1 },
			want:   "stage workers, rank 3 on spark3: exit 4", code: 4, ranks: 8},
		"the command": {ends: map[int]launcher.Exit{1: {Code: 9}},
			want: "stage command, rank 1 on spark1: exit 9", code: 9, ranks: 4},
		"the head's machine": {after: func(w *world) { w.nodes[0].crash(); w.nodes[0].heal() },
			want: "spark1 restarted", code: 125, ranks: 4},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 3)
				w.each(lives(tt.ends, 20*time.Second))
				w.nodes[0].waits = func(step int) string {
					if step == 1 {
						return tt.waits
					}
					return ""
				}
				w.ready()
				s := inSteps("bbbb")
				if tt.change != nil {
					tt.change(&s)
				}
				if tt.after != nil {
					w.wg.Go(func() { time.Sleep(10 * time.Second); tt.after(w) })
				}
				if _, err := w.client(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				j := mustJob(t, w, "bbbb")
				if j.Outcome.End != rendezvous.Failed || !strings.Contains(j.Outcome.Cause, tt.want) ||
					j.Outcome.ExitCode != tt.code {
					t.Errorf("outcome %+v, want code %d and %q", j.Outcome, tt.code, tt.want)
				}
				if n := w.started("bbbb"); n != tt.ranks {
					t.Errorf("%d ranks were started, want %d", n, tt.ranks)
				}
				w.settle()
			})
		})
	}
}

// A worker, or its machine, that is lost after all were there is told, and no more.
func TestStepsSpareAWorker(t *testing.T) {
	tests := map[string]struct {
		ends map[int]launcher.Exit
		cut  bool
		want string
	}{
		"a rank": {ends: map[int]launcher.Exit{3: {Signal: 9}},
			want: "stage workers, rank 3 on spark3: killed by SIGKILL (9); the job goes on without it"},
		"a machine": {cut: true, want: "stage workers, spark3 does not answer; the job goes on without it"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 3)
				life := lives(tt.ends, 20*time.Second)
				w.each(func(k launcher.Key, rank int) (time.Duration, *launcher.Exit) {
					if rank == 1 {
						return 5 * time.Minute, &launcher.Exit{}
					}
					return life(k, rank)
				})
				w.ready()
				if tt.cut {
					w.wg.Go(func() {
						time.Sleep(20 * time.Second)
						w.nodes[2].cutOff()
						time.Sleep(10 * time.Minute)
						w.nodes[2].heal()
					})
				}
				events, err := w.client(t.Context(), inSteps("cccc"))
				if err != nil {
					t.Fatal(err)
				}
				if j := mustJob(t, w, "cccc"); j.Outcome.End != rendezvous.Completed || j.Outcome.ExitCode != 0 {
					t.Errorf("outcome %+v", j.Outcome)
				}
				if !slices.Contains(seen(events), tt.want) {
					t.Errorf("told %q, want %q", seen(events), tt.want)
				}
				time.Sleep(11 * time.Minute)
				w.settle()
			})
		})
	}
}

// Whenever a leader dies the next one goes on: each rank once, in turn, and the end recorded.
func TestStepsOutliveLeaders(t *testing.T) {
	for at := 1; at < 80; at += 3 {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 3)
				w.each(lives(map[int]launcher.Exit{1: {}}, 10*time.Second))
				began := time.Now()
				w.nodes[0].waits = func(step int) string {
					if step == 1 && time.Since(began) < 8*time.Second {
						return "2 of 3 nodes"
					}
					return ""
				}
				w.succession(time.Second, at, at)
				for { // a new leader may not have heard of all nodes yet
					_, err := w.client(t.Context(), inSteps("dddd"))
					if err == nil {
						break
					}
					if !errors.Is(err, rendezvous.ErrCannotPlace) {
						t.Fatal(err)
					}
					time.Sleep(time.Second)
				}
				if j := mustJob(t, w, "dddd"); j.Outcome.End != rendezvous.Completed {
					t.Errorf("outcome %+v", j.Outcome)
				}
				if n := w.started("dddd"); n != 4 {
					t.Errorf("%d ranks were started, want 4", n)
				}
				w.settle()
			})
		})
	}
}

// What a leader has spared the next one spares, though the probes of that stage can never pass again; nor
// does a leader that hears the worker's machine first take its end for the job's.
func TestSparedStaysSpared(t *testing.T) {
	for _, cut := range []bool{false, true} {
		t.Run(fmt.Sprint("away ", cut), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 3)
				began := time.Now()
				w.each(func(_ launcher.Key, rank int) (time.Duration, *launcher.Exit) {
					switch rank {
					case 0:
						return 15 * time.Minute, &launcher.Exit{}
					case 2:
						return 20 * time.Second, &launcher.Exit{Signal: 9}
					}
					return 0, nil
				})
				w.nodes[0].waits = func(step int) string {
					if step == 1 && time.Since(began) > 20*time.Second {
						return "2 of 3 nodes"
					}
					return ""
				}
				first := w.ready()
				w.wg.Go(func() {
					time.Sleep(time.Minute)
					if cut {
						w.nodes[0].cutOff() // the head is heard last
					}
					first.kill()
					time.Sleep(time.Second)
					w.crown(0)
					time.Sleep(20 * time.Second)
					if cut {
						w.nodes[0].heal()
					}
				})
				s := inSteps("eeee")
				s.Stages = s.Stages[:2]
				s.Stages[0].Main, s.NodeTimeout = true, launcher.Never
				if _, err := w.client(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				if j := mustJob(t, w, "eeee"); j.Outcome.End != rendezvous.Completed || time.Since(began) < 15*time.Minute {
					t.Errorf("after %s: %+v", time.Since(began), j.Outcome)
				}
				w.settle()
			})
		})
	}
}

// However long a stage waits and however much it tells, its job's event log stays short, for whoever
// hears it later; who follows it sees that something moves.
func TestStoryOfALongWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.each(lives(map[int]launcher.Exit{1: {}}, time.Second))
		began := time.Now()
		w.nodes[0].waits = func(step int) string {
			if left := 2*time.Hour - time.Since(began); step == 1 && left > 0 {
				return fmt.Sprintf("%s of files", left)
			}
			return ""
		}
		l := w.ready()
		told := 0
		var late []string
		w.wg.Go(func() {
			time.Sleep(time.Hour)
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			_ = l.leader.Watch(ctx, "ffff", func(p rendezvous.Progress) error {
				late = append(late, string(p.Step)+" "+p.Text)
				return nil
			})
		})
		events, err := w.client(t.Context(), inSteps("ffff"))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range events {
			if p.Step == rendezvous.StepWaiting {
				told++
			}
		}
		if told < 100 || told > 500 {
			t.Errorf("who followed for two hours was told %d times what is waited for", told)
		}
		if len(late) > 20 || !slices.ContainsFunc(late, func(s string) bool {
			return strings.Contains(s, "of files (spark1), 59m") || strings.Contains(s, "of files (spark1), 1h")
		}) {
			t.Errorf("who came after an hour was told %q", late)
		}
		w.settle()
	})
}
