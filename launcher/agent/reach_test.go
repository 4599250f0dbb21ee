package agent

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// Signals reach one rank or all; TSTP stops who ignores no STOP.
func TestSignals(t *testing.T) {
	n := newNode(t)
	a := n.as(`trap 'witness; exit 0' USR1; witness; while :; do sleep 0.02; done`, ranks(4, 2))
	if err := n.a.Signal(n.ctx, key, 4, syscall.SIGUSR1); !errors.Is(err, shim.ErrNoRank) {
		t.Errorf("before the start: %v", err)
	}
	n.launch(a)
	n.poll("both ranks", func() bool { return len(n.witness()) == 2 })
	for range 2 { // the second time is no news
		must(t, n.a.Signal(n.ctx, key, shim.AllRanks, syscall.SIGTSTP))
	}
	if ev := n.hear(launcher.Suspended); ev.Text == "" || !n.entry(key).Suspended {
		t.Errorf("stopped: %+v, ledger %+v", ev, n.entry(key))
	}
	n.drop() // another incarnation of the agent sees it, too
	n.open()
	if !n.entry(key).Suspended {
		t.Errorf("found again, ledger %+v", n.entry(key))
	}
	must(t, n.a.Signal(n.ctx, key, shim.AllRanks, syscall.SIGCONT))
	if ev := n.hear(launcher.Suspended); ev.Text != "" || n.entry(key).Suspended {
		t.Errorf("woken: %+v, ledger %+v", ev, n.entry(key))
	}
	must(t, n.a.Signal(n.ctx, key, 5, syscall.SIGUSR1))
	if ev := n.hear(launcher.Exited); ev.Rank != 5 || ev.Exit.Failed() {
		t.Errorf("exit %+v", ev)
	}
	must(t, n.a.Signal(n.ctx, key, shim.AllRanks, syscall.SIGUSR1))
	if ev := n.hear(launcher.Exited); ev.Rank != 4 || ev.Exit.ByUs {
		t.Errorf("exit %+v", ev)
	}
	n.hear(launcher.Ended)
	if got := len(n.witness()); got != 4 {
		t.Errorf("%d lines: a signal came twice, or not at all", got)
	}
}

// A command beside a rank has its environment, but for the file in which the
// rank's own failure is told; a rank that does not run has no place.
func TestExec(t *testing.T) {
	n := newNode(t)
	a := n.as(`witness; gate`, ranks(4, 2))
	exec := func(rank int) (launcher.Exit, string, error) {
		var out strings.Builder
		exit, err := n.a.Exec(n.ctx, key,
			shim.Exec{Session: "one", Rank: rank, Argv: []string{"sh", "-c", `echo "$RANK,$TORCHELASTIC_ERROR_FILE"; exit 3`}},
			func() error { return nil }, func(_ launcher.Stream, b []byte) error { out.Write(b); return nil })
		return exit, out.String(), err
	}
	if _, _, err := exec(4); err == nil || !strings.Contains(err.Error(), "has not been started yet") &&
		!strings.Contains(err.Error(), "is not here") {
		t.Errorf("before the start: %v", err)
	}
	n.launch(a)
	n.poll("both ranks", func() bool { return len(n.witness()) == 2 })
	if exit, out, err := exec(5); err != nil || exit.Code != 3 || out != "5,\n" {
		t.Errorf("exit %v, %q, %v", exit, out, err)
	}
	must(t, n.a.Signal(n.ctx, key, 4, syscall.SIGKILL))
	n.hear(launcher.Exited)
	if _, _, err := exec(4); err == nil || !strings.Contains(err.Error(), "has ended: killed by SIGKILL (9)") ||
		!strings.Contains(err.Error(), "sparkrun logs") {
		t.Errorf("in an ended rank's place: %v", err)
	}
	must(t, n.a.Signal(n.ctx, key, 5, syscall.SIGKILL))
	n.hear(launcher.Ended)
}
