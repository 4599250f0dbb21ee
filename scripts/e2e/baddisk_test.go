package e2e

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

const raftFolder = "/var/lib/sparkrun/raft"

// badDisk is ../baddisk under a host's raft folder.
type badDisk struct {
	l      *lab
	host   string
	orders io.Writer
	says   *bufio.Reader
}

// tool builds ../NAME, once.
func tool(t testing.TB, name string) string {
	t.Helper()
	tools.Lock()
	defer tools.Unlock()
	path := filepath.Join(filepath.Dir(binary), name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if out, err := exec.Command("go", "build", "-o", path, "../"+name).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v: %s", name, err, out)
	}
	return path
}

var tools sync.Mutex

// badDisk puts one under the raft folder of a host, whose agent is started anew. It
// stays, and is well unless told otherwise.
func (l *lab) badDisk(host string) *badDisk {
	l.t.Helper()
	l.do("kill", host, "--agent")
	d := &badDisk{l: l, host: host}
	d.mount()
	l.do("start", host, "--agent")
	return d
}

func (d *badDisk) mount() {
	d.l.t.Helper()
	cmd := d.l.command("exec", d.host, "--", tool(d.l.t, "baddisk"), raftFolder)
	orders, err := cmd.StdinPipe()
	if err != nil {
		d.l.t.Fatal(err)
	}
	says, err := cmd.StdoutPipe()
	if err != nil {
		d.l.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		d.l.t.Fatal(err)
	}
	go func() { _ = cmd.Wait() }() // ends with the disk, at the latest with the lab
	d.orders, d.says = orders, bufio.NewReader(says)
	d.answers("mounted on " + raftFolder)
}

func (d *badDisk) answers(want string) {
	d.l.t.Helper()
	if line, err := d.says.ReadString('\n'); strings.TrimSpace(line) != want {
		d.l.t.Fatalf("the disk of %s says %q (%v), want %q", d.host, line, err, want)
	}
}

// order gives an order of ../baddisk.
func (d *badDisk) order(line string) {
	d.l.t.Helper()
	if _, err := io.WriteString(d.orders, line+"\n"); err != nil {
		d.l.t.Fatalf("order %q: %v", line, err)
	}
	d.answers("done")
}

// power makes ready to kill disks and agents at one moment: what was not fsynced is
// gone. They come back with what was.
func power(t testing.TB, disks ...*badDisk) (fails, comesBack func()) {
	t.Helper()
	var pids []int
	for _, what := range []string{"baddisk " + raftFolder, "sparkrun agent"} {
		for _, d := range disks {
			found := d.l.find(d.host, what, "")
			if len(found) == 0 {
				t.Fatalf("no %q on %s", what, d.host)
			}
			pids = append(pids, found...)
		}
	}
	fails = func() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return fails, func() {
		t.Helper()
		reaped(t, pids...)
		for _, d := range disks {
			d.l.on(d.host, "umount", "--lazy", raftFolder).must(t)
			d.mount()
		}
		for _, d := range disks {
			d.l.do("start", d.host, "--agent")
		}
	}
}
