package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads/bench"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"sparkrun": standin})
}

// standin takes the place of the program that is started as a child: it notes its words, and launches a service that is
// there already.
func standin() {
	note, err := os.OpenFile(os.Getenv("NOTES"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	words := strings.Join(os.Args[1:min(len(os.Args), 6)], " ")
	fmt.Fprintln(note, words)
	switch {
	case strings.HasSuffix(words, "broken/model"):
		fmt.Println(`{"type": "event", "step": "planned", "job": "j0"}`)
		fmt.Fprintln(os.Stderr, "sparkrun: out of memory")
		os.Exit(1)
	case words == "stop gone":
		fmt.Fprintf(os.Stderr, "sparkrun: stop job \"gone\": %v\n", rendezvous.ErrNoJob)
		os.Exit(1)
	case os.Args[1] == "launch" || os.Args[1] == "run":
		fmt.Println(`{"type": "event", "step": "planned", "job": "j1", "plan": {"nodes": [{"host": "spark1"}, {"host": "spark2"}]}}`)
		fmt.Printf(`{"type": "event", "step": "serves", "job": "j1", "url": %q}`+"\n", os.Getenv("SERVER"))
	case os.Args[1] == "exec":
		cmd := exec.Command(os.Args[4], os.Args[5:]...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if cmd.Run() != nil {
			os.Exit(127)
		}
	}
}

// engine is a server of OpenAI's API whose tokens cost nothing.
func engine(t *testing.T, asked *atomic.Int64) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/version":
			io.WriteString(w, `{"version": "0.12.1"}`)
		case "/v1/models":
			io.WriteString(w, `{"data": [{"id": "org/model", "root": "/models/m"}, {"id": "lora", "root": "/models/l"}]}`)
		case "/v1/completions":
			asked.Add(1)
			var body struct{ Model string }
			if json.NewDecoder(r.Body).Decode(&body) != nil || body.Model == "bad" {
				http.Error(w, "overloaded", http.StatusServiceUnavailable)
				return
			}
			for range 3 {
				io.WriteString(w, `data: {"choices": [{"text": "x"}]}`+"\n\n")
			}
			io.WriteString(w, `data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}`+"\n\ndata: [DONE]\n\n")
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

const file = `
name: two
repeats: 2
warmup: 0
scenarios:
  chat:
    serve: vllm org/model --tp {tp}
    vary: {tp: [1, 2], concurrency: [1, 2]}
    client: {use: own, input: 9, output: 3, concurrency: "{concurrency}", prompts: 4}
  sum:
    command: echo rate 7
    figures: [{pattern: 'rate (?P<rate>\d+)', unit: x/s, better: higher}]
`

// bed is a user's folder, with a file of benchmarks.
type bed struct {
	t     *testing.T
	a     *app.App
	out   strings.Builder
	errs  apptest.SyncBuffer
	dir   string
	asked atomic.Int64
}

func newBed(t *testing.T, text string) *bed {
	b := &bed{t: t, dir: t.TempDir()}
	b.write("two.yaml", text)
	b.a = &app.App{Out: &b.out, Err: &b.errs, Version: "1.2.3", Dial: func() *wire.Client { return apptest.Agent() }, Environ: append(os.Environ(),
		"XDG_STATE_HOME="+b.dir, "NOTES="+filepath.Join(b.dir, "notes"), "SERVER="+engine(t, &b.asked),
		"PATH="+b.dir+":"+os.Getenv("PATH"))}
	return b
}

func (b *bed) write(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o700); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) do(args ...string) error {
	cmd := NewCmd(b.a)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	return cmd.ExecuteContext(b.t.Context())
}

func (b *bed) run(more ...string) error {
	return b.do(append([]string{"run", filepath.Join(b.dir, "two.yaml")}, more...)...)
}

func (b *bed) read(name string) string {
	text, _ := os.ReadFile(filepath.Join(b.dir, name))
	return string(text)
}

// kept is the only run's file.
func (b *bed) kept() string {
	b.t.Helper()
	all, err := filepath.Glob(filepath.Join(b.dir, "sparkrun/bench/*.jsonl"))
	if err != nil || len(all) != 1 {
		b.t.Fatalf("%v, %v; %s", all, err, b.errs.String())
	}
	return all[0]
}

func (b *bed) result() bench.Run {
	b.t.Helper()
	r, err := read(b.kept())
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// Wherever a run is killed, resuming it measures what is missing, that alone, and stops the server that was left. A
// server is started once for all that is asked of it.
func TestResumeFromEverywhere(t *testing.T) {
	b := newBed(t, file)
	if err := b.run(); err != nil {
		t.Fatal(err, b.errs.String())
	}
	const whole = "launch --json vllm org/model --tp\nstop j1\nlaunch --json vllm org/model --tp\nstop j1\n"
	if diff := cmp.Diff(whole, b.read("notes")); diff != "" {
		t.Error(diff)
	}
	if r := b.result(); len(r.Results) != 10 || r.Ended == nil || r.Results[0].Server.Engine != "0.12.1" || b.asked.Load() != 32 ||
		!cmp.Equal(r.Results[7].Server.Hosts, []string{"spark1", "spark2"}) || r.Results[0].Figures[0].Name != "output_throughput" {
		t.Errorf("%d requests; %+v", b.asked.Load(), r.Results)
	}
	if err := b.run("--resume"); err == nil || !strings.Contains(err.Error(), "is done") {
		t.Error(err)
	}
	path := b.kept()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(strings.TrimSuffix(string(text), "\n"), "\n")
	for n := 1; n < len(lines); n++ {
		had := strings.Join(lines[:n], "")
		before, err := bench.ReadRun([]byte(had))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(had+lines[n][:len(lines[n])/2]), 0o600); err != nil {
			t.Fatal(err)
		}
		os.Remove(filepath.Join(b.dir, "notes"))
		if err := b.run("--resume"); err != nil {
			t.Fatalf("killed behind line %d: %v", n, err)
		}
		r := b.result()
		seen := map[string]int{}
		for _, res := range r.Results {
			seen[fmt.Sprint(res.Key, res.Repeat)]++
		}
		if len(r.Results) != 10 || len(seen) != 10 || r.Ended == nil || r.Left != "" || len(r.Headers) != 2 {
			t.Errorf("killed behind line %d: %d results, %d of them different, left %q", n, len(r.Results), len(seen), r.Left)
		}
		if before.Left != "" != strings.HasPrefix(b.read("notes"), "stop j1\n") {
			t.Errorf("killed behind line %d, left %q: %s", n, before.Left, b.read("notes"))
		}
	}
}

// What fails is told with its cause, the others go on, and a resumption does it again; a file that has changed is
// refused.
func TestFailures(t *testing.T) {
	b := newBed(t, strings.Replace(file, "org/model --tp {tp}", "broken/model", 1))
	b.write("two.yaml", strings.Replace(strings.Replace(file, "org/model --tp {tp}", "broken/model", 1), "vary: {tp: [1, 2], ", "vary: {", 1))
	if err := b.run(); err == nil || !strings.Contains(err.Error(), "2 cases failed") {
		t.Fatal(err)
	}
	r := b.result()
	if len(r.Results) != 4 || !strings.Contains(r.Results[1].Error, "exit status 1; it said last: sparkrun: out of memory") ||
		r.Results[3].Figures[0].Value != 7 {
		t.Errorf("%+v", r.Results)
	}
	if notes := b.read("notes"); notes != "launch --json vllm broken/model\nstop j0\n" {
		t.Error(notes) // it is tried once for both cases
	}
	b.write("two.yaml", file)
	if err := b.run("--resume"); err == nil || !strings.Contains(err.Error(), "has changed since") {
		t.Error(err)
	}
	if err := b.run("--resume", "--changed"); err != nil {
		t.Error(err)
	}
	if err := b.do("show", "two"); err != nil || !strings.Contains(b.out.String(), "7 x/s") ||
		strings.Contains(b.out.String(), "out of memory") {
		t.Error(err, b.out.String())
	}
	if r := b.result(); r.Ended.Failed != 0 || len(r.Results) != 4+8 {
		t.Errorf("%+v", r.Results)
	}
	b = newBed(t, strings.Replace(file, "echo rate 7", "echo none", 1))
	if err := b.run("--only", "sum"); err == nil || !strings.Contains(b.errs.String(), "nothing in its output matches") {
		t.Error(err, b.errs.String())
	}
}

// A file may have more repeats afterwards, which run where the others did. A server that is not known any more is no
// reason to go on never.
func TestChangedAndForgotten(t *testing.T) {
	b := newBed(t, strings.Replace(file, "echo rate 7", `pwd >>"$NOTES"; echo rate 7`, 1))
	if err := b.run("--only", "sum"); err != nil {
		t.Fatal(err)
	}
	j, err := os.OpenFile(b.kept(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(j, `{"server": {"job": "gone"}}`+"\n")
	j.Close()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(b.dir)
	b.write("two.yaml", strings.Replace(b.read("two.yaml"), "repeats: 2", "repeats: 3", 1))
	if err := b.run("--resume", "--changed"); err != nil {
		t.Fatal(err)
	}
	if r := b.result(); len(r.Results) != 3 || r.Left != "" || b.read("notes") != strings.Repeat(here+"\n", 2)+"stop gone\n"+here+"\n" {
		t.Errorf("%+v; %s", r, b.read("notes"))
	}
}

// What varies of a client is asked of one server; one that has failed is replaced before the next case.
func TestOneServerManyClients(t *testing.T) {
	b := newBed(t, strings.Replace(strings.Replace(file, "tp: [1, 2], concurrency: [1, 2]", "model: [lora, bad, org/model]", 1),
		`concurrency: "{concurrency}"`, `model: "{model}"`, 1))
	b.write("two.yaml", strings.Replace(b.read("two.yaml"), " --tp {tp}", "", 1))
	if err := b.run("--only", "chat"); err == nil || !strings.Contains(err.Error(), "1 case failed") {
		t.Fatal(err, b.errs.String())
	}
	if r := b.result(); len(r.Results) != 5 || !strings.Contains(r.Results[2].Error, "all 4 requests failed: /v1/completions answers 503") {
		t.Errorf("%+v", r.Results)
	}
	if notes := b.read("notes"); notes != strings.Repeat("launch --json vllm org/model\nstop j1\n", 2) {
		t.Error(notes)
	}
}

// A command that hangs is ended with all that it has started, and so it is when the terminal goes, which is resumed. What
// it leaves behind is not waited for.
func TestTimeoutAndInterrupt(t *testing.T) {
	b := newBed(t, strings.Replace(file, "echo rate 7", "sleep 300 & wait", 1)+"    timeout: 100ms\n")
	if err := b.run("--only", "sum"); err == nil || !strings.Contains(b.errs.String(), "it took longer than its timeout, 100ms") {
		t.Error(err, b.errs.String())
	}
	b = newBed(t, strings.Replace(file, "echo rate 7", "sleep 300 & echo rate 7", 1)+"    timeout: 30s\n")
	if err := b.run("--only", "sum"); err != nil {
		t.Error(err, b.errs.String())
	}
	b = newBed(t, strings.Replace(file, "echo rate 7", `trap "touch ended; sleep 0.1; exit" TERM; touch began; sleep 300 & wait`, 1))
	t.Chdir(b.dir)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) // nohup, under which these tests may run, has it ignored
	over := make(chan struct{})
	go func() {
		ticks := time.Tick(time.Millisecond)
		for _, name := range []string{"began", "ended"} { // a terminal that goes is told twice
			for _, err := os.Stat(name); err != nil; _, err = os.Stat(name) {
				select {
				case <-ticks:
				case <-over:
					return
				}
			}
			syscall.Kill(os.Getpid(), syscall.SIGHUP)
		}
	}()
	err := b.do("run", "two.yaml", "--only", "sum")
	close(over)
	if _, err := os.Stat("ended"); err != nil {
		t.Error(err)
	}
	if exit, is := errors.AsType[*app.ExitError](err); !is || exit.Code != 130 || !strings.Contains(b.errs.String(), "bench run two.yaml --resume` goes on") {
		t.Error(err, b.errs.String())
	}
	if r := b.result(); len(r.Results) != 0 || r.Ended != nil {
		t.Errorf("%+v", r)
	}
}

// vllm bench serve asks where it is beside the server, with the model's folder for its tokenizer.
func TestVLLMBenchServe(t *testing.T) {
	b := newBed(t, strings.Replace(file, "use: own", "use: auto", 1))
	b.write("vllm", `#!/bin/sh
echo "$@" >>"$NOTES"
while [ "$1" != --result-dir ]; do shift; done
cp "$NOTES.json" "$2/$4"
`)
	text, err := os.ReadFile("../../../workloads/bench/testdata/vllm-0.8.json")
	if err != nil {
		t.Fatal(err)
	}
	b.write("notes.json", strings.Replace(string(text), `"completed": 300`, `"completed": 3`, 1))
	if err := b.run("--only", "chat"); err != nil {
		t.Fatal(err, b.errs.String())
	}
	res := b.result().Results[0]
	if res.Client != bench.VLLM || res.Figures[0].Value != 2249.247363167692 || len(res.Notes) == 0 ||
		!strings.Contains(res.Notes[0], "1 of 4 requests failed") {
		t.Errorf("%+v", res)
	}
	for _, want := range []string{"--model /models/m --served-model-name org/model", "--random-input-len 9 --random-output-len 3 --ignore-eos " +
		"--num-prompts 4 --max-concurrency 2"} {
		if !strings.Contains(b.read("notes"), want) {
			t.Errorf("no %s in %s", want, b.read("notes"))
		}
	}
	seeds := map[string]bool{}
	for _, after := range strings.Split(b.read("notes"), "--seed ")[1:] {
		seeds[strings.Fields(after)[0]] = true
	}
	if len(seeds) != 8 {
		t.Errorf("cases of one server have the same prompts: %v", seeds)
	}
}

// What a run of somebody else's says moves no cursor, makes no row, and is no formula.
func TestHostileRun(t *testing.T) {
	b := newBed(t, file)
	line, err := json.Marshal(bench.Line{Result: &bench.Result{Case: bench.Case{Scenario: "=cmd|x", Values: []bench.Setting{
		{Name: "n", Value: "-1"}, {Name: "flag", Value: "--x"}}}, Figures: []bench.Figure{{Name: "a\x1b[2J", Value: -2, Unit: "\n@B"}}}})
	if err != nil {
		t.Fatal(err)
	}
	b.write("x.jsonl", `{"run": {"id": "+id\n"}}`+"\n"+string(line)+"\n")
	path := filepath.Join(b.dir, "x.jsonl")
	for _, args := range [][]string{{"show", path, "--csv"}, {"show", path}, {"compare", path, path}} {
		if err := b.do(args...); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(b.out.String(), "'+id,'=cmd|x,-1,'--x,0,0001-01-01T00:00:00Z,a\x1b[2J,-2,'@B,,\n") {
		t.Error(b.out.String())
	}
	_, shown, _ := strings.Cut(b.out.String(), "'@B,,\n")
	if strings.Contains(shown, "\x1b") || strings.Contains(shown, "\n@B") || strings.Contains(shown, "id\n") {
		t.Errorf("%q", shown)
	}
}

// What is to be known of many runs is said once, and GPUs are shown with the clocks that they had.
func TestNotesAndGPUs(t *testing.T) {
	b := newBed(t, file)
	text := `{"run": {"id": "x"}}` + "\n"
	for n := 1; n <= 3; n++ {
		line, err := json.Marshal(bench.Line{Result: &bench.Result{Case: bench.Case{Scenario: "chat"}, Repeat: n,
			Notes: []string{"short prompts"}, After: []bench.GPU{{Host: "spark1", Name: "NVIDIA GB10", MHz: new(2400. + float64(n))}}}})
		if err != nil {
			t.Fatal(err)
		}
		text += string(line) + "\n"
	}
	b.write("x.jsonl", text)
	if err := b.do("show", filepath.Join(b.dir, "x.jsonl")); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nchat, run 1: short prompts (and in 2 more)\n", "  GPU of spark1: NVIDIA GB10\n",
		"  GPU clock of spark1: 2402 MHz\n"} {
		if got := b.out.String(); strings.Count(got, want) != 1 {
			t.Errorf("%q is not once in %s", want, got)
		}
	}
	r := &runner{}
	res := bench.Result{Notes: []string{"short prompts"}}
	if first, again := r.inShort(res), r.inShort(res); first != "short prompts" || again != "" {
		t.Errorf("%q, then %q", first, again)
	}
}

func TestShown(t *testing.T) {
	b := newBed(t, file)
	for range 2 {
		if err := b.run("--only", "sum"); err != nil {
			t.Fatal(err)
		}
	}
	b.out.Reset()
	if err := b.do("ls", "--json"); err != nil {
		t.Fatal(err)
	}
	var all []listed
	if err := json.Unmarshal([]byte(b.out.String()), &all); err != nil || len(all) != 2 || all[0].State != "done" || all[1].Results != 2 {
		t.Fatal(err, b.out.String())
	}
	for line, want := range map[string]string{
		"compare " + all[0].ID + " " + all[1].ID: "sum    rate      7 x/s (0.0 %)",
		"show two --csv":                         ",sum,1,",
		"show two --json":                        `"unit": "x/s"`,
		"plot two -o -":                          "<polyline",
		"show two":                               all[1].ID + ", of",
		"show tw":                                all[1].ID + ", of",
		"ls":                                     all[1].ID,
		"run " + b.dir + "/two.yaml --dry-run":   "5 cases: 10 runs, and 0 to warm up; 2 servers to start",
	} {
		b.out.Reset()
		if err := b.do(strings.Fields(line)...); err != nil || !strings.Contains(b.out.String(), want) {
			t.Errorf("%s: %v: %s", line, err, b.out.String())
		}
	}
	for line, want := range map[string]string{"show x": "there is none", "show two --csv --json": "want one of --csv and --json",
		"plot two": "--output is missing", "run x --changed": "--changed: this is for --resume", "compare two": "a run is missing"} {
		if err := b.do(strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// Of what a command writes the last is kept, and all of it is shown to who wants to see it.
func TestTailOfOutput(t *testing.T) {
	var shown atomic.Int64
	out := &tail{to: writer(func(p []byte) (int, error) { shown.Add(int64(len(p))); return len(p), nil })}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "yes | head -c 50000000; echo rate 7")
	cmd.Stdout = out
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if kept := out.kept.Len(); kept > 3*keptOutput || !strings.HasSuffix(out.String(), "rate 7\n") || shown.Load() != 50_000_007 {
		t.Errorf("%d bytes are kept, %d were shown", kept, shown.Load())
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
