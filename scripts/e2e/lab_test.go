// Package e2e tests sparkrun as its users have it: the binary, in the
// simulated Sparks of scripts/lab, with real PyTorch. It needs root, iproute2
// and python3-torch; scripts/test installs them.
package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// python has torch: the distribution's, or that of scripts/torch where it has no package of it.
var python = func() string {
	const own = "/usr/local/lib/sparkrun-torch/bin/python3"
	if _, err := os.Stat(own); err == nil {
		return own
	}
	return "/usr/bin/python3"
}()

var rounds = flag.Int("rounds", 25, "how often the leader is killed under submits")

var binary string

// side is how many tests run side by side, of those that may: they wait for
// machines to be given up, or for ranks to have run for a while.
const side = "4"

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		if err := f.Value.Set(side); err != nil {
			panic(err)
		}
	}
	dir, err := os.MkdirTemp("/var/tmp", "sparkrun-e2e-")
	if err == nil {
		binary = filepath.Join(dir, "sparkrun")
		build := exec.Command("../build", binary) // as it is released: with the shim's program inside
		var out []byte
		if out, err = build.CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build sparkrun:", err)
		os.Exit(1)
	}
	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, os.Interrupt, syscall.SIGTERM)
	go func() { // for as long as the tests run
		<-stopped
		fmt.Fprintln(os.Stderr, "interrupted: the labs are taken down")
		for i := range labs.Load() {
			l := &lab{name: labName(i + 1)}
			_ = l.command("down").Run() // one that has ended already is none
		}
		os.RemoveAll(dir)
		os.Exit(1)
	}()
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// lab is a set of simulated hosts that ends with its test.
type lab struct {
	t    testing.TB
	name string
}

var labs atomic.Int64

func labName(n int64) string { return fmt.Sprintf("e2e%d-%d", os.Getpid(), n) }

func up(t testing.TB, nodes int, flags ...string) *lab {
	t.Helper()
	return upWith(t, binary, nodes, flags...)
}

// upWith is up with another build.
func upWith(t testing.TB, binary string, nodes int, flags ...string) *lab {
	t.Helper()
	l := &lab{t: t, name: labName(labs.Add(1))}
	t.Cleanup(func() {
		if t.Failed() {
			l.showLogs()
		}
		l.do("down")
	})
	l.do(append([]string{"up", "--nodes", fmt.Sprint(nodes), "--binary", binary}, flags...)...)
	return l
}

func (l *lab) command(args ...string) *exec.Cmd {
	cmd := exec.Command("../lab", args...)
	cmd.Env = append(os.Environ(), "LAB="+l.name)
	return cmd
}

// do runs a command of the lab itself; it must succeed.
func (l *lab) do(args ...string) string {
	l.t.Helper()
	out, err := l.command(args...).CombinedOutput()
	if err != nil {
		l.t.Fatalf("lab %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// showLogs shows the end of each agent's log. It is short, as what failed is told below it.
func (l *lab) showLogs() {
	logs, _ := filepath.Glob("/var/tmp/sparkrun-lab/" + l.name + "/hosts/*/agent.log")
	for _, path := range logs {
		b, _ := os.ReadFile(path)
		b = b[max(0, len(b)-3000):]
		l.t.Logf("%s:\n%s", path, b)
	}
}

// result is what a person at a host's terminal would have seen.
type result struct {
	out, err string
	code     int
	took     time.Duration
}

func (r result) String() string {
	return fmt.Sprintf("exit %d after %s\nstdout:\n%s\nstderr:\n%s", r.code, r.took.Round(time.Millisecond), r.out, r.err)
}

// on runs a command on a host to its end.
func (l *lab) on(host string, args ...string) result {
	l.t.Helper()
	return l.start(host, args...).wait()
}

// running is a command on a host that has not ended.
type running struct {
	l        *lab
	cmd      *exec.Cmd
	out, err *output
	began    time.Time
}

// output is what a command has written so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (l *lab) start(host string, args ...string) *running {
	l.t.Helper()
	r := &running{l: l, cmd: l.command(append([]string{"exec", host, "--"}, args...)...), out: &output{}, err: &output{}, began: time.Now()}
	r.cmd.Stdout, r.cmd.Stderr = r.out, r.err
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // signals for it are ours to send
	r.cmd.WaitDelay = time.Minute                           // where what it left behind keeps its output open
	if err := r.cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	return r
}

func (r *running) wait() result {
	r.l.t.Helper()
	return r.within(2 * time.Minute)
}

// within waits for so long; the command is killed then.
func (r *running) within(limit time.Duration) result {
	r.l.t.Helper()
	timeout := time.AfterFunc(limit, func() { syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL) })
	defer timeout.Stop()
	err := r.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.l.t.Fatalf("%v: %s%s", err, r.out, r.err)
	}
	return result{out: r.out.String(), err: r.err.String(), code: r.cmd.ProcessState.ExitCode(), took: time.Since(r.began)}
}

