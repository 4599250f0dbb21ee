package container

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// A command and its descriptors reach the other half, also where the folder's path is longer
// than that of a socket may be.
func TestHandOver(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := Spec{HandDir: filepath.Join(dir, "hand"), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	ln, err := listenHand(s)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	short, err := unix.Open(s.HandDir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(short)
	c, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/%s", short, handName))
	if err != nil {
		t.Fatal(err)
	}
	in := newLine(c.(*net.UnixConn))
	defer in.Close()
	a, err := ln.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	out := newLine(a)
	defer out.Close()
	want := Command{Argv: [][]byte{[]byte("a\xff")}, Dir: []byte("/")}
	for _, n := range []int{3, 4} {
		r, w := pipe(t)
		fds := []int{0, 1, 2, int(w.Fd())}[4-n:] // the pipe comes last
		if err := out.give(want, fds); err != nil {
			t.Fatal(err)
		}
		got, has, err := in.take()
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" || len(has) != n {
			t.Fatalf("%d descriptors, want %d; %s", len(has), n, d)
		}
		if _, err := unix.Write(has[n-1], []byte("x")); err != nil {
			t.Error(err)
		}
		for _, fd := range has {
			unix.Close(fd)
		}
		one := make([]byte, 1)
		if _, err := r.Read(one); err != nil || one[0] != 'x' {
			t.Errorf("by the last descriptor: %q, %v", one, err)
		}
	}
}
