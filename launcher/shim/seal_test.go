package shim

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// A shim whose program is in memory alone: its own re-exec (for limits) works after the
// file that it was started from is closed, nobody can write to it, and it is found, named
// and ended like any other.
func TestShimFromMemory(t *testing.T) {
	own, err := os.ReadFile(SelfExe)
	must(t, err)
	b := set(t)
	f, path, err := Seal(b.ctx, own)
	must(t, err)
	if _, err := f.WriteAt([]byte{0}, 0); err == nil {
		t.Error("the program can be written to")
	}
	b.c, err = Spawn(b.ctx, Program{Exe: path}, b.dir, b.cfg)
	must(t, err)
	must(t, f.Close())
	pid := b.shim()
	if exe, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/exe"); err != nil || !strings.HasPrefix(exe, "/memfd:sparkrun-shim") {
		t.Errorf("it runs %q, %v", exe, err)
	}
	if name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm"); err != nil || string(bytes.TrimSpace(name)) != "sparkrun-shim" {
		t.Errorf("it is called %q, %v", name, err)
	}
	limited := b.sh(0, `say "$(ulimit -n)"; exec sleep 1000`)
	limited.Ulimits = []launcher.Ulimit{{Name: "nofile", Soft: 77, Hard: 77}}
	b.start(limited)
	if got := b.hear(); got != "77" {
		t.Errorf("the rank has %s descriptors, want 77", got)
	}
	var es []Event
	must(t, b.c.Events(b.ctx, 0, func(e Event) error {
		if es = append(es, e); len(es) == 1 && !SignalShim(b.dir, syscall.SIGTERM) { // now its end is not missed
			t.Error("the shim is not found by its command line")
		}
		return nil
	}))
	if got := exits(es)[0]; got.Signal != int(unix.SIGTERM) {
		t.Errorf("the rank ended with %+v", got)
	}
	b.gone(pid)
}

func TestSealedProgramIsTried(t *testing.T) {
	if _, _, err := Seal(t.Context(), []byte("not a program")); err == nil || !strings.HasPrefix(err.Error(), "try the shim's program: ") {
		t.Errorf("what cannot be run is sealed: %v", err)
	}
}
