package shim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher/proc"
)

// fullDisk takes room bytes, and then none.
type fullDisk struct {
	bytes.Buffer
	room int
}

func (d *fullDisk) Write(b []byte) (int, error) {
	n := min(len(b), d.room)
	d.room -= n
	d.Buffer.Write(b[:n])
	if n < len(b) {
		return n, &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}
	}
	return n, nil
}

// P7: what is in the file, with the gaps that are told put in, has the length
// of what was written.
func TestGapsAreCounted(t *testing.T) {
	disk := &fullDisk{room: 10}
	var told []Lost
	c := &copier{dst: disk, name: "out", lost: func(l Lost) { told = append(told, l) }}
	at := time.Now()
	c.write([]byte("12345678"), at)
	c.write([]byte("abcd"), at) // half of it fits
	c.write([]byte("efgh"), at) // not even tried
	disk.room = 100
	c.write([]byte("ijkl"), at.Add(retryAfter-1)) // still not
	c.write([]byte("mnop"), at.Add(retryAfter))
	disk.room = 0
	c.write([]byte("qrst"), at.Add(time.Hour))
	c.close()
	const why = "no space left on device"
	want := []Lost{
		{"out", 10, 2, why}, {"out", 10, 10, why},
		{"out", 14, 4, why}, {"out", 14, 4, why},
	}
	if d := cmp.Diff(want, told); d != "" {
		t.Error(d)
	}
	if got := disk.String(); got != "12345678abmnop" {
		t.Errorf("file holds %q", got)
	}
}

func TestStuckText(t *testing.T) {
	dead := exec.Command("true")
	must(t, dead.Start())
	t.Cleanup(func() { dead.Wait() })
	asleep := exec.Command("sleep", "60")
	must(t, asleep.Start())
	t.Cleanup(func() { asleep.Process.Kill(); asleep.Wait() })
	must(t, asleep.Process.Signal(syscall.SIGSTOP))
	state := func(pid int) string { s, _ := proc.Here.Stuck(pid); return s }
	for deadline := time.Now().Add(30 * time.Second); state(dead.Process.Pid) != "" || state(asleep.Process.Pid) != "T"; {
		if time.Now().After(deadline) {
			t.Fatalf("a zombie is %q, want nothing; a stopped process %q, want T", state(dead.Process.Pid),
				state(asleep.Process.Pid))
		}
		time.Sleep(time.Millisecond)
	}
	pid := asleep.Process.Pid
	many := []proc.Stat{{PID: pid}, {PID: pid, Session: 99}, {PID: pid}, {PID: pid}, {PID: pid}, {PID: pid}}
	got := stuckText(many, map[int]int{99: 3})
	want := fmt.Sprintf("rank 3: process %d (sleep) cannot be killed: KILL has not ended it (state T", pid)
	if !strings.Contains(got, want) || !strings.HasSuffix(got, "; and 2 more") {
		t.Errorf("%q lacks %q, or how many more there are", got, want)
	}
}

// A rank's strings are any bytes; JSON's are not.
func TestRankOnTheWire(t *testing.T) {
	in := Rank{Rank: 3, LocalRank: 1, Argv: []string{"a", "\xff\xfe", "<&>"}, Env: []string{"X=\x80"}, Dir: "/d\xe9"}
	b, err := json.Marshal(in)
	must(t, err)
	var out Rank
	must(t, json.Unmarshal(b, &out))
	if d := cmp.Diff(in, out); d != "" {
		t.Errorf("%s\n%s", b, d)
	}
}

// Both hierarchies a machine can have; which ones exist is the machine's.
func TestCgroup(t *testing.T) {
	if !asRoot() {
		return // not ours to make: TestEndLeavesNobody covers going without
	}
	tried := 0
	for _, root := range []string{cgroupRoot, onlyFreezer(t)} {
		if _, _, err := cgroupMount(root); err != nil {
			continue
		}
		tried++
		cg, err := makeCgroup(root, "shim-unit-"+strconv.Itoa(os.Getpid()))
		must(t, err)
		pid, err := cg.fork(&syscall.SysProcAttr{}, nil2(cg))
		must(t, err)
		if got := cg.procs(); !cg.populated() || len(got) < 1 || got[0] != pid {
			t.Errorf("%s: members %v, want %d", cg.path, got, pid)
		}
		if own := ownCgroup(cg.dir != nil); strings.Contains(own, "shim-unit") {
			t.Errorf("this thread stays in %s", own)
		}
		cg.kill()
		var ws unix.WaitStatus
		_, err = ignoreEINTR(func() (int, error) { return unix.Wait4(pid, &ws, 0, nil) })
		must(t, err)
		if ws.Signal() != unix.SIGKILL {
			t.Errorf("%s: ended by %v", cg.path, ws)
		}
		must(t, cg.remove())
		if _, err := os.Stat(cg.path); err == nil {
			t.Errorf("%s stays", cg.path)
		}
	}
	if tried == 0 {
		t.Error("no cgroup hierarchy on this machine")
	}
}

// nil2 forks a sleeper the way execRank does.
func nil2(cg *cgroup) func() (int, error) {
	return func() (int, error) {
		sys := &syscall.SysProcAttr{}
		if cg.dir != nil {
			sys.UseCgroupFD, sys.CgroupFD = true, int(cg.dir.Fd())
		}
		return syscall.ForkExec("/bin/sleep", []string{"sleep", "1000"}, &syscall.ProcAttr{Sys: sys})
	}
}

// onlyFreezer is a root that shows the v1 freezer alone, where there is one.
func onlyFreezer(t *testing.T) string {
	dir := t.TempDir()
	must(t, os.Symlink(filepath.Join(cgroupRoot, "freezer"), filepath.Join(dir, "freezer")))
	return dir
}

func FuzzDecodeRequest(f *testing.F) {
	for _, s := range []string{
		`{"v":1,"id":1,"op":"hello"}`, `{"v":1,"id":2,"op":"signal","rank":-1,"signal":15}`, `{"v":2}`, `[]`,
		`{"v":1,"op":"end","grace_ns":-1}`,
		`{"v":1,"id":3,"op":"start","ranks":[{"rank":0,"local_rank":0,"argv":["a",{"b64":"/w=="}],"env":[],"dir":"/"}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := decodeRequest(line)
		if err != nil {
			return
		}
		b, err := marshal(r)
		must(t, err)
		again, err := decodeRequest(b)
		if err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if !reflect.DeepEqual(normal(r), normal(again)) {
			t.Errorf("%+v became %+v", r, again)
		}
	})
}

// normal takes away the difference between no ranks and an absent list.
func normal(r request) request {
	if len(r.Ranks) == 0 {
		r.Ranks = nil
	}
	return r
}

func FuzzParseJournal(f *testing.F) {
	f.Add([]byte("{\"seq\":1,\"kind\":\"starting\",\"rank\":-1}\n{\"seq\":2,\"ki"))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		es, err := parseJournal(b)
		if err == nil && len(es) != bytes.Count(b, []byte{'\n'}) {
			t.Errorf("%d events of %d lines", len(es), bytes.Count(b, []byte{'\n'}))
		}
		for i, e := range es {
			if e.Seq != i+1 {
				t.Errorf("event %d has number %d", i+1, e.Seq)
			}
		}
	})
}
