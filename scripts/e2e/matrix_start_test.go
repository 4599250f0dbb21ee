package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"
)

// holder holds every third port of those that jobs meet at, in all the ways in
// which a port can be held, and makes connections that stay in TIME_WAIT.
const holder = `
import os, signal, socket, sys
held = []
def hold(family, at, listens):
    s = socket.socket(family)
    try:
        s.bind(at)
        if listens:
            s.listen()
        held.append(s)
    except OSError:
        s.close()
for port in range(29500, 30000, 3):
    how = port // 3 % 5
    if how == 0:
        hold(socket.AF_INET, ("127.0.0.1", port), True)
    elif how == 1:
        hold(socket.AF_INET, ("0.0.0.0", port), False)
    elif how == 2:
        hold(socket.AF_INET6, ("::1", port), True)
    elif how == 3:
        hold(socket.AF_INET, (sys.argv[1], port), True)
    else: # the server closes first: its port waits for a minute
        ear = socket.socket()
        ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            ear.bind(("", port))
            ear.listen()
        except OSError:
            continue
        c = socket.create_connection(("127.0.0.1", port))
        s, _ = ear.accept()
        s.close(); c.recv(1); c.close(); ear.close()
open(sys.argv[2], "w")
signal.pause()
`

// holdPorts takes ports of the host where ranks meet.
func holdPorts(t *testing.T, f *field) func() {
	script := f.script("holder.py", holder)
	held := script + ".held"
	run := f.start("spark1", python, "-I", "-S", script, "192.168.100.11", held)
	ours = append(ours, script)
	eventually(t, time.Minute, "ports are held", func() bool { return fileIs(held) })
	return func() {
		for _, pid := range f.find("spark1", script, "") {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		run.wait()
	}
}

func fileIs(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Row 32. The first try fails, the second one starts behind it: each rank has to
// meet the others at a port that is free in the strictest sense.
func portsHeld(t *testing.T, f *field, i int) {
	w := f.testimony(i)
	r := f.launch("spark2", "--on spark1,spark2,spark3 --grace 1s --max-restarts 1", w.ranks("ports", 1)).wait()
	met := w.hear(t, "met")
	at := map[int64]int{}
	for _, s := range met {
		at[s.value]++
	}
	if r.code != 0 || len(met) != 6 || len(at) != 2 {
		t.Errorf("want two starts of three ranks, at a port each: they met at %v, %s", at, r)
	}
	f.found("every start met", "a start failed")
}

// Row 34. A job that is cancelled at any moment of its short life, by stop or by
// Ctrl-C, while its ranks start or end by themselves.
func cancelRaces(t *testing.T, f *field, i int) {
	w := f.testimony(i)
	name := fmt.Sprintf("raced%d", i)
	life := time.Duration(rand.IntN(80)) * time.Millisecond
	pause := time.Duration(rand.IntN(200)) * time.Millisecond
	run := f.launch("spark3", "--nodes 3 --grace 1s --name "+name, w.ranks("lives", life.Seconds()))
	time.Sleep(pause) // anywhere between the request and the end
	byStop := i%2 == 0
	if byStop {
		f.on("spark1", "sparkrun", "stop", name) // the job may not be there yet, or no more
	} else {
		_ = run.cmd.Process.Signal(syscall.SIGINT)
	}
	r := run.wait()
	ended := time.Now()
	first, known := f.jobs("spark1")[name]
	if !known { // ended before it was recorded: then it never starts
		if byStop || r.code == 0 {
			t.Errorf("the job is not known, and its launch says %s", r)
		}
	} else if first.ExitCode == nil || !slices.Contains([]string{"failed", "stopped", "rejected"}, first.State) {
		t.Errorf("after %s and %s: %+v, %s", life, pause, first, r)
	}
	f.gone(mark(time.Second))
	f.assertNothingLeft(hosts...)
	for _, h := range hosts {
		if again, still := f.jobs(h)[name]; known != still || again.State != first.State || known && *again.ExitCode != *first.ExitCode {
			t.Errorf("the job was %+v, and is %+v on %s", first, again, h)
		}
	}
	for _, s := range w.hear(t, "up") {
		if s.at.After(ended) {
			t.Errorf("rank %d started %s after the end was told", s.rank, s.at.Sub(ended))
		}
	}
	f.found("one outcome each, 0 survivors", "an outcome changed or a process stayed")
}
