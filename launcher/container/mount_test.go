package container

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What a mount's source was when its user's right to it was looked at is what the program gets, or there
// is no program: who may write above it could have put a link there since.
func TestMountThatWasSwapped(t *testing.T) {
	r, e := open(t)
	dir := t.TempDir()
	source, other := filepath.Join(dir, "data"), filepath.Join(dir, "other")
	for _, d := range []string{source, other} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(source, &st); err != nil {
		t.Fatal(err)
	}
	looked := func() Spec {
		s := r.spec(t, 0)
		s.Mounts = []Mount{{Source: source, Target: "/data", Dev: st.Dev, Ino: st.Ino}}
		return s
	}
	r.spawn(t, e, looked(), sh("true"))
	if err := errors.Join(os.Rename(source, source+".away"), os.Symlink(other, source)); err != nil {
		t.Fatal(err)
	}
	b := r.order(t, e, looked(), sh("touch /data/was-here"))
	b.awaitAnswer()
	if !strings.Contains(b.Error, "something else was put there") {
		t.Errorf("answered with %+v, want it refused", b.Answer)
	}
	if _, err := os.Stat(filepath.Join(other, "was-here")); err == nil {
		t.Error("the program has run")
	}
}

// Who swaps it while the engine is at work is found out in the container, before the program is there.
func TestMountIsLookedAtInTheContainer(t *testing.T) {
	r, e := open(t)
	var st unix.Stat_t
	source := t.TempDir()
	if err := unix.Stat(source, &st); err != nil {
		t.Fatal(err)
	}
	s := r.spec(t, 0)
	s.Mounts = []Mount{{Source: source, Target: "/data", Dev: st.Dev, Ino: st.Ino}}
	b := r.spawn(t, e, s, sh("echo up; read word"))
	b.awaitLine("up")
	o := outer{order: Order{Spec: s}}
	if err := o.look(b.Init); err != nil {
		t.Errorf("what was asked for: %v", err)
	}
	o.order.Spec.Mounts[0].Ino++
	if err := o.look(b.Init); err == nil || !strings.Contains(err.Error(), "something else was put there") {
		t.Errorf("another folder: %v, want it refused", err)
	}
	o.order.Spec.Mounts[0].Target = "/nowhere"
	if err := o.look(b.Init); err == nil {
		t.Error("a mount that is not there is taken")
	}
}

// Folders on the way to a mount below HOME are the user's, not root's.
func TestHomeAboveAMount(t *testing.T) {
	r, e := open(t)
	s := r.spec(t, 1234)
	s.Mounts = []Mount{{Source: t.TempDir(), Target: "/home/rank/.cache/models"}}
	if err := os.Chmod(s.Mounts[0].Source, 0o755); err != nil {
		t.Fatal(err)
	}
	b := r.spawn(t, e, s, sh("touch /home/rank/.cache/x && echo mine"))
	if out := b.read(); !strings.Contains(out, "mine") {
		t.Errorf("it wrote %q", out)
	}
}
