package e2e

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var (
	clients   = flag.String("clients", "", "TestServeRealGateway: the `FOLDER` of scripts/gateway_clients.d/venv")
	openWebUI = flag.String("open-webui", "", "TestServeRealGateway: the `FOLDER` of Open WebUI's virtual environment")
)

// Real engines are asked by real clients through a member that does not run them, behind what people put before a
// gateway, too; and they die under requests.
func TestServeRealGateway(t *testing.T) {
	if *clients == "" {
		t.Skip("takes real engines and clients: scripts/serve-real")
	}
	const model = "org/tiny"
	for _, tt := range []struct {
		engine string
		launch func(l realLab) serving
		dies   string // the process that is killed
	}{
		{"vllm", func(l realLab) serving {
			return l.launch("spark1", filepath.Join(l.env, "model"), []string{"--name", "llm", "--on", "spark1", "--restart", "3/hour",
				"--env", "VLLM_CPU_KVCACHE_SPACE=1", "--env", "VLLM_ENABLE_RESPONSES_API_STORE=1"},
				"--served-model-name", model, "--max-model-len", "4096", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
				"--structured-outputs-config", `{"backend": "xgrammar", "disable_any_whitespace": true}`,
				"--enable-lora", "--max-lora-rank", "8", "--lora-modules", "tuned="+filepath.Join(l.env, "adapter"))
		}, "VLLM::EngineCore"},
		{"llamacpp", func(l realLab) serving {
			return l.serveWith("spark1", "llamacpp", "--llama-server", filepath.Join(*llamacpp, "llama-server"), "--name", "llm",
				"--on", "spark1", "--restart", "3/hour", filepath.Join(*llamacpp, "tiny.gguf"),
				"--", "--alias", model, "--ctx-size", "24576", "--parallel", "6", "--threads", "2")
		}, "llama-server"},
	} {
		t.Run(tt.engine, func(t *testing.T) {
			if tt.engine == "llamacpp" && *llamacpp == "" {
				t.Skip("llama.cpp is not here: -llamacpp")
			}
			l := realLab{up(t, 2), *serveReal}
			s := tt.launch(l)
			url := s.url(t, realWait)
			s.within(realWait)
			eventually(t, time.Minute, "the model at spark2", func() bool {
				return strings.Contains(l.on("spark2", "curl", "-s", "-m", "5", loopback+"/models").out, `"`+model+`"`)
			})
			here, err := filepath.Abs("../gateway_clients.d")
			if err != nil {
				t.Fatal(err)
			}
			dir := scratch(t)
			run := func(script string, args ...string) *running {
				python := filepath.Join(*clients, "bin/python")
				return l.start("spark2", append([]string{"env", "LITELLM_LOCAL_MODEL_COST_MAP=True", "LITELLM_TELEMETRY=False",
					"HOME=" + dir, python, filepath.Join(here, script), strings.TrimSuffix(loopback, "/v1"), model}, args...)...)
			}
			told := func(what string, r *running) {
				t.Helper()
				if got := r.within(realWait); got.code != 0 {
					t.Errorf("%s: %s", what, got)
				} else {
					t.Logf("%s:\n%s", what, got.out)
				}
			}
			told("clients", run("real.py", tt.engine, url))
			told("before the gateway", run("fronts.py", dir, filepath.Join(*clients, "bin/litellm"), filepath.Join(*openWebUI, "bin/open-webui")))
			file := filepath.Join(dir, "under-way")
			dying := run("killed.py", file)
			eventually(t, 2*time.Minute, "all is under way", func() bool {
				_, err := os.Stat(file)
				return err == nil || dying.over()
			})
			l.on("spark1", "pkill", "-KILL", "-f", tt.dies).must(t)
			told("the engine dies", dying)
			if g := l.service("spark1", "llm").Generation; g != 2 {
				t.Errorf("it answers in generation %d", g)
			}
			l.on("spark2", "sparkrun", "stop", "llm").must(t)
			l.assertNothingLeft("spark1", "spark2")
		})
	}
}
