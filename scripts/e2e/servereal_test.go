package e2e

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var serveReal = flag.String("serve-real", "", "TestServeReal: the `FOLDER` in which scripts/serve-real has put vLLM and a model")

// realWait is patience: each of vLLM's processes imports a lot of Python, and two hosts share
// this machine's processors.
const realWait = 30 * time.Minute

// realLab is a lab with the real vLLM.
type realLab struct {
	*lab
	env string
}

// launch begins a launch of the tiny model, with what a CPU needs of flags and variables.
func (l realLab) launch(host, model string, args []string, server ...string) serving {
	l.t.Helper()
	all := append([]string{"--vllm", filepath.Join(l.env, "bin/vllm"), "--env", "VLLM_CPU_OMP_THREADS_BIND=nobind", "--env", "HF_HUB_OFFLINE=1", "--env", "VLLM_NO_USAGE_STATS=1"}, args...)
	all = append(all, model, "--", "--dtype", "float32", "--enforce-eager", "--max-model-len", "512")
	return l.serve(host, append(all, server...)...)
}

// boxed are the flags with which vLLM, of this machine, runs in an image that has nothing.
func (l realLab) boxed() []string {
	l.t.Helper()
	real, err := filepath.EvalSymlinks(filepath.Join(l.env, "bin/python"))
	if err != nil {
		l.t.Fatal(err)
	}
	args := []string{"--runtime", "docker", "--image", "lab/bare"}
	for _, dir := range []string{"/usr", "/etc/alternatives", l.env, filepath.Dir(filepath.Dir(real))} {
		args = append(args, "--mount", dir+":"+dir+":ro")
	}
	return args
}

// completes wants text of a server.
func (l realLab) completes(host, url, model string, tokens int) {
	l.t.Helper()
	body, err := json.Marshal(map[string]any{"model": model, "prompt": "Once", "max_tokens": tokens, "ignore_eos": true})
	if err != nil {
		l.t.Fatal(err)
	}
	r := l.start(host, "curl", "-sS", "--fail-with-body", "-m", "600", "-H", "Content-Type: application/json", "-d", string(body), url+"/v1/completions").within(realWait)
	var answer struct {
		Usage struct {
			Tokens int `json:"completion_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal([]byte(r.must(l.t).out), &answer); err != nil || answer.Usage.Tokens != tokens {
		l.t.Errorf("want %d tokens: %v, %s", tokens, err, r)
	}
}

// told waits for the end of a launch or a service and wants words of it.
func (l realLab) told(what, text string, want ...string) {
	l.t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			l.t.Errorf("%s: not told %q:\n%s", what, w, text)
		}
	}
}

// failed waits until a service has ended badly, and gives what ps says of it.
func (l realLab) failed(host, name string) (text string) {
	l.t.Helper()
	eventually(l.t, realWait, name+" has failed", func() bool {
		time.Sleep(time.Second)
		text = l.on(host, "sparkrun", "ps", name).out
		return l.jobs(host)[name].State == "failed"
	})
	return text
}

// The real vLLM, on a CPU, serves a tiny model of random weights on one host, and cut over two;
// what it says when it fails is told.
func TestServeReal(t *testing.T) {
	if *serveReal == "" {
		t.Skip("takes vLLM, of which each start takes minutes: scripts/serve-real")
	}
	model := filepath.Join(*serveReal, "model")
	if _, err := os.Stat(filepath.Join(model, "model.safetensors")); err != nil {
		t.Fatalf("%v: scripts/serve-real makes it", err)
	}
	hosts := []string{"spark1", "spark2"}
	l := realLab{up(t, 2), *serveReal}
	const small = "VLLM_CPU_KVCACHE_SPACE=1" // GiB
	for _, tt := range []struct {
		name string
		args []string
		dies string // the process that is killed then
		at   string
		says string
	}{
		{"one", []string{"--on", "spark1"}, "VLLM::EngineCore", "spark1", "engine core exited unexpectedly"},
		{"tp", []string{"--on", "spark1,spark2"}, "VLLM::Worker", "spark2", "stage workers, rank 1 on spark2: exit 0: Worker proc VllmWorker-1 died unexpectedly (exit code: -9)"},
		{"pp", []string{"--on", "spark1,spark2", "--pp", "2"}, "", "", ""},
		{"boxed", append([]string{"--on", "spark1,spark2"}, l.boxed()...), "vllm serve", "spark1", "rank 0 on spark1: killed by SIGKILL (9)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := realLab{&lab{t: t, name: l.name}, l.env}
			if slices.Contains(tt.args, "--image") {
				l.do(append([]string{"engine"}, hosts...)...)
				defer l.noContainerLeft(hosts...)
			}
			s := l.launch("spark2", model, append([]string{"--name", tt.name, "--restart", "no", "--backend", "native", "--env", small}, tt.args...))
			defer func() { // what a failure leaves would fail all that follows
				if t.Failed() {
					l.on("spark2", "sparkrun", "stop", "--kill", tt.name)
				}
			}()
			url := s.url(t, realWait)
			if r := s.within(realWait); r.code != 0 {
				t.Errorf("launch leaves what serves: %s: %s", r, s.said())
			}
			if tt.name != "pp" { // a pipeline of 0.32.0's for CPUs fails at its first request, without sparkrun, too
				l.completes("spark2", url, model, 100)
				eventually(t, realWait, "ps shows tokens a second", func() bool {
					l.completes("spark2", url, model, 50)
					rate := l.service("spark2", tt.name).Service.Rate
					return rate != nil && *rate > 0
				})
			}
			if tt.dies == "" {
				l.on("spark2", "sparkrun", "stop", tt.name).must(t)
			} else {
				l.on(tt.at, "pkill", "-KILL", "-f", tt.dies).must(t)
				l.told("after "+tt.dies+" was killed", l.failed("spark1", tt.name), tt.says)
			}
			l.assertNothingLeft(hosts...)
		})
	}
	t.Run("port held", func(t *testing.T) {
		l := realLab{&lab{t: t, name: l.name}, l.env}
		held := l.start("spark1", python, "-m", "http.server", "8000")
		defer func() { held.cmd.Process.Kill(); held.wait() }()
		eventually(t, realWait, "somebody has port 8000", func() bool { return l.on("spark1", "curl", "-s", "http://127.0.0.1:8000").code == 0 })
		s := l.launch("spark2", model, []string{"--on", "spark1", "--env", small})
		l.told("its port is held", s.ended(t), "8000", "choose another port")
	})
	const ended = "stage serve, rank 0 on spark1: exit 1: "
	for name, tt := range map[string]struct {
		model string
		args  []string
		says  []string
	}{
		"no such folder": {filepath.Join(*serveReal, "nowhere"), []string{"--env", small}, []string{"nowhere", "it is not there: copy the model to every machine"}},
		"no weights":     {bare(t, model), []string{"--env", small}, []string{ended, "Cannot find any model weights"}},
		"no room":        {model, []string{"--env", "VLLM_CPU_KVCACHE_SPACE=999"}, []string{ended, "is less than requested memory for kv (999.0 GiB)"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := realLab{&lab{t: t, name: l.name}, l.env}
			s := l.launch("spark1", tt.model, append([]string{"--on", "spark1"}, tt.args...))
			s.within(realWait)
			l.told(name, s.said(), tt.says...)
			l.assertNothingLeft(hosts...)
		})
	}
}

// bare is a model without its weights.
func bare(t *testing.T, model string) string {
	t.Helper()
	dir := scratch(t)
	for _, name := range []string{"config.json", "tokenizer.json", "tokenizer_config.json"} {
		text, err := os.ReadFile(filepath.Join(model, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
