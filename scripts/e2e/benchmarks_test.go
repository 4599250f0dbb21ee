package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// benchRun is what bench show --json says.
type benchRun struct {
	Run []struct {
		Circumstances []struct{ Name, Value string }
	}
	Results []struct {
		Scenario string
		Before   []struct {
			MHz *float64 `json:"clock_mhz"`
		}
		Server  struct{ Hosts []string }
		Figures []struct {
			Name  string
			Value float64
		}
	}
	Ended *struct{ Failed int }
}

// A file of a server and a command is run, interrupted, resumed, and compared with another run of it. The server's words
// are a second apart: that is what has to be measured.
func TestBenchmarks(t *testing.T) {
	t.Parallel()
	l := up(t, 2, "--gpu")
	dir := scratch(t)
	script, err := filepath.Abs("testdata/standin_chat.py")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "lab.yaml")
	check(t, os.WriteFile(file, []byte(`
name: lab
warmup: 0
repeats: 1
scenarios:
  chat:
    serve: [exec, --on, spark2, --serve, "8000", --model, qwen, --, python3, `+script+`, "8000"]
    vary: {n: [1, 2]}
    client: {api: chat, input: 10, output: 2, concurrency: "{n}", prompts: "{n}"}
  hosts:
    command: [sparkrun, launch, exec, --nodes, "2", --, echo, rate 7]
    figures: [{pattern: 'rate (?P<rate>\d+)', unit: x/s, better: higher}]
    repeats: 4
`), 0o644))
	bench := func(args ...string) []string {
		return append([]string{"env", "XDG_STATE_HOME=" + dir, "sparkrun", "bench"}, args...)
	}
	said := filepath.Join(dir, "said")
	r := l.start("spark1", append([]string{"sh", "-c", `exec "$@" 2>` + said, "-"}, bench("run", file)...)...)
	eventually(t, 30*time.Second, "the first run", func() bool {
		text, _ := os.ReadFile(said)
		return strings.Contains(string(text), "chat n=1: 1 of 1: output_throughput") || r.over()
	})
	check(t, r.cmd.Process.Signal(syscall.SIGINT))
	if got := r.wait(); got.code != 130 {
		text, _ := os.ReadFile(said)
		t.Fatalf("%s: %s", got, text)
	}
	for _, j := range l.jobs("spark1") {
		if j.State == "running" {
			t.Errorf("a server is left: %+v", j)
		}
	}
	first := strings.TrimSpace(l.on("spark1", bench("run", file, "--resume")...).must(t).out)
	second := strings.TrimSpace(l.on("spark2", bench("run", file, "--only", "hosts")...).must(t).out)

	var run benchRun
	check(t, json.Unmarshal([]byte(l.on("spark1", bench("show", first, "--json")...).must(t).out), &run))
	if len(run.Results) != 6 || run.Ended == nil || run.Ended.Failed != 0 || len(run.Run) != 2 {
		t.Fatalf("%+v", run)
	}
	known := map[string]string{}
	for _, c := range run.Run[1].Circumstances {
		known[c.Name] = c.Value
	}
	if known["cluster"] == "" || known["machines"] != "spark1 spark2" || known["kernel of spark2"] == "" {
		t.Error(known)
	}
	for i, res := range run.Results[:2] {
		got := map[string]float64{}
		for _, f := range res.Figures {
			got[f.Name] = f.Value
		}
		if got["itl_p50"] < 990 || got["itl_p50"] > 1400 || got["tpot_p50"] < 990 || got["output_throughput"] > 1.01*float64(i+1) ||
			got["output_throughput"] < 0.7*float64(i+1) {
			t.Errorf("%d at a time: %v", i+1, got)
		}
		if len(res.Server.Hosts) != 1 || res.Server.Hosts[0] != "spark2" || len(res.Before) != 2 || res.Before[0].MHz == nil {
			t.Errorf("%+v", res)
		}
	}
	out := l.on("spark1", bench("compare", first, second)...).must(t).out
	if !strings.Contains(out, "no difference") || !strings.Contains(out, "only in A: chat n=1; chat n=2") {
		t.Error(out)
	}
	l.on("spark1", bench("plot", first, "--figure", "itl_p50", "-o", filepath.Join(dir, "x.svg"))...).must(t)
}
