package e2e

import (
	"strings"
	"testing"
	"time"
)

// Rank 0 reads what its launch does, and nothing that was meant for others.
func testStdin(t *testing.T, l *lab) {
	sh := func(line string) result {
		t.Helper()
		return l.on("spark1", "sh", "-c", line)
	}
	r := sh(`seq 3 | sparkrun launch exec --on spark2,spark3 -- sh -c 'echo read $(cat)'`).must(t)
	if !strings.Contains(r.out, "[0] read 1 2 3\n") || !strings.Contains(r.out, "[1] read\n") {
		t.Errorf("want rank 0 to read all, rank 1 nothing: %s", r)
	}
	if r := sh(`yes | sparkrun launch exec --on spark2 -- sh -c 'read x; echo $x'`).must(t); r.out != "[0] y\n" {
		t.Errorf("who reads no more must keep nobody: %s", r)
	}
	r = sh(`printf 'a\nb\n' | while read x; do sparkrun launch exec --stdin none -- echo $x; done`).must(t)
	if r.out != "[0] a\n[0] b\n" {
		t.Errorf("a loop's own input was read: %s", r)
	}
	// In the background of a terminal it goes on, and what is typed is the shell's.
	r = sh(`(sleep 1; echo typed) | NO_COLOR=1 script -qefc "bash -c 'set -m; sparkrun launch exec --on spark2 -- sh -c \"sleep 2; echo done\" & wait; read line; echo line=\$line'" /dev/null`)
	if !strings.Contains(r.out, "[0] done") || !strings.Contains(r.out, "line=typed") {
		t.Errorf("in the background: %s", r)
	}
}

// A terminal that nobody has sat at yet waits for who attaches.
func testDetachedTerminal(t *testing.T, l *lab) {
	l.on("spark1", "sparkrun", "launch", "-d", "-t", "--name", "later", "exec", "--on", "spark2", "--", "sh", "-c", "stty size; read x; echo got $x; exit 5").must(t)
	eventually(t, time.Minute, "it runs before anybody came", func() bool {
		return strings.Contains(l.on("spark3", "sparkrun", "logs", "--output", "raw", "later").out, "24 80")
	})
	r := l.on("spark3", "sh", "-c", `(sleep 1; echo hello) | script -qefc "sparkrun attach later" /dev/null`)
	if r.code != 5 || !strings.Contains(r.out, "got hello") {
		t.Errorf("attached: %s", r)
	}
}
