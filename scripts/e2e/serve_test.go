package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// serveWait is patience: what is waited for takes a second or two on a quiet machine.
const serveWait = 2 * time.Minute

// standin puts the stand-in for vLLM where all hosts have it, to be run by a Python.
func standin(t testing.TB, python string) string { return standinOf(t, "vllm-standin", python) }

func standinOf(t testing.TB, name, python string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name + ".py")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(scratch(t), name)
	if err := os.WriteFile(program, append([]byte("#!"+python+"\n"), text...), 0o755); err != nil {
		t.Fatal(err)
	}
	return program
}

// serving is a launch that serves, with what it has said in a file that can be read meanwhile.
type serving struct {
	*running
	said func() string
}

func (l *lab) serve(host string, args ...string) serving {
	l.t.Helper()
	return l.serveWith(host, append([]string{"vllm"}, args...)...)
}

func (l *lab) serveWith(host string, args ...string) serving {
	l.t.Helper()
	file := filepath.Join(scratch(l.t), "said")
	r := l.start(host, append([]string{"sh", "-c", `exec "$@" 2>"$0"`, file, "sparkrun", "launch", args[0], "--runtime", "host"}, args[1:]...)...)
	l.t.Cleanup(func() { r.cmd.Process.Kill() })
	return serving{r, func() string {
		b, _ := os.ReadFile(file)
		return string(b)
	}}
}

// url waits until the launch says where it answers.
func (s serving) url(t *testing.T, within time.Duration) string {
	t.Helper()
	at := ""
	eventually(t, within, "a URL; said so far: "+s.said(), func() bool {
		over := s.over() // before it is read what it said
		_, rest, found := strings.Cut(s.said(), "the service answers at ")
		line, _, whole := strings.Cut(rest, "\n")
		at = line
		return found && whole || strings.Contains(s.said(), "was ended") || over
	})
	if !strings.HasPrefix(at, "http://") {
		t.Fatalf("it does not serve: %s", s.said())
	}
	return at
}

// asked is what the stand-in says of itself at /v1/models.
type asked struct {
	Argv []string
	Mods []string
	Warm bool
	Met  []any
}

func (l *lab) ask(t *testing.T, host, url string) (a asked) {
	t.Helper()
	l.on(host, "curl", "-sf", url+"/health").must(t)
	if err := json.Unmarshal([]byte(l.on(host, "curl", "-sf", url+"/v1/models").must(t).out), &a); err != nil {
		t.Fatal(err)
	}
	return a
}

// ended waits for the launch's end and gives what it said last: that has to fit a screen.
func (s serving) ended(t *testing.T) string {
	t.Helper()
	code := s.wait().code
	said := s.said()
	if code == 0 {
		t.Errorf("it ended with 0: %s", said)
	}
	waits := strings.Count(said, ": no answer yet (")    // as many as the wait is long
	busy := strings.Count(said, ": warning: memory of ") // by what else this machine does
	if n := strings.Count(said, "\n") - waits - busy; n > 24 {
		t.Errorf("%d lines are more than a screen:\n%s", n, said)
	}
	return said
}

