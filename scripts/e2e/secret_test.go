package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	binenc "encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What the planted secrets are known by, wherever they turn up: in parts, so that
// no argument of a test's command is mistaken for a leak.
var (
	plantedEnv  = "hf_planted" + "InTheEnvironment7"
	plantedFile = "wandb-planted" + "InAFile8"
)

// planted tells whether bytes hold one of the secrets, plain or in base64.
func planted(b []byte) bool {
	for _, s := range []string{plantedEnv, plantedFile} {
		for skip := range 3 { // base64 looks otherwise at each of three places
			inner := base64.StdEncoding.EncodeToString([]byte(s[skip:]))
			if bytes.Contains(b, []byte(inner[:len(inner)-len(inner)%4-4])) {
				return true
			}
		}
		if bytes.Contains(b, []byte(s)) {
			return true
		}
	}
	return false
}

// wiretap takes down all that a host sends and hears, gossip included, until it
// is asked for.
func (l *lab) wiretap(host string) (heard func() []byte) {
	l.t.Helper()
	var all bytes.Buffer
	var mu sync.Mutex
	ready, stop, stopped := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		runtime.LockOSThread() // and never unlocked: the thread is in another namespace
		ns, err := os.Open("/proc/" + l.init(host) + "/ns/net")
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			ns.Close()
		}
		fd := -1
		if err == nil {
			fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(binenc.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})))
		}
		if err == nil {
			tv := unix.NsecToTimeval(int64(100 * time.Millisecond))
			err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
		}
		ready <- err
		if err != nil {
			return
		}
		defer unix.Close(fd)
		b := make([]byte, 1<<16)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if n, _, err := unix.Recvfrom(fd, b, 0); err == nil {
				mu.Lock()
				all.Write(b[:n])
				mu.Unlock()
			}
		}
	}()
	check(l.t, <-ready)
	return func() []byte {
		close(stop)
		<-stopped
		return all.Bytes()
	}
}

// leaks lists the files of a host that hold a secret: its state, its /run but for
// the folder of secrets, its agent's log, every command line.
func (l *lab) leaks(host string) (found []string) {
	l.t.Helper()
	root := "/proc/" + l.init(host) + "/root"
	look := func(path string) {
		if b, err := os.ReadFile(path); err == nil && planted(b) {
			found = append(found, strings.TrimPrefix(path, root))
		}
	}
	files := 0
	for _, dir := range []string{"/var/lib/sparkrun", "/run"} {
		err := filepath.WalkDir(root+dir, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return nil //nolint:nilerr // what is gone holds nothing
			case d.IsDir() && path == root+"/run/sparkrun/secrets":
				return fs.SkipDir
			case d.Type().IsRegular():
				files++
				look(path)
			}
			return nil
		})
		check(l.t, err)
	}
	if files < 5 {
		l.t.Fatalf("%s: only %d files were looked into", host, files)
	}
	look("/var/tmp/sparkrun-lab/" + l.name + "/hosts/" + host + "/agent.log")
	for _, p := range l.table(host) {
		if planted([]byte(p.args)) {
			found = append(found, "the command line of "+p.args)
		}
	}
	return found
}

// unpacked reads every file of a tar.gz.
func unpacked(t testing.TB, path string) map[string][]byte {
	t.Helper()
	f, err := os.Open(path)
	check(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	check(t, err)
	files := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		check(t, err)
		b, err := io.ReadAll(r)
		check(t, err)
		_, name, _ := strings.Cut(h.Name, "/") // the folder that all is in
		files[name] = b
	}
}

