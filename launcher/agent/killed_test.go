package agent

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

func TestAShimKilledUnderItsRanks(t *testing.T) {
	for _, when := range []string{"with us there", "while nobody looked"} {
		t.Run(when, func(t *testing.T) {
			n := newNode(t)
			n.launch(n.as("gate; test $RANK = 0 && exit 5; setsid sleep 60 & sleep 60", ranks(0, 2)))
			n.pass(0)
			if ev := n.hear(launcher.Exited); ev.Rank != 0 {
				t.Fatalf("%+v", ev)
			}
			n.pass(1)
			n.poll("the sleepers", func() bool { return len(n.survivors()) == 3 })
			if when != "with us there" {
				n.drop()
			}
			for _, pid := range n.shimPIDs() {
				must(t, syscall.Kill(pid, syscall.SIGKILL))
			}
			if n.a == nil {
				n.poll("its death", func() bool { return len(n.shimPIDs()) == 0 })
				n.open()
			}
			ev := n.hear(launcher.Exited)
			if ev.Rank != 1 || ev.Exit == nil || !strings.Contains(ev.Exit.Error, "its shim was killed") {
				t.Errorf("rank 1: %+v", ev)
			}
			n.hear(launcher.Ended)
			if left := n.survivors(); len(left) > 0 {
				t.Errorf("told as ended, with survivors %v", left)
			}
			before := n.entry(key)
			n.drop()
			n.open() // a third incarnation reads it all from the journal
			if d := cmp.Diff(before, n.entry(key)); d != "" {
				t.Error(d)
			}
			if e := n.entry(key).Ranks[0]; e.Exit.Code != 5 {
				t.Errorf("rank 0's exit was lost: %+v", e)
			}
		})
	}
}