// vLLM's place is taken by a stand-in: what is tested is who is started where with what, what
// is told meanwhile, and what is told when it goes wrong.
func TestServeNative(t *testing.T) {
	program := standin(t, python)
	l := up(t, 2)
	args := func(more ...string) []string {
		return append([]string{"--vllm", program, "--on", "spark1,spark2", "--host", "0.0.0.0"}, more...)
	}

	s := l.serve("spark2", "--vllm", program, "--on", "spark1,spark2", "--name", "served", "--restart", "no", "org/model", "--", "--max-model-len", "64")
	url := s.url(t, serveWait)
	if r := s.wait(); r.code != 0 {
		t.Errorf("launch leaves what serves: %s: %s", r, s.said())
	}
	if url != "http://10.250.0.11:8000" && !strings.HasSuffix(url, ":8000") {
		t.Errorf("it serves at %s", url)
	}
	got := l.ask(t, "spark2", url)
	host := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), ":8000")
	want := []string{"serve", "org/model", "--tensor-parallel-size", "2", "--nnodes", "2", "--node-rank", "0", "--master-addr", "192.168.100.11", "--master-port", "PORT",
		"--host", host, "--port", "8000", "--max-model-len", "64"}
	if i := 11; len(got.Argv) > i {
		got.Argv[i] = "PORT"
	}
	if d := cmp.Diff(want, got.Argv); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]any{"192.168.100.12"}, got.Met); d != "" {
		t.Errorf("the worker's own address: %s", d)
	}
	if out := l.on("spark1", "curl", "-s", "-m", "2", "http://192.168.100.11:8000/health"); out.code == 0 {
		t.Error("it answers on the fabric, too, where nobody asked for that")
	}
	if out := l.on("spark1", "sparkrun", "ps", "served").must(t).out; !strings.Contains(out, "(serve)") || !strings.Contains(out, "(workers)") {
		t.Errorf("ps names no stages:\n%s", out)
	}
	for _, want := range []string{"asking vLLM how it spreads", "stage workers is ready", "stage serve is ready"} {
		if !strings.Contains(s.said(), want) {
			t.Errorf("not told %q: %s", want, s.said())
		}
	}

	// Its port is taken: refused before anything starts, on the machine that has it.
	if r := l.on("spark1", append([]string{"sparkrun", "launch", "vllm", "--runtime", "host", "--share", "--backend", "native"}, args("org/other")...)...); r.code != 125 || !strings.Contains(r.err, "spark1") || !strings.Contains(r.err, "8000") || !strings.Contains(r.err, "choose another port") {
		t.Errorf("the port is taken: %s", r)
	}

	// After it was ready: a worker dies, and all of it ends, with the worker's name.
	l.on("spark2", "pkill", "-KILL", "-f", "vllm-standin serve").must(t)
	eventually(t, time.Minute, "the worker that died is named", func() bool {
		return strings.Contains(l.on("spark1", "sparkrun", "ps", "served").out, "stage workers, rank 1 on spark2")
	})
	l.assertNothingLeft("spark1", "spark2")

	// Before: each with its cause.
	for model, want := range map[string][]string{
		"missing/weights": {"missing/weights is not a local folder and is not a valid model identifier"},
		"too/big":         {"stage serve, rank 0 on spark1", "the GPU's memory ran out"},
		"dies/early":      {"stage workers, rank 1 on spark2: exit 9", "worker lost its GPU"},
		"dies/early-head": {"stage serve, rank 0 on spark1: exit 9", "worker lost its GPU"},
	} {
		s := l.serve("spark1", args("--backend", "native", model)...)
		said := s.ended(t)
		for _, w := range want {
			if !strings.Contains(said, w) {
				t.Errorf("%s: not told %q:\n%s", model, w, said)
			}
		}
	}
	l.assertNothingLeft("spark1", "spark2")
}

// A real Ray cluster under the stand-in, which runs a task on each host by it.
func TestServeOnRay(t *testing.T) {
	ray, err := filepath.Abs("../../.build/ray/bin/ray")
	if err == nil {
		_, err = os.Stat(ray)
	}
	if err != nil {
		t.Fatalf("%v: ./scripts/ray puts Ray there", err)
	}
	program := standin(t, filepath.Join(filepath.Dir(ray), "python3"))
	l := up(t, 2)
	s := l.serve("spark1", "--vllm", program, "--ray", ray, "--ray-arg=--num-cpus=1", "--ray-arg=--num-gpus=1", "--on", "spark1,spark2", "--backend", "ray", "--name", "served", "org/model")
	url := s.url(t, rayWait)
	got := l.ask(t, "spark2", url)
	var own []string
	for _, m := range got.Met {
		if seen, is := m.(map[string]any); is {
			own = append(own, seen["VLLM_HOST_IP"].(string))
		}
	}
	if strings.Join(own, " ") != "192.168.100.11 192.168.100.12" && strings.Join(own, " ") != "192.168.100.12 192.168.100.11" {
		t.Errorf("tasks ran with VLLM_HOST_IP %v", own)
	}
	if i := strings.Join(got.Argv, " "); !strings.Contains(i, "--tensor-parallel-size 2 --distributed-executor-backend ray --host") {
		t.Errorf("vLLM's arguments: %s", i)
	}
	for _, want := range []string{"stage ray-head is ready", "stage ray-workers is ready", "stage serve is ready"} {
		if !strings.Contains(s.said(), want) {
			t.Errorf("not told %q: %s", want, s.said())
		}
	}
	s.wait()
	l.on("spark2", "sparkrun", "stop", "served").must(t)
	l.assertNothingLeft("spark1", "spark2")
}
