package mpi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// waitsLong is a variable with which a task waits for mpirun's word as long as a busy machine takes.
const waitsLong = "TEST_WAITS_LONG"

// The test binary is also what an mpirun takes for its ssh.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == RemoteCommand {
		syscall.Exit(RemoteMain(os.Args[2:])) // os.Exit takes a second in a race build
	}
	if len(os.Args) > 1 && os.Args[1] == TaskCommand {
		if os.Getenv(waitsLong) != "" {
			whoseWait = time.Minute
		}
		syscall.Exit(TaskMain())
	}
	os.Exit(m.Run())
}

// headOf runs rank 0 of two nodes with a script in mpirun's place; it is given the other node's
// rank too, once that has told where it is.
func headOf(t *testing.T, script string, other func(*Client)) (int, error) {
	t.Helper()
	return headWith(t, Options{Argv: []string{"x"}}, script, other)
}

func headWith(t *testing.T, o Options, script string, other func(*Client)) (int, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mpirun")
	must(t, os.WriteFile(path,
		[]byte("#!/bin/sh\n[ $1 != --version ] || exec echo 'mpirun (Open MPI) 4.1.4'\n"+script+"\n"), 0o755))
	s := NewSpace("j.1", Mapping(1, 2), 2, 2) // of one node, so that no agent is needed
	clients := make([]*Client, 2)
	for i := range clients {
		conn, _, _ := talk(t, s, i)
		c, err := NewClient(conn, i, 2)
		must(t, err)
		me, err := json.Marshal(place{Addr: []string{"10.0.0.1", "10.0.0.2"}[i]})
		must(t, err)
		must(t, c.Put(nodeKey(i), string(me)))
		clients[i] = c
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if clients[1].Barrier() == nil {
			other(clients[1])
		}
	}()
	must(t, clients[0].Barrier())
	o.PerNode, o.BindTo, o.Stdin, o.Mpirun = 1, "none", "0", path
	code, err := head(clients[0], o)
	s.Close()
	<-done
	return code, err
}

// What mpirun wants run elsewhere reaches that node; mpirun's end is head's.
func TestHead(t *testing.T) {
	gate, told := filepath.Join(t.TempDir(), "told"), ""
	code, err := headOf(t, `$OMPI_MCA_plm_rsh_agent 10.0.0.2 orted -mca "\"x\"" & until [ -e `+gate+` ]; do sleep 0.1; done; exit 9`, func(c *Client) {
		err := c.Barrier()
		if err == nil {
			told, err = c.Get(daemonKey(1))
		}
		if err := errors.Join(err, os.WriteFile(gate, nil, 0o600)); err != nil {
			t.Error(err)
		}
	})
	if err != nil || code != 9 || told != `orted -mca "x"` {
		t.Errorf("exit %d, %v; the other node was told %q", code, err, told)
	}
}

// An mpirun whose daemon cannot be had is not waited for, wherever temporary files lie.
func TestHeadThatCannot(t *testing.T) {
	for name, tmp := range map[string]string{"": os.TempDir(),
		"a long TMPDIR": filepath.Join(t.TempDir(), strings.Repeat("long", 30))} {
		t.Setenv("TMPDIR", tmp)
		code, err := headOf(t, `$OMPI_MCA_plm_rsh_agent 10.0.0.99 orted; exec sleep 1000`, func(*Client) {})
		if code != exitBroken || err == nil || !strings.Contains(err.Error(), `a daemon on "10.0.0.99"`) {
			t.Errorf("%s: exit %d, %v", name, code, err)
		}
	}
}

// An mpirun that has said that a rank failed and does not end is ended, with that rank's code; what another mpirun has
// said, a rank's own, ends nothing.
func TestHeadThatDoesNotEnd(t *testing.T) {
	was := mpirunGrace
	mpirunGrace = 100 * time.Millisecond
	defer func() { mpirunGrace = was }()
	const says = `say() { printf 'The first process to do so was:\n\n   Process name: [prterun-spark1-%s@1,3]\n' $1 >&2; sleep 0.1; printf '   Exit code:    7\n--' >&2; }; `
	for pid, want := range map[string]int{"$$": 7, "1$$": 9} {
		code, err := headOf(t, `$OMPI_MCA_plm_rsh_agent 10.0.0.2 orted & `+says+`say `+pid+`
			[ `+pid+` != $$ ] && sleep 1 && exit 9; exec sleep 1000`, func(c *Client) { _ = c.Barrier() })
		if code != want || err != nil {
			t.Errorf("after the words of %s: exit %d, %v; want %d", pid, code, err, want)
		}
	}
}

// What something that mpirun leaves behind may still write is not waited for.
func TestHeadThatLeavesStderr(t *testing.T) {
	t.Chdir(t.TempDir())
	code, err := headOf(t, `sleep 1000 >/dev/null & echo $! >left
		$OMPI_MCA_plm_rsh_agent 10.0.0.2 orted & sleep 0.3; exit 9`, func(c *Client) { _ = c.Barrier() })
	if code != 9 || err != nil {
		t.Errorf("exit %d, %v", code, err)
	}
	left, err := os.ReadFile("left")
	must(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(left)))
	must(t, err)
	must(t, syscall.Kill(pid, syscall.SIGKILL))
}

// What mpirun has written arrives, also where the reader of stderr stalls for longer than what is behind is waited for.
func TestHeadWhoseStderrIsReadLate(t *testing.T) {
	r, late, err := os.Pipe()
	must(t, err)
	was := os.Stderr
	os.Stderr = late
	defer func() { os.Stderr = was }()
	cmd := exec.Command("sh", "-c", "head -c 120000 /dev/zero >&2")
	ctx, over := context.WithCancel(t.Context())
	heard, err := startHeard(ctx, cmd)
	must(t, err)
	must(t, cmd.Wait()) // late takes 64 KiB, and the pipe before it as much
	wrote := make(chan int)
	go func() {
		time.Sleep(1500 * time.Millisecond)
		all, _ := io.ReadAll(r)
		wrote <- len(all)
	}()
	over()
	heard()
	late.Close()
	if n := <-wrote; n != 120000 {
		t.Errorf("%d bytes of 120000 arrived", n)
	}
}

// To an mpirun that is still there, the end of head is a daemon that failed.
func TestRemoteStartThatIsLeft(t *testing.T) {
	l, away, err := listenRemote()
	must(t, err)
	defer away()
	cmd := exec.Command(os.Args[0], RemoteCommand, "10.0.0.2", "orted", "-x")
	cmd.Env = append(os.Environ(), remoteSocket+"="+l.Addr().String())
	must(t, cmd.Start())
	conn, err := l.Accept()
	must(t, err)
	var w wish
	must(t, json.NewDecoder(conn).Decode(&w))
	conn.Close()
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != exitBroken || w.Host != "10.0.0.2" || w.Command != "orted -x" {
		t.Errorf("%v, after the wish %+v", err, w)
	}
}
