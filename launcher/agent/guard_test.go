package agent

import (
	"strings"
	"syscall"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

func TestLargestAttempt(t *testing.T) {
	k := func(job launcher.JobID) launcher.Key { return launcher.Key{Job: job, Generation: 1} }
	const gib = 1 << 30
	m := proc.Memory{Total: 128 * gib, Available: 2 * gib}
	for name, tc := range map[string]struct {
		usages map[launcher.Key]shim.Usage
		want   launcher.Key
		held   int64
	}{
		"none": {nil, launcher.Key{}, 0},
		"by its own memory": {map[launcher.Key]shim.Usage{k("aaaa"): {Bytes: 3 * gib},
			k("bbbb"): {Bytes: 5 * gib}}, k("bbbb"), 5 * gib},
		"by what the GPU holds for it": {map[launcher.Key]shim.Usage{k("aaaa"): {Bytes: gib, GPU: true},
			k("bbbb"): {Bytes: 5 * gib}}, k("aaaa"), 121 * gib},
		"two share the GPU": {map[launcher.Key]shim.Usage{k("aaaa"): {Bytes: 2 * gib, GPU: true},
			k("bbbb"): {GPU: true}}, k("aaaa"), 64 * gib},
		"shared pages, counted twice": {map[launcher.Key]shim.Usage{k("aaaa"): {Bytes: 200 * gib, GPU: true}},
			k("aaaa"), 200 * gib},
		"the same: the one named first": {map[launcher.Key]shim.Usage{k("bbbb"): {Bytes: gib},
			k("aaaa"): {Bytes: gib}}, k("aaaa"), gib},
	} {
		if got, held := largest(tc.usages, m); got != tc.want || held != tc.held {
			t.Errorf("%s: %s with %s, want %s with %s", name, got, launcher.Size(held), tc.want, launcher.Size(tc.held))
		}
	}
}

// Who ate the memory is ended, and its exit says why: it is the cause of the
// job's failure, not a consequence. Others go on.
func TestGuardEndsTheLargest(t *testing.T) {
	n := newNode(t)
	n.a.cfg.MemoryFloor = 48 << 20 // after Open: the guard itself sleeps
	small := n.as("witness; gate", named("small23456"))
	n.launch(small)
	// tail keeps what it reads until the newline that never comes.
	n.launch(n.as("(head -c 100000000 /dev/zero; witness; exec sleep 1000) | tail -n 1"))
	n.poll("both ranks", func() bool { return len(n.witness()) == 2 && n.a.usages()[key].Bytes > 90e6 })
	n.a.endLargest(n.ctx, proc.Memory{Total: 1 << 30, Available: 1 << 20})
	ev := n.hear(launcher.Exited)
	if ev.Key != key || ev.Exit.ByUs || !ev.Exit.Failed() ||
		!strings.Contains(ev.Exit.String(), "less than the --memory-floor of 48 MiB") {
		t.Errorf("%s: exit %+v", ev.Key, ev.Exit)
	}
	if e := n.entry(key); e.Phase != launcher.PhaseEnded {
		t.Errorf("the guard went on before its attempt had ended: %s", e.Phase)
	}
	n.a.endLargest(n.ctx, proc.Memory{Total: 1 << 30, Available: 1 << 20}) // the small one holds less than the floor
	must(t, n.a.Signal(n.ctx, small.Key, 0, syscall.SIGCONT))
	n.pass(0)
	if ev := n.hear(launcher.Exited); ev.Exit.Failed() {
		t.Errorf("%s: exit %+v", ev.Key, ev.Exit)
	}
}

// A guard that watches keeps no agent from closing, and leaves a machine with
// memory alone.
func TestGuardWatches(t *testing.T) {
	n := newNode(t, func(c *Config) { c.MemoryFloor = 1 })
	n.launch(n.as("gate"))
	n.drop()
	n.open()
	n.pass(0)
	if ev := n.hear(launcher.Exited); ev.Exit.Failed() {
		t.Errorf("exit %+v", ev.Exit)
	}
}
