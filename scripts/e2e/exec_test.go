package e2e

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A command in a rank's place: from any host, as its user, with its variables,
// input and exit code; never a part of the job.
func testExec(t *testing.T, l *lab) {
	dir := scratch(t)
	for _, h := range []string{"spark1", "spark2", "spark3"} {
		l.on(h, "sh", "-c", "id erin 2>/dev/null || useradd -M -d "+dir+" -G sparkrun erin").must(t)
	}
	user := func(host, line string) result {
		t.Helper()
		return l.on(host, "su", "erin", "-c", "cd "+dir+" && "+line)
	}
	id := strings.TrimSpace(user("spark1", "sparkrun launch exec -d --name beside --on spark1,spark2,spark3 --env WHO=rank -- sh -c 'test $RANK != 2 || exit 0; sleep 300'").must(t).out)
	eventually(t, time.Minute, "rank 2 has ended", func() bool {
		return strings.Contains(user("spark3", "sparkrun exec beside --rank 2 -- true").err, "rank 2 of job "+id+" has ended: exit 0: `sparkrun logs")
	})
	r := user("spark3", `sparkrun exec beside --rank 1 -- sh -c 'echo $(hostname) $(id -un) $PWD $RANK $WHO $MASTER_ADDR; echo bad >&2; exit 9'`)
	if want := "spark2 erin " + dir + " 1 rank 192.168.100.11\n"; r.code != 9 || r.out != want || r.err != "bad\n" {
		t.Errorf("want %q: %s", want, r)
	}
	for line, want := range map[string]int{"no-such-program": 127, "/etc/passwd": 126, "sh -c 'kill -USR1 $$'": 128 + 10} {
		if r := user("spark1", "sparkrun exec beside -- "+line); r.code != want {
			t.Errorf("%s: want %d: %s", line, want, r)
		}
	}
	r = user("spark1", `seq 100000 | sparkrun exec -i beside --rank 1 -- md5sum; seq 100000 | md5sum; sparkrun exec beside --rank 1 -- seq 100000 | md5sum`).must(t)
	if sums := strings.Fields(r.out); len(sums) != 6 || sums[0] != sums[2] || sums[4] != sums[2] {
		t.Errorf("bytes changed on their way: %s", r)
	}
	r = l.on("spark3", "sh", "-c", `(sleep 1; printf 'stty size; exit 4\r') | script -qefc "stty rows 30 cols 90; sparkrun exec -t beside --rank 1 -- sh -i" /dev/null`)
	if r.code != 4 || !strings.Contains(r.out, "30 90") {
		t.Errorf("in a terminal: %s", r)
	}
	l.on("spark3", "sh", "-c", "id dora 2>/dev/null || useradd -M -G sparkrun dora").must(t)
	if r := l.on("spark3", "su", "dora", "-c", "sparkrun exec beside -- true"); r.code != 125 || !strings.Contains(r.err, "not allowed") {
		t.Errorf("in another user's job: %s", r)
	}
	lost := filepath.Join(dir, "lost")
	run := l.start("spark3", "su", "erin", "-c", `exec sparkrun exec beside --rank 1 -- sh -c 'trap "echo > `+lost+`; exit" TERM; touch `+lost+`.up; while :; do sleep 0.1; done'`)
	eventually(t, time.Minute, "it runs", func() bool { return exists(lost + ".up") })
	l.on("spark3", "pkill", "-KILL", "-f", "^sparkrun exec beside").must(t)
	eventually(t, time.Minute, "who has lost its caller gets TERM", func() bool { return exists(lost) })
	run.wait()
	run = l.start("spark3", "su", "erin", "-c", `exec sparkrun exec beside --rank 1 -- sh -c 'trap "exit 6" INT; touch `+lost+`.int; while :; do sleep 0.1; done'`)
	eventually(t, time.Minute, "it runs", func() bool { return exists(lost + ".int") })
	l.on("spark3", "pkill", "-INT", "-f", "^sparkrun exec beside").must(t)
	if r := run.wait(); r.code != 6 {
		t.Errorf("Ctrl-C: %s", r)
	}
	if out := user("spark2", "sparkrun logs beside").must(t).out; out != "" {
		t.Errorf("the ranks' output has %q", out)
	}
	run = l.start("spark1", "su", "erin", "-c", "exec sparkrun exec beside --rank 1 -- sh -c 'touch "+lost+".end; exec sleep 300'")
	eventually(t, time.Minute, "it runs", func() bool { return exists(lost + ".end") })
	user("spark1", "sparkrun stop beside").must(t)
	if r := run.wait(); r.code != 128+int(syscall.SIGTERM) {
		t.Errorf("the job's end: want the command ended by TERM: %s", r)
	}
	eventually(t, time.Minute, "spark3, too, has it recorded that the job has ended", func() bool {
		r := user("spark3", "sparkrun exec "+id+" -- true")
		return r.code == 125 && strings.Contains(r.err, "the job has ended (stopped") && strings.Contains(r.err, "sparkrun logs "+id)
	})
}