// over is whether it has ended; it is still to be waited for.
func (r *running) over() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, r.cmd.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err != nil || info.Signo != 0
}

// must fails the test unless the command exits 0.
func (r result) must(t testing.TB) result {
	t.Helper()
	if r.code != 0 {
		t.Fatalf("want exit 0, got %s", r)
	}
	return r
}

// eventually waits for something that nothing here can be told of.
func eventually(t testing.TB, within time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > within {
			t.Fatalf("not within %s: %s", within, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return time.Since(began)
}

// processes lists what runs on a host beside init, the agent and an engine, without what
// has ended and not been waited for.
func (l *lab) processes(host string) string {
	l.t.Helper()
	out := l.on(host, "ps", "-eo", "pid=,ppid=,stat=,args=").must(l.t).out
	var left []string
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if f[0] == "1" || f[2][0] == 'Z' || strings.Contains(line, "sparkrun agent") || strings.Contains(line, "dockerd --data-root") || strings.Contains(line, "containerd --config") || strings.Contains(line, "ps -eo") {
			continue
		}
		left = append(left, strings.TrimSpace(line))
	}
	return strings.Join(left, "\n")
}

func (l *lab) assertNothingLeft(hosts ...string) {
	l.t.Helper()
	for _, h := range hosts {
		left := ""
		began := time.Now()
		for left = l.processes(h); left != "" && time.Since(began) < 20*time.Second; left = l.processes(h) {
			time.Sleep(50 * time.Millisecond)
		}
		if left != "" {
			l.t.Errorf("left on %s:\n%s", h, left)
		}
	}
}

// job is a line of `ps --json`.
type job struct {
	ID       string `json:"job_id"`
	Name     string `json:"name"`
	State    string `json:"state"`
	ExitCode *int   `json:"exit_code"`
}

func (l *lab) jobs(host string) map[string]job {
	l.t.Helper()
	var list []job
	out := l.on(host, "sparkrun", "ps", "--all", "--json").must(l.t).out
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		l.t.Fatalf("ps --json: %v\n%s", err, out)
	}
	byName := map[string]job{}
	for _, j := range list {
		byName[j.Name] = j
	}
	return byName
}

// leader asks a host who leads; empty while nobody does.
func (l *lab) leader(host string) string {
	l.t.Helper()
	r := l.on(host, "sparkrun", "status", "--json")
	var st struct {
		Leader string `json:"leader"`
	}
	if json.Unmarshal([]byte(r.out), &st) != nil {
		return ""
	}
	return st.Leader
}

// other gives hosts that are none of these.
func other(n int, not ...string) []string {
	var out []string
next:
	for i := 1; i <= n; i++ {
		h := fmt.Sprintf("spark%d", i)
		for _, x := range not {
			if x == h {
				continue next
			}
		}
		out = append(out, h)
	}
	return out
}

// scratch is a folder that all hosts share: the hosts have /tmp of their own.
func scratch(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "sparkrun-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}