// A secret reaches the ranks, and nothing else ever has it: not the record, its
// snapshots, what goes over the network, logs, command lines, or what the
// commands show. Nothing of it outlives its job.
func TestSecrets(t *testing.T) {
	l := up(t, 3)
	dir := scratch(t)
	keyFile := filepath.Join(dir, "wandb.key")
	check(t, os.WriteFile(keyFile, []byte(plantedFile+"\n"), 0o600))
	defer os.Remove(keyFile)
	// What it finds, without saying it. The first try fails, so that the next has
	// to be given them again.
	check(t, os.WriteFile(filepath.Join(dir, "rank.sh"), []byte(`
half=${HF_TOKEN#hf_planted}
[ "$half" = "InTheEnvironment7" ] && [ "$(cat "$HF_TOKEN_FILE")" = "$HF_TOKEN" ] || exit 3
[ "${WANDB_API_KEY%8}" = "wandb-plantedInAFile" ] && [ "$(cat "$SPARKRUN_SECRETS_DIR/WANDB_API_KEY")" = "$WANDB_API_KEY" ] || exit 4
[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || exit 5
stat -c '%a %U' "$HF_TOKEN_FILE" "$SPARKRUN_SECRETS_DIR" | tr '\n' ' ' > "$1/$SPARKRUN_HOST.new"
stat -f -c %T "$HF_TOKEN_FILE" >> "$1/$SPARKRUN_HOST.new"
echo found both
mv "$1/$SPARKRUN_HOST.new" "$1/$SPARKRUN_HOST"
exec sleep 600
`), 0o755))
	sparkrun := func(args ...string) result {
		return l.on("spark1", append([]string{"env", "HF_TOKEN=" + plantedEnv, "sparkrun"}, args...)...)
	}
	quiet := func(what string, r result) {
		t.Helper()
		if planted([]byte(r.out + r.err)) {
			t.Errorf("%s shows a secret: %s", what, r)
		}
	}
	with := []string{"launch", "--name", "secretive", "--on", "spark2,spark3", "--user", "nobody", "--max-restarts", "1", "--workdir", dir,
		"--secret", "HF_TOKEN", "--secret", "WANDB_API_KEY=" + keyFile}
	command := []string{"exec", "--", "sh", "rank.sh", dir}

	dry := sparkrun(append(append([]string{}, append(with, "--dry-run")...), command...)...).must(t)
	quiet("--dry-run", dry)
	if !strings.Contains(dry.out, "HF_TOKEN_FILE") {
		t.Errorf("--dry-run does not tell of the secrets: %s", dry)
	}
	if r := sparkrun("launch", "--env", "HF_TOKEN", "exec", "--", "true"); r.code != 125 || !strings.Contains(r.err, "--secret HF_TOKEN") || planted([]byte(r.err)) {
		t.Errorf("--env HF_TOKEN: %s", r)
	}

	taps := map[string]func() []byte{}
	for _, h := range []string{"spark1", "spark2", "spark3"} {
		taps[h] = l.wiretap(h)
	}
	quiet("launch", sparkrun(append(append([]string{}, append(with, "-d")...), command...)...))
	for _, h := range []string{"spark2", "spark3"} {
		eventually(t, time.Minute, "the secrets on "+h, func() bool {
			b, err := os.ReadFile(filepath.Join(dir, h))
			if err == nil && string(b) != "400 nobody 500 nobody tmpfs\n" {
				t.Fatalf("%s: the secret's file and folder are %q", h, b)
			}
			return err == nil
		})
	}
	quiet("ps --json", sparkrun("ps", "--all", "--json").must(t))
	quiet("ps JOB", sparkrun("ps", "secretive").must(t))
	quiet("logs", sparkrun("logs", "secretive").must(t))
	sparkrun("raft", "snapshot", filepath.Join(dir, "record.snap")).must(t)
	if b, err := os.ReadFile(filepath.Join(dir, "record.snap")); err != nil || planted(b) {
		t.Errorf("record.snap holds a secret, or is not there: %v", err)
	}
	sparkrun("report", "--output", filepath.Join(dir, "report.tgz")).must(t)
	reported := unpacked(t, filepath.Join(dir, "report.tgz"))
	if jobs := reported["cluster/jobs.json"]; !bytes.Contains(jobs, []byte("HF_TOKEN")) || bytes.Contains(jobs, []byte(`"box"`)) {
		t.Errorf("the report's jobs.json does not name the secret, or has it sealed: %.300s", jobs)
	}
	for name, b := range reported {
		if planted(b) {
			t.Errorf("the report holds a secret, in %s", name)
		}
	}
	for _, h := range []string{"spark1", "spark2", "spark3"} {
		if found := l.leaks(h); len(found) > 0 {
			t.Errorf("%s: a secret is in %s", h, strings.Join(found, ", "))
		}
	}
	// Somebody else on the machine gets at none of it.
	for _, path := range []string{"/run/sparkrun/secrets/*/HF_TOKEN", "/run/sparkrun/secrets"} {
		if r := l.on("spark2", "setpriv", "--reuid", "1", "--regid", "1", "--clear-groups", "sh", "-c", "cat "+path+" || ls "+path); r.code == 0 {
			t.Errorf("uid 1 reads %s: %s", path, r)
		}
	}

	// A job that ends while its node has no agent leaves its secrets until that comes.
	l.do("kill", "spark3", "--agent")
	l.on("spark3", "pkill", "-KILL", "-f", "^sleep 600").must(t)
	eventually(t, time.Minute, "no sleep on spark3", func() bool { return !strings.Contains(l.processes("spark3"), "sleep 600") })
	l.do("start", "spark3", "--agent")
	left := func(h string) string {
		return strings.TrimSpace(l.on(h, "find", "/run/sparkrun/secrets", "-mindepth", "1").out)
	}
	for _, h := range []string{"spark2", "spark3"} {
		eventually(t, time.Minute, "no secrets on "+h, func() bool { return left(h) == "" })
	}
	for h, heard := range taps {
		b := heard()
		if planted(b) {
			t.Errorf("a secret went over %s's network", h)
		}
		if len(b) < 100_000 {
			t.Errorf("%s: only %d bytes were heard", h, len(b))
		}
	}
	for _, h := range []string{"spark1", "spark2", "spark3"} {
		if found := l.leaks(h); len(found) > 0 {
			t.Errorf("%s, after the job: a secret is in %s", h, strings.Join(found, ", "))
		}
	}
	// What is recorded as it is would have been found.
	sparkrun("launch", "--env", "INNOCENT="+plantedEnv, "exec", "--", "true").must(t)
	if found := l.leaks("spark1"); len(found) == 0 {
		t.Error("a variable in the record is not found: this test proves nothing")
	}
}