// Without its shim a prepared node cannot start; a leader that is told of
// nothing would wait until its time-out.
func TestAShimKilledBeforeTheStart(t *testing.T) {
	n := newNode(t)
	n.killed = true
	n.prepare(n.as("witness"))
	n.hear(launcher.Prepared)
	for _, pid := range n.shimPIDs() {
		must(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	if text := n.hear(launcher.Refused).Text; !strings.Contains(text, "its shim died") {
		t.Error(text)
	}
	n.hear(launcher.Ended)
	n.drop()
	n.open()
	if e := n.entry(key); e.Phase != launcher.PhaseNone {
		t.Errorf("nothing ever ran, and the ledger has %+v", e)
	}
	n.launch(n.as("true"))
	n.hear(launcher.Ended)
}

// A stopped shim is not a dead one: nothing may be said of its ranks, let
// alone its folder removed.
func TestAStoppedShimIsNotTakenForDead(t *testing.T) {
	n := newNode(t)
	n.launch(n.as("gate; exit 6"))
	shims := n.shimPIDs()
	must(t, syscall.Kill(shims[0], syscall.SIGSTOP))
	t.Cleanup(func() { syscall.Kill(shims[0], syscall.SIGCONT) })
	n.drop()
	n.open()
	if e := n.entry(key); e.Phase != launcher.PhaseStarted || len(e.Ranks) != 1 ||
		e.Ranks[0].State != launcher.RankRunning {
		t.Errorf("entry %+v", e)
	}
	n.pass(0)
	n.end(launcher.Key{Job: "efgh", Generation: 1}, 0)
	n.hear(launcher.Ended) // others are served
	must(t, syscall.Kill(shims[0], syscall.SIGCONT))
	if ev := n.hear(launcher.Exited); ev.Exit.Code != 6 {
		t.Errorf("%+v", ev)
	}
	n.hear(launcher.Ended)
}

func TestOrdersThatFindTheShimStoppedAreNotLost(t *testing.T) {
	for _, reopened := range []bool{false, true} {
		t.Run(fmt.Sprint("reopened=", reopened), func(t *testing.T) {
			n := newNode(t)
			n.prepare(n.as("sleep 60"))
			n.hear(launcher.Prepared)
			stop, goOn := syscall.SIGSTOP, syscall.SIGCONT
			shim := n.shimPIDs()[0]
			t.Cleanup(func() { syscall.Kill(shim, goOn) })
			again := func(order func()) {
				must(t, syscall.Kill(shim, stop))
				if reopened {
					n.drop()
					n.open()
				}
				order()
				must(t, syscall.Kill(shim, goOn))
			}
			again(func() { n.start(key, 0) })
			n.hear(launcher.Started)
			again(func() {
				n.end(key, time.Minute)
				n.end(key, 0) // shorter: must not be lost behind the first
			})
			n.hear(launcher.Ended)
		})
	}
}

// Ended is a promise that no process is left. While that cannot be found out,
// here because the journal is damaged, nothing is said, and it is tried again.
func TestWhatCannotBeReapedIsNotEnded(t *testing.T) {
	n := newNode(t)
	n.launch(n.as("sleep 60"))
	path := filepath.Join(n.cfg.RunDir, "jobs", key.String(), "journal")
	whole, err := os.ReadFile(path)
	must(t, err)
	must(t, syscall.Kill(n.shimPIDs()[0], syscall.SIGSTOP))
	must(t, os.WriteFile(path+".bad", append([]byte("damaged\n"), whole...), 0o600))
	must(t, os.Rename(path+".bad", path))
	must(t, syscall.Kill(n.shimPIDs()[0], syscall.SIGKILL))
	n.poll("two attempts", func() bool { return strings.Count(n.log.String(), "attend to shim") >= 2 })
	n.end(key, 0)
	if n.heard(launcher.Ended) > 0 || n.entry(key).Phase != launcher.PhaseStarted {
		t.Errorf("said to have ended with %v alive", n.survivors())
	}
	n.drop()
	n.open()
	if e := n.entry(key); e.Phase != launcher.PhasePrepared { // the least that is sure
		t.Errorf("after a restart: %+v", e)
	}
	must(t, os.WriteFile(path+".whole", whole, 0o600))
	must(t, os.Rename(path+".whole", path)) // half a journal would be another one
	n.hear(launcher.Ended)
	if left := n.survivors(); len(left) > 0 {
		t.Errorf("survivors %v", left)
	}
}

// What its shim could not kill is in the ledger, of a later agent too, until it
// is gone. The shim's word is put into its journal here: nothing that a test may
// do alone makes a process that survives KILL.
func TestWhatCannotBeKilledIsInTheLedger(t *testing.T) {
	n := newNode(t)
	n.killed = true
	n.launch(n.as("sleep 60"))
	n.drop()
	pid := n.shimPIDs()[0]
	must(t, syscall.Kill(pid, syscall.SIGSTOP))
	path := filepath.Join(n.cfg.RunDir, "jobs", key.String(), "journal")
	told, err := os.ReadFile(path)
	must(t, err)
	seq := strings.Count(string(told), "\n") + 1
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	fmt.Fprintf(f, `{"seq":%d,"time":"2026-01-02T03:04:05Z","kind":"stuck","rank":-1,"why":"rank 0: process 7 cannot be killed"}`+"\n", seq)
	must(t, f.Close())
	n.open()
	if e := n.entry(key); e.Stuck != "rank 0: process 7 cannot be killed" || e.Phase != launcher.PhaseStarted {
		t.Errorf("ledger %+v", e)
	}
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	n.hear(launcher.Ended)
	if e := n.entry(key); e.Stuck != "" || e.Phase != launcher.PhaseEnded {
		t.Errorf("ledger %+v", e)
	}
}

// Row 8: an agent that is really killed, at any moment between the order to
// prepare and the exit, and a leader that then goes by the ledger.
func TestTheAgentIsKilledAtAnyMoment(t *testing.T) {
	n := newNode(t)
	var phases [4]int
	for i := range 40 {
		k := launcher.Key{Job: job, Generation: launcher.Generation(i + 1)}
		must(t, os.RemoveAll(filepath.Join(n.base, "witness")))
		as := n.as("witness; exit 3", generation(k.Generation))
		n.drop()
		n.cfg.Node = launcher.NodeID("killed-" + filepath.Base(filepath.Dir(n.base)))
		killedAgent(n, as, time.Duration(rand.IntN(15_000))*time.Microsecond)
		n.open()
		e := n.entry(k)
		phases[e.Phase]++
		if e.Phase < launcher.PhasePrepared {
			n.prepare(as)
			n.hear(launcher.Prepared)
		}
		if e.Phase < launcher.PhaseStarted {
			n.start(k, 0)
		}
		if e.Phase < launcher.PhaseEnded {
			n.hear(launcher.Ended)
		}
		if e := n.entry(k); len(e.Ranks) != 1 || e.Ranks[0].Exit == nil || e.Ranks[0].Exit.Code != 3 {
			t.Fatalf("round %d: %+v", i, e)
		}
		if len(n.witness()) != 1 {
			t.Fatalf("round %d: exec'd as %v", i, n.witness())
		}
		n.order(launcher.Order{Forget: &k})
		n.poll("an empty ledger", func() bool { return len(n.a.Ledger()) == 0 })
		n.poll("no shim", func() bool { return len(n.shimPIDs()) == 0 })
	}
	t.Logf("found none %d, prepared %d, started %d, ended %d", phases[0], phases[1], phases[2], phases[3])
}

// killedAgent is an agent in a process of its own, which is told to prepare
// and to start, and is killed after a while.
func killedAgent(n *node, as launcher.Assignment, after time.Duration) {
	n.t.Helper()
	cmd := exec.Command("/proc/self/exe", "agent", n.base)
	cmd.Stdout = os.Stdout
	in, err := cmd.StdinPipe()
	must(n.t, err)
	must(n.t, cmd.Start())
	enc := json.NewEncoder(in)
	must(n.t, enc.Encode(launcher.Order{Fence: fence, Prepare: &as}))
	deadline := time.After(after)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for done := false; !done; {
		select {
		case <-tick.C: // a start before it is prepared is nothing
			_ = enc.Encode(launcher.Order{Fence: fence, Start: &launcher.Start{Key: as.Key}})
		case <-deadline:
			done = true
		}
	}
	must(n.t, cmd.Process.Kill())
	_ = cmd.Wait()
}
