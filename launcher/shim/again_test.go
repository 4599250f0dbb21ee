package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// stays is an attempt whose ranks may come again.
func stays(c *Config) { c.Stays, c.MaxOutput = true, 1<<10 }

// A rank that has exited comes again when it is asked for, once an incarnation: its output goes on behind
// what is there, nothing of the last incarnation is left, and the attempt ends when it is told to.
func TestAgain(t *testing.T) {
	b := spawn(t, stays, func(c *Config) { c.Cgroup = fmt.Sprintf("again-%d", os.Getpid()) })
	first := b.sh(0, `head -c 200000 /dev/zero | tr '\0' a; (setsid sleep 1000 >/dev/null 2>&1 &); echo; echo one; exit 3`)
	must(t, b.c.StartMore(b.ctx, []Rank{first}))
	b.until(func(e Event) bool { return e.Kind == Exited && e.Again == 0 && e.Exit.Code == 3 })
	second := first
	second.Again, second.Argv = 1, b.sh(0, "echo two; exec sleep 1000").Argv
	if err := b.c.Again(b.ctx, []Rank{{Rank: 7, Again: 1, Argv: []string{"true"}, Dir: "/"}}); !errors.Is(err,
		ErrRefused) {
		t.Errorf("a rank that never was: %v", err)
	}
	must(t, b.c.Again(b.ctx, []Rank{second})) // once the sleep of the first incarnation is gone
	if n := len(b.alive()); n > 2 {           // the rank, and a fork of its own
		t.Errorf("%d processes live beside the second incarnation", n)
	}
	for range 2 { // told twice it comes once; and it is not taken for what the first incarnation has left
		must(t, b.c.Again(b.ctx, []Rank{second}))
		time.Sleep(OutputWait / 2)
	}
	must(t, b.c.StartMore(b.ctx, []Rank{first}))
	b.awaits(t, "its words behind those of the first", func() bool {
		out, _ := os.ReadFile(PartName(filepath.Join(b.cfg.LogDir, "rank-0.out"), 196608))
		return strings.HasSuffix(string(out), "a\none\ntwo\n")
	})
	must(t, b.c.End(b.ctx, time.Second))
	es := b.events()
	if n := len(kinds(es, Started)); n != 2 {
		t.Errorf("%d incarnations, want 2", n)
	}
	if last := kinds(es, Exited)[1]; last.Again != 1 || !last.Exit.ByUs {
		t.Errorf("the last exit: %+v", last)
	}
	if err := b.c.Again(b.ctx, []Rank{{Rank: 0, Again: 2, Argv: []string{"true"}, Dir: "/"}}); !errors.Is(err, ErrEnded) {
		t.Errorf("after the end: %v", err)
	}
	b.noneAlive()
}
