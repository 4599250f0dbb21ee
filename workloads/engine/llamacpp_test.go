package engine

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
)

func TestLlamacpp(t *testing.T) {
	boxed := serving(2, workloads.Serve{Model: "/models/m.gguf"})
	boxed.Container, boxed.Workdir = &launcher.Container{Image: "llama"}, ""
	older := serving(2, workloads.Serve{Model: "/models/m.gguf", Worker: "rpc-server", PP: 2, Args: strings.Fields("-a tiny,small")})
	older.Environ = append(older.Environ, "VIRTUAL_ENV=/venv") // which is Python's
	for name, r := range map[string]workloads.Request{
		"llamacpp":         serving(1, workloads.Serve{Model: "/models/m.gguf", Args: strings.Fields("--ctx-size 4096 --metrics")}),
		"llamacpp-several": serving(3, workloads.Serve{Model: "org/model:Q8_0", Program: "/opt/llama/bin/llama-server", Port: 8081, Host: "0.0.0.0"}),
		"llamacpp-older":   older,
		"llamacpp-boxed":   boxed,
	} {
		t.Run(name, func(t *testing.T) { golden(t, name, "llamacpp", r) })
	}
	if s, err := named(t, "llamacpp").Spec(older); err != nil || s.Service.Model != "tiny" { // the server lists the other
		t.Errorf("of two names requests give %q: %v", s.Service.Model, err)
	}
}

func TestLlamacppRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		serve workloads.Serve
		want  string
	}{
		"no model":         {workloads.Serve{}, "llamacpp: invalid: no model"},
		"a file":           {workloads.Serve{Model: "m.gguf"}, "model m.gguf: invalid: a file is named by its full path, or from ./"},
		"each layer cut":   {workloads.Serve{Model: "/m.gguf", TP: 2}, "--tp 2: invalid: llamacpp does not spread over machines that way"},
		"on some":          {workloads.Serve{Model: "/m.gguf", PP: 3}, "--pp 3: invalid: llama.cpp deals out the layers to all machines: --nodes 3, or --pp 2"},
		"which machines":   {workloads.Serve{Model: "/m.gguf", Args: []string{"--rpc", "h:1"}}, "--rpc stands after --: invalid: it is told where the others are"},
		"a key":            {workloads.Serve{Model: "/m.gguf", Args: []string{"--api-key", "k"}}, "give it with --secret LLAMA_API_KEY"},
		"a token in short": {workloads.Serve{Model: "org/m", Args: []string{"-hft", "k"}}, "give it with --secret HF_TOKEN"},
		"TLS":              {workloads.Serve{Model: "/m.gguf", Args: []string{"--ssl-cert-file", "c"}}, "llamacpp would answer by TLS"},
		"below a path":     {workloads.Serve{Model: "/m.gguf", Args: []string{"--api-prefix=/x"}}, "llamacpp would answer below a path of its own"},
		"the port twice":   {workloads.Serve{Model: "/m.gguf", Port: 1, Args: []string{"--port", "2"}}, "--port 2 stands after --"},
	} {
		if _, err := named(t, "llamacpp").Spec(serving(2, c.serve)); err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, launcher.ErrInvalid) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// What llama-server itself says at its ends (ggml 0.25.3).
func TestLlamacppCauses(t *testing.T) {
	log := named(t, "llamacpp").Signs.Log
	for line, want := range map[string]string{
		"/src/ggml-rpc.cpp:566: Remote RPC server crashed or returned malformed response":                             llamacppLost,
		"/src/ggml-rpc.cpp:547: Failed to connect to 192.168.100.12:50052":                                            "Failed to connect to 192.168.100.12:50052",
		"0.00.006.372 E gguf_init_from_file: failed to open GGUF file '/nope.gguf' (No such file or directory)":       "failed to open GGUF file '/nope.gguf' (No such file or directory)",
		"0.00.005.685 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 50082":        "couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 50082",
		"0.00.006.378 E llama_model_load: error loading model: llama_model_loader: failed to load model from /x.gguf": "error loading model: llama_model_loader: failed to load model from /x.gguf",
		"0.00.028.296 I srv  llama_server: listening on http://127.0.0.1:50080":                                       "",
	} {
		got := ""
		for _, c := range log.Causes {
			if got = regexp.MustCompile(c).FindString(line); got != "" {
				break
			}
		}
		if got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
	if !regexp.MustCompile(log.Elsewhere).MatchString(llamacppLost) {
		t.Error("a head that lost a worker would be taken for the cause")
	}
}
