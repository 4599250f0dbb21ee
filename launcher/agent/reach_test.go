package agent

import (
	"errors"
	"syscall"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// Signals reach one rank or all; TSTP stops who ignores no STOP.
func TestSignals(t *testing.T) {
	n := newNode(t)
	a := n.as(`trap 'witness; exit 0' USR1; witness; while :; do gate; done`, ranks(4, 2))
	if err := n.a.Signal(n.ctx, key, 4, syscall.SIGUSR1); !errors.Is(err, shim.ErrNoRank) {
		t.Errorf("before the start: %v", err)
	}
	n.launch(a)
	n.poll("both ranks", func() bool { return len(n.witness()) == 2 })
	must(t, n.a.Signal(n.ctx, key, shim.Gang, syscall.SIGTSTP))
	must(t, n.a.Signal(n.ctx, key, shim.Gang, syscall.SIGCONT))
	must(t, n.a.Signal(n.ctx, key, 5, syscall.SIGUSR1))
	if ev := n.hear(launcher.Exited); ev.Rank != 5 || ev.Exit.Failed() {
		t.Errorf("exit %+v", ev)
	}
	must(t, n.a.Signal(n.ctx, key, shim.Gang, syscall.SIGUSR1))
	if ev := n.hear(launcher.Exited); ev.Rank != 4 || ev.Exit.ByUs {
		t.Errorf("exit %+v", ev)
	}
	n.hear(launcher.Ended)
	if got := len(n.witness()); got != 4 {
		t.Errorf("%d lines: a signal came twice, or not at all", got)
	}
}
