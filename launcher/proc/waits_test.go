package proc

import (
	"net"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestEpolled(t *testing.T) {
	const text = "pos:\t0\nflags:\t02\ntfd:        7 events:       19 data: 7  pos:0 ino:1a sdev:8\n" +
		"tfd:        9 events:        4 data: 9  pos:0 ino:1b sdev:8\n"
	if d := cmp.Diff([]int{7}, epolled(text)); d != "" {
		t.Error(d)
	}
}

// A program's thread is seen to wait for what it reads, polls, selects or has registered.
func TestWaitsOn(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // nothing is asked
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for how, want := range map[string]struct {
		fds   int
		anyOf bool
	}{
		"c.recv(1)":                    {1, false},
		"c.settimeout(60); c.recv(1)":  {1, false},
		"select.select([c,d],[],[])":   {2, true},
		"e.register(c,1); e.poll()":    {1, true},
		"p.register(c,1); p.poll(9e4)": {1, false},
	} {
		c := exec.CommandContext(t.Context(), python, "-c", "import socket,select; c=socket.create_connection(('127.0.0.1',"+
			l.Addr().String()[strings.LastIndexByte(l.Addr().String(), ':')+1:]+"));d=c.dup();e=select.epoll();"+
			"p=select.poll();"+how)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		pid := c.Process.Pid
		var fds []int
		var anyOf bool
		late := time.Now().Add(time.Minute)
		for at := ""; len(fds) == 0 || !strings.HasPrefix(at, "socket:"); runtime.Gosched() {
			if time.Now().After(late) {
				t.Fatalf("%s: it waits for nothing, as far as is seen", how)
			}
			if fds, anyOf = Here.WaitsOn(pid, pid); len(fds) > 0 {
				at = Here.File(pid, fds[0])
			}
		}
		if len(fds) != want.fds || anyOf != want.anyOf {
			t.Errorf("%s: %v, any of them: %t", how, fds, anyOf)
		}
		_ = c.Process.Kill()
		_ = c.Wait()
	}
}
