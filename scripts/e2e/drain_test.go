package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A machine that is drained gets no ranks; its service goes on elsewhere, and a job there runs to its end. A rolling
// reboot takes one machine after the other, and waits for each.
func TestNodeDrain(t *testing.T) {
	told := t.TempDir()
	l := up(t, 3, "--share", told)
	run := func(args ...string) result { return l.on("spark1", append([]string{"sparkrun"}, args...)...) }
	run(append([]string{"launch", "-d", "exec", "--name", "web", "--exclude", "spark1", "--gpus", "all", "--serve", "8000"},
		standIn(t, "8000")...)...).must(t)
	before := l.serves("spark1", "web", 1)
	from := "spark2"
	if strings.Contains(before.Service.URL, "172.30.0.13") {
		from = "spark3"
	}
	run("launch", "-d", "exec", "--name", "batch", "--on", from, "--", "sleep", "6").must(t)

	r := run("node", "drain", from, "--reason", "new firmware").must(t)
	for _, want := range []string{"(web) of root is started anew elsewhere", "(batch) of root runs to its end"} {
		if !strings.Contains(r.err, want) {
			t.Errorf("node drain lacks %q: %s", want, r)
		}
	}
	if r.out != from+" is drained: nothing runs there\n" {
		t.Errorf("node drain: %s", r)
	}
	if after := l.serves("spark1", "web", 2); after.Service.URL == before.Service.URL || after.Service.Failures != 0 {
		t.Errorf("the service was at %s, and is at %s with %d failures", before.Service.URL, after.Service.URL,
			after.Service.Failures)
	}
	if j := l.jobs("spark1")["batch"]; j.State != "completed" {
		t.Errorf("the job is %s", j.State)
	}
	if r := run("launch", "exec", "--on", from, "--", "true"); r.code != 125 || !strings.Contains(r.err, "root has drained it: new firmware") {
		t.Errorf("a launch on it: %s", r)
	}
	if r := run("status"); !strings.Contains(r.err, from+" is drained: root has drained it: new firmware") {
		t.Errorf("status: %s", r)
	}
	run("node", "resume", from).must(t)
	run("launch", "exec", "--on", from, "--", "true").must(t)

	if r := run("node", "drain", "spark1", "--each", "true"); r.code == 0 || !strings.Contains(r.err, "is this machine") {
		t.Errorf("a rolling reboot of this machine: %s", r)
	}
	if r := run("node", "drain", "spark9"); r.code == 0 || !strings.Contains(r.err, "the cluster has spark1, spark2, spark3") {
		t.Errorf("a host that is not there: %s", r)
	}
	rolling := l.start("spark1", "sparkrun", "node", "drain", "spark2", "spark3", "--each", "touch "+told+"/$SPARKRUN_HOST")
	for _, host := range []string{"spark2", "spark3"} {
		eventually(t, time.Minute, host+" is to be rebooted", func() bool {
			_, err := os.Stat(filepath.Join(told, host))
			return err == nil
		})
		l.do("kill", host)
		l.do("start", host)
	}
	r = rolling.wait().must(t)
	for _, want := range []string{"spark2 is back, and may get ranks again", "spark3 is back, and may get ranks again"} {
		if !strings.Contains(r.err, want) {
			t.Errorf("the rolling reboot lacks %q: %s", want, r)
		}
	}
	run("launch", "exec", "--on", "spark2,spark3", "--", "true").must(t)
	if s := l.serves("spark1", "web", l.service("spark1", "web").Generation); s.Generation < 3 {
		t.Errorf("the service has not moved: %+v", s)
	}
	run("stop", "web").must(t)
	eventually(t, 30*time.Second, "the service has ended", func() bool { return l.jobs("spark1")["web"].State == "stopped" })
	l.assertNothingLeft("spark1", "spark2", "spark3")
}
