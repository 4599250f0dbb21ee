package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A laptop: a host that is no member, and a user of it who is not root.
func TestFromALaptop(t *testing.T) {
	l := up(t, 4)
	dir := scratch(t)
	for _, h := range []string{"spark1", "spark2", "spark3", "spark4"} {
		l.on(h, "sh", "-c", "id fay 2>/dev/null || useradd -M -d "+dir+" fay").must(t)
	}
	l.on("spark4", "sparkrun", "leave", "--yes").must(t)
	l.on("spark1", "sparkrun", "status", "--wait-nodes", "3", "--timeout", "45s").must(t)
	home := filepath.Join(dir, "laptop")
	check(t, os.MkdirAll(home, 0o777))
	check(t, os.Chmod(home, 0o777))
	laptop := func(args ...string) []string {
		return append([]string{"setpriv", "--reuid", "fay", "--regid", "fay", "--clear-groups", "env", "HOME=" + home, "FAYS_TOKEN=hush"}, args...)
	}
	run := func(args ...string) result {
		t.Helper()
		return l.on("spark4", laptop(append([]string{"sparkrun"}, args...)...)...)
	}
	says := func(r result, code int, what ...string) {
		t.Helper()
		for _, w := range what {
			if r.code != code || !strings.Contains(r.out+r.err, w) {
				t.Errorf("want exit %d and %q, got %s", code, w, r)
			}
		}
	}
	says(run("ps"), 1, "sparkrun login HOST")

	login := func(token string, want int) result {
		t.Helper()
		file := filepath.Join(home, "token")
		check(t, os.WriteFile(file, []byte(token), 0o644))
		r := run("login", "172.30.0.11", "--context", "lab", "--token-file", file)
		if r.code != want {
			t.Fatalf("want exit %d, got %s", want, r)
		}
		return r
	}
	says(login(l.on("spark2", "sparkrun", "token", "create").must(t).out, 1), 1, "it admits a node, and this is a client")
	token := l.on("spark2", "sparkrun", "token", "create", "--role", "client", "--user", "fay").must(t).out
	says(login(token, 0), 0, "context lab: fay in cluster", "3 machines")
	says(run("logout", "nonesuch"), 1, "no such context")

	says(run("ps", "--all"), 0, "JOB")
	says(run("status"), 0, "spark1", "spark2", "spark3")
	says(run("fabric"), 0, "spark3")
	says(run("env", "--nodes", "2"), 0, "NCCL_IB_HCA")
	says(run("leave", "--yes"), 1, "no sparkrun agent runs on this machine")

	// Input, output, exit code, files and a secret from the laptop; its user's rank, wherever it runs.
	check(t, os.WriteFile(filepath.Join(home, "job.sh"), []byte(`read line; echo "$(id -un) $line $FAYS_TOKEN"; exit 3`), 0o644))
	piped := l.start("spark4", laptop("sh", "-c", "cd "+home+" && echo salt | sparkrun launch --on spark3 --secret FAYS_TOKEN --stage job.sh exec -- sh job.sh")...).wait()
	says(piped, 3, "[0] fay salt hush", "exit 3")
	// In the user's home on the machines, without the laptop's PATH.
	says(run("launch", "--on", "spark2", "exec", "--", "sh", "-c", "pwd; echo $PATH"), 0, "[0] "+dir, "/usr/bin")

	// A job that goes on, seen, reached and ended from there.
	id := strings.TrimSpace(run("launch", "-d", "--name", "long", "--nodes", "2", "exec", "--", "sh", "-c", "echo begun; exec sleep 600").must(t).out)
	says(run("ps"), 0, id, "long")
	says(run("exec", "long", "--", "id", "-un"), 0, "fay")
	reader := l.start("spark4", laptop("sparkrun", "logs", "-f", "long")...)
	says(run("stop", "long"), 0, "has ended")
	if r := reader.wait(); strings.Count(r.out, "begun") != 2 {
		t.Errorf("logs -f: %s", r)
	}

	// Its terminal is the job's, from the beginning, and by attach, which may leave and come again.
	terminal := func(typed, command string) result {
		t.Helper()
		return l.on("spark4", laptop("sh", "-c", "("+typed+`) | script -qefc "stty rows 30 cols 90; `+command+`" /dev/null`)...)
	}
	said := func(job, words string) string {
		return "until sparkrun logs --output raw " + job + " 2>/dev/null | grep -q '" + words + "'; do sleep 0.1; done; "
	}
	says(terminal(said("typed", "30 90")+"echo pepper", `sparkrun launch -t --name typed --on spark2 exec -- sh -c 'stty size; read x; echo got \$x; exit 6'`), 6, "got pepper")
	run("launch", "-d", "-t", "--name", "later", "--on", "spark3", "exec", "--", "sh", "-c", `stty size; while read x; do echo "got $x, $(stty size)"; test $x != end || exit 5; done`).must(t)
	typing := strings.Replace(said("later", "got cumin, 30 90"), "sleep", "echo cumin; sleep", 1) // the size is on its way beside what is typed
	says(terminal(said("later", "24 80")+typing+`printf '\020\021'`, "sparkrun attach later"), 0, "got cumin")
	says(terminal("echo end", "sparkrun attach later"), 5, "got end")

	// Ctrl-C ends the job on the machines.
	ctrlC := l.start("spark4", laptop("sparkrun", "launch", "--name", "cut", "--stdin", "none", "--grace", "5s", "--nodes", "3", "exec", "--", "sh", "-c", "echo up; exec sleep 600")...)
	eventually(t, time.Minute, "all ranks of the job to be interrupted", func() bool {
		return strings.Count(l.on("spark1", "sparkrun", "logs", "cut").out, "up") == 3
	})
	check(t, syscall.Kill(-ctrlC.cmd.Process.Pid, syscall.SIGINT))
	if r := ctrlC.wait(); r.code != 130 {
		t.Errorf("after Ctrl-C: %s", r)
	}
	if code := l.jobs("spark1")["cut"].ExitCode; code == nil {
		t.Error("the interrupted job has not ended")
	}

	// The member that answered last loses its power: another answers the next command.
	list, err := os.ReadFile(filepath.Join(home, ".config/sparkrun/contexts/lab/roll.json"))
	check(t, err)
	var known struct {
		Last    string
		Members []struct{ ID, Host string }
	}
	check(t, json.Unmarshal(list, &known))
	lost := ""
	for _, m := range known.Members {
		if m.ID == known.Last {
			lost = m.Host
		}
	}
	l.do("kill", lost)
	eventually(t, time.Minute, "a launch by way of another member", func() bool {
		return run("launch", "exec", "--exclude", lost, "--", "true").code == 0
	})
	l.do("start", lost)
	l.on(other(3, lost)[0], "sparkrun", "status", "--wait-nodes", "3", "--timeout", "60s").must(t)

	// Taken off the list, it is refused everywhere, an open reader included; each is written down.
	l.on("spark1", laptop("true")...).must(t)
	long := l.start("spark4", laptop("sparkrun", "launch", "--stdin", "none", "--name", "orphan", "--on", "spark2", "exec", "--", "sleep", "600")...)
	eventually(t, time.Minute, "the last job to run", func() bool { return strings.Contains(run("ps").out, "orphan") })
	says(l.on("spark2", "sparkrun", "client", "list"), 0, "fay")
	says(l.on("spark2", "sparkrun", "client", "remove", "--user", "fay"), 0, "fay@")
	if r := long.wait(); r.code != 125 {
		t.Errorf("a launch that was followed: %s", r)
	}
	says(run("ps"), 1, "does not know this machine any more", "token create --role client")
	l.on("spark2", "sparkrun", "stop", "orphan", "--kill").must(t)
	audits := ""
	for _, h := range []string{"spark1", "spark2", "spark3"} {
		audits += l.on(h, "cat", "/var/lib/sparkrun/audit.log").must(t).out
	}
	for _, line := range []string{`"what":"login","who":"fay"`, `"what":"client call","who":"fay"`, `"what":"client remove"`, `no such client`} {
		if !strings.Contains(audits, line) {
			t.Errorf("no audit log has %s", line)
		}
	}
	if bytes.Contains([]byte(audits), []byte("hush")) {
		t.Error("a secret is in an audit log")
	}
	says(run("logout"), 0, "context lab is gone")
	says(run("context", "current"), 0, "local")
	l.assertNothingLeft("spark1", "spark2", "spark3")
}
