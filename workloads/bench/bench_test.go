package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

const chat = `
name: pair
repeats: 2
scenarios:
  chat:
    serve: vllm org/model --tp {tp} --nodes {tp}
    env: {NCCL_IB_QPS_PER_CONNECTION: "{qps}"}
    vary: {concurrency: [1, 8], tp: [1, 2], qps: 4}
    client: {input: 1024, output: 64, concurrency: "{concurrency}"}
  disk:
    command: dd if={path} of=/dev/null bs=1M 2>&1
    vary:
      - {path: [/home/x, /mnt/rosa]}
      - {path: "/mnt/a b"}
    figures:
      - {pattern: ', (?P<rate>[0-9.]+) GB/s', unit: GB/s, better: higher}
    repeats: 3
`

// Cases of one server follow each other, whatever else varies; what varies is in the words, the variables of the ranks,
// or the client.
func TestCases(t *testing.T) {
	f, err := Read([]byte(chat))
	if err != nil {
		t.Fatal(err)
	}
	cases, err := f.Cases(nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range cases {
		line := c.Label() + ": " + strings.Join(c.Argv, "|")
		if c.Load != nil {
			line += fmt.Sprint(" ", *c.Load)
		}
		got = append(got, fmt.Sprint(line, " x", c.Repeats))
	}
	serve := func(tp string) string {
		return "sparkrun|launch|--env|NCCL_IB_QPS_PER_CONNECTION=4|--json|vllm|org/model|--tp|" + tp + "|--nodes|" + tp
	}
	want := []string{
		"chat concurrency=1 tp=1 qps=4: " + serve("1") + " {auto completions  1024 64 1 8} x2",
		"chat concurrency=8 tp=1 qps=4: " + serve("1") + " {auto completions  1024 64 8 64} x2",
		"chat concurrency=1 tp=2 qps=4: " + serve("2") + " {auto completions  1024 64 1 8} x2",
		"chat concurrency=8 tp=2 qps=4: " + serve("2") + " {auto completions  1024 64 8 64} x2",
		"disk path=/home/x: sh|-c|dd if=/home/x of=/dev/null bs=1M 2>&1 x3",
		"disk path=/mnt/rosa: sh|-c|dd if=/mnt/rosa of=/dev/null bs=1M 2>&1 x3",
		"disk path=/mnt/a b: sh|-c|dd if=/mnt/a b of=/dev/null bs=1M 2>&1 x3",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := f.Cases([]string{"dsk"}); err == nil || !strings.Contains(err.Error(), "known are chat, disk") {
		t.Error(err)
	}
	seen := map[string]bool{}
	for _, c := range cases {
		seen[c.Key()] = true
	}
	if len(seen) != len(cases) {
		t.Error("two cases have one key")
	}
}

// The example has every scenario of the orchestrator that this replaces, and the chapter a file that is read.
func TestExamples(t *testing.T) {
	text, err := os.ReadFile("../../scripts/examples/bench.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f, err := Read(text)
	if err != nil {
		t.Fatal(err)
	}
	cases, err := f.Cases([]string{"train"})
	if err != nil || len(cases) != 3 || cases[2].Label() != "train nodes=2 data=/mnt/rosa-storage/training-benchmarks" {
		t.Error(cases, err)
	}
	got, err := Find(cases[0].Patterns, []byte("[0] Total Time: 103.20s\n[0] Steps/sec: 0.4845\n[0] Samples/sec: 3.88\n"))
	if err != nil || got[0].Value != 0.4845 || got[2].Value != 103.2 {
		t.Error(got, err)
	}
	for name, output := range map[string]string{"ping": "rtt min/avg/max/mdev = 0.071/0.121/0.301/0.030 ms",
		"disk":  "\"read\" : {\n \"io_bytes\" : 8, \"bw_bytes\" : 121,\n \"slat_ns\" : {",
		"links": "    16 GiB      1.00 s     20.00 GB/s     121 GB/s  0\nlast time: 9 GB/s, 3h ago"} {
		cases, err := f.Cases([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Find(cases[0].Patterns, []byte(output)); err != nil || got[0].Value != 121 && got[0].Value != 0.121 {
			t.Error(name, got, err)
		}
	}
	chapter, err := os.ReadFile("../../cmd/sparkrun/help/bench.md")
	if err != nil {
		t.Fatal(err)
	}
	_, inside, _ := strings.Cut(string(chapter), "```yaml\n")
	inside, _, _ = strings.Cut(inside, "```")
	if f, err = Read([]byte(inside)); err != nil {
		t.Error(err)
	}
	if cases, err := f.Cases(nil); err != nil || len(cases) != 8 {
		t.Error(cases, err)
	}
}

func TestReadRefuses(t *testing.T) {
	with := func(old, by string) string { return strings.Replace(chat, old, by, 1) }
	for text, want := range map[string]string{
		"":                                  "it is empty",
		"# nothing\n":                       "it is empty",
		"null":                              "line 1",
		"- a":                               "line 1",
		"name: &a x\nscenarios: *a":         "scenarios: invalid",
		"a: [":                              "line 1",
		chat + "---\nname: b\n":             "want one document",
		"name: x":                           "line 1: scenarios: invalid: want at least one",
		with("name: pair", "nam: pair"):     "line 2: nam: invalid: it is not known here: name, repeats, scenarios, timeout, warmup are",
		with("name: pair", "name: ../x"):    "name: invalid: want one that can be a file's",
		with("name: pair", `name: "\e[2J"`): "name: invalid: want one that can be a file's",
		with("repeats: 2", "repeats: 0"):    "line 3: repeats: invalid: want a number from 1 to 50",
		with("repeats: 2", "timeout: 5"):    "line 3: timeout: invalid: want a time such as 90s",
		with("client: {input", "client: {inputs"):                "line 9: scenarios.chat.client.inputs: invalid: it is not known here",
		with("input: 1024", "input: many"):                       `line 5: scenarios.chat: invalid: client.input: want a number from 1 on, got "many"`,
		with("input: 1024", "use: curl"):                         `client.use: want auto, vllm or own`,
		with("--tp {tp} --nodes {tp}", ""):                       "line 8: scenarios.chat.vary.tp: invalid: nothing here has {tp}",
		with("serve: vllm", "serve: vllm 'a b'"):                 "line 6: scenarios.chat.serve: invalid: it is cut at its spaces",
		with("serve: vllm", "command: x\n    serve: vllm"):       "line 5: scenarios.chat: invalid: want one of serve, recipe and command",
		with("NCCL_IB_QPS_PER_CONNECTION", "HF_TOKEN"):           "line 7: scenarios.chat.env.HF_TOKEN: invalid: its name says that it holds a secret",
		with("(?P<rate>[0-9.]+)", "([0-9.]+)"):                   "line 16: scenarios.disk.figures.pattern: invalid: want one group with the figure's name",
		with("(?P<rate>[0-9.]+)", "(?P<rate>[0-9.]+"):            "line 16: scenarios.disk.figures.pattern: invalid: error parsing regexp",
		with("better: higher", "better: more"):                   "line 16: scenarios.disk.figures.better: invalid: want higher or lower",
		with(`{path: "/mnt/a b"}`, `{way: /mnt}`):                "each part has to have the same names",
		with(`{path: "/mnt/a b"}`, `{path: /mnt/rosa}`):          "disk path=/mnt/rosa is there twice",
		with("  disk:", "  chat:"):                               "scenarios.chat: invalid: it is there twice",
		with("    repeats: 3", "    repeats: 3\n    repeats: 4"): "line 18: scenarios.disk.repeats: invalid: it is there twice",
	} {
		_, err := Read([]byte(text))
		if !errors.Is(err, launcher.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func TestFind(t *testing.T) {
	p := []Pattern{{"rate", `at (?P<rate>\S+) MB`, "MB/s", Higher}}
	got, err := Find(p, []byte("[0] at 3 MB\n[0] at 4.5 MB\n"))
	if err != nil || len(got) != 1 || got[0] != (Figure{"rate", 4.5, "MB/s", Higher}) {
		t.Error(got, err)
	}
	for text, want := range map[string]string{"nothing": "figure rate: nothing in its output matches", "at 1.2.3 MB": `"1.2.3" is no number`,
		"at NaN MB": `"NaN" is no number`, "at inf MB": `"inf" is no number`} {
		if _, err := Find(p, []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// The sample is what benchmark_serving.py of vLLM 0.8 wrote on four L40S; later ones have further percentiles.
func TestReadVLLM(t *testing.T) {
	text, err := os.ReadFile("testdata/vllm-0.8.json")
	if err != nil {
		t.Fatal(err)
	}
	o, err := ReadVLLM(text, 303)
	if err != nil {
		t.Fatal(err)
	}
	want := Outcome{Input: 299700, Output: 81050, Done: 300, Failed: 3, Problem: o.Problem, Figures: []Figure{
		{"output_throughput", 2249.247363167692, "tok/s", Higher}, {"request_throughput", 8.325406649602808, "req/s", Higher},
		{"total_token_throughput", 10566.328606120898, "tok/s", Higher}, {"ttft_p50", 52.999333499883505, "ms", Lower},
		{"ttft_p99", 89.76647855975897, "ms", Lower}, {"tpot_p50", 13.512526767533997, "ms", Lower},
		{"tpot_p99", 17.652194109258673, "ms", Lower}, {"itl_p50", 12.841573499827064, "ms", Lower},
		{"itl_p99", 34.210415409961556, "ms", Lower},
	}}
	if diff := cmp.Diff(want, o); diff != "" {
		t.Error(diff)
	}
	if o, _ = ReadVLLM([]byte(strings.Replace(string(text), "{", `{"p90_ttft_ms": 60.5, `, 1)), 300); o.Figures[4] != (Figure{"ttft_p90", 60.5, "ms", Lower}) {
		t.Error(o.Figures)
	}
	if o, _ = ReadVLLM([]byte(`{"completed": 1, "output_throughput": 5}`), 1); len(o.Figures) != 1 {
		t.Error(o.Figures) // what it does not say is not 0
	}
	if _, err := ReadVLLM([]byte("Traceback"), 1); err == nil {
		t.Error("no error")
	}
}

// The values are those of R's wilcox.test(exact=TRUE) and numpy.percentile; of ties, of counting by hand.
func TestStatistics(t *testing.T) {
	for _, c := range []struct {
		a, b []float64
		p    float64
	}{
		{[]float64{1, 2, 3, 4, 5}, []float64{6, 7, 8, 9, 10}, 2.0 / 252},
		{[]float64{1, 2, 3}, []float64{4, 5, 6}, 0.1},
		{[]float64{0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46}, []float64{1.15, 0.88, 0.90, 0.74, 1.21}, 0.25441},
		{[]float64{1, 1}, []float64{1, 1}, 1},
		{[]float64{1, 1}, []float64{2, 2}, 1.0 / 3},
		{[]float64{1, 2, 2}, []float64{2, 3, 3}, 2.0 * 3 / 20},
		{nil, []float64{1}, 1},
		{make([]float64, 1e6), []float64{1}, 1},
	} {
		if p := MannWhitney(c.a, c.b); math.Abs(p-c.p) > 1e-5 {
			t.Errorf("%v, %v: p = %v, want %v", c.a, c.b, p, c.p)
		}
	}
	v := []float64{15, 20, 35, 40, 50}
	if q := Quantile(v, .4); math.Abs(q-29) > 1e-9 || Median(v) != 35 || *MiddleOf(v).Spread != 20./35 || Quantile(v, .99) != 49.6 {
		t.Error(q, Median(v), MiddleOf(v), Quantile(v, .99))
	}
}

// result makes a run's line.
func result(c Case, repeat int, figures ...Figure) Result {
	r := c.Begun(repeat)
	r.Figures = figures
	return r
}

func runOf(id, kernel string, mhz float64, results ...Result) Run {
	for i := range results {
		results[i].After = []GPU{{Host: "spark1", MHz: &mhz}}
	}
	return Run{Headers: []Header{{ID: id, Name: "pair", Circumstances: []Setting{{"kernel of spark1", kernel}}}}, Results: results}
}

func TestCompareAndScaling(t *testing.T) {
	of := func(id, kernel string, mhz, one, two, path float64) Run {
		c := func(nodes string) Case {
			return Case{Scenario: "train", Values: []Setting{{"nodes", nodes}}, Argv: []string{"train", nodes, kernel}}
		}
		var all []Result
		for i := range 5 {
			jitter := float64(i) / 100
			all = append(all, result(c("1"), i+1, Figure{"steps", one + jitter, "steps/s", Higher}, Figure{Seconds, 9 - jitter, "s", Lower}),
				result(c("2"), i+1, Figure{"steps", two + jitter, "steps/s", Higher}))
		}
		all = append(all, result(Case{Scenario: "few"}, 1, Figure{"rate", path, "GB/s", Higher}))
		all = append(all, result(Case{Scenario: id}, 1, Figure{"rate", 1, "GB/s", Higher}))
		return runOf(id, kernel, mhz, all...)
	}
	c := Compare(of("a", "6.11", 2400, 1, 1.9, 1), of("b", "6.17", 1200, 1, 1.4, 2))
	want := []Difference{{"kernel of spark1", "6.11", "6.17"}, {"GPU clock of spark1", "2400 MHz", "1200 MHz"},
		{"command of train", "6.11", "6.17"}}
	if diff := cmp.Diff(want, c.Circumstances); diff != "" {
		t.Error(diff)
	}
	var got []string
	for _, f := range c.Figures {
		got = append(got, fmt.Sprintf("%s %s %+.2f %.2f %s", f.Case, f.Figure, *f.Change, f.P, f.Verdict))
	}
	if diff := cmp.Diff([]string{"train nodes=1 steps +0.00 1.00 no difference", "train nodes=1 seconds +0.00 1.00 no difference",
		"train nodes=2 steps -0.26 0.01 worse", "few rate +1.00 1.00 too few runs"}, got); diff != "" {
		t.Error(diff)
	}
	if len(c.OnlyA) != 1 || c.OnlyA[0] != "a" || c.OnlyB[0] != "b" {
		t.Error(c.OnlyA, c.OnlyB)
	}
	if s := c.ScalingA; len(s) != 1 || s[0].By != "nodes" || s[0].To != 2 || math.Abs(s[0].Efficiency-.941) > .001 ||
		math.Abs(s[0].Speedup-1.882) > .001 || s[0].Case != "train" {
		t.Error(s)
	}
}

// What is 0 has no part of it, and what is negative rises to 0; what has another unit is not compared, but told, as are
// words that have changed places, and what a run was resumed under.
func TestCompareOddities(t *testing.T) {
	run := func(unit string, values []float64, figure string, argv ...string) Run {
		var all []Result
		for i, v := range values {
			all = append(all, result(Case{Scenario: "x", Argv: argv}, i+1, Figure{figure, v, unit, Higher}, Figure{"same", 1, "", Lower}))
		}
		return runOf("r", "", 1, all...)
	}
	a := run("dB", []float64{-40, -41, -39, -40, -42}, "level", "a", "b")
	c := Compare(a, run("dB", []float64{-20, -21, -19, -22}, "level", "b", "a"))
	if f := c.Figures[0]; f.Verdict != Improved || math.Abs(*f.Change-.4875) > 1e-9 || *f.A.Spread <= 0 {
		t.Errorf("%+v", f)
	}
	if diff := cmp.Diff([]Difference{{"command of x", "a b", "b a"}}, c.Circumstances); diff != "" {
		t.Error(diff)
	}
	if f := Compare(run("", []float64{-1, 0, 1}, "level"), a).Figures; len(f) != 1 || f[0].Figure != "same" {
		t.Error(f)
	}
	if f := Compare(run("dB", []float64{-1, 0, 1}, "level"), a).Figures[0]; f.Change != nil || f.A.Spread != nil {
		t.Errorf("%+v", f)
	}
	c = Compare(a, run("W", []float64{1}, "level", "a", "b"))
	if diff := cmp.Diff([]Difference{{"level of x", "dB (higher is better)", "W (higher is better)"}}, c.Circumstances); diff != "" {
		t.Error(diff)
	}
	a.Headers = append(a.Headers, Header{Circumstances: []Setting{{"sparkrun", "16.1"}}}, Header{Circumstances: []Setting{{"sparkrun", "6.1"}}})
	a.Results[0].After[0].Throttle, a.Results[1].After[0].Throttle = []string{"hot"}, []string{"hot", "power"}
	if got := a.Circumstances(); value(got, "sparkrun") != "16.1, then 6.1" || value(got, "GPU slowed on spark1") != "hot, then power" {
		t.Error(got)
	}
}

// tp may grow with the machines or stay; where it does neither, the cases are not compared.
func TestScaling(t *testing.T) {
	var all []Group
	for i, v := range []string{"1 1", "1 2", "2 1", "2 2", "0 1"} {
		nodes, tp, _ := strings.Cut(v, " ")
		all = append(all, Group{Case: Case{Scenario: "x", Values: []Setting{{"nodes", nodes}, {"tp", tp}}}, Figures: []Samples{{"rate", "", Higher,
			[]float64{float64(i + 1)}}}})
	}
	var got []string
	for _, s := range Scaling(all) {
		got = append(got, fmt.Sprintf("%s %d/%d %.2f", s.Case, s.To, s.From, s.Efficiency))
	}
	if diff := cmp.Diff([]string{"x tp=1 2/1 1.50", "x 2/1 2.00"}, got); diff != "" {
		t.Error(diff)
	}
}

// What was measured is read again, less a line that a crash has cut; a failure that was made good is none, and what was
// measured of a case before it was changed is not its own.
func TestReadRun(t *testing.T) {
	old, now := Case{Scenario: "x", Argv: []string{"old"}}, Case{Scenario: "x", Argv: []string{"new"}}
	failed := result(now, 2)
	failed.Error = "it broke"
	text := ""
	for _, l := range []Line{{Run: &Header{ID: "r"}}, {Server: &Server{Job: "j1"}}, {Stopped: "j1"},
		{Result: new(result(old, 1, Figure{"a", 1, "", Higher}))}, {Result: &failed}, {Ended: &Ended{Failed: 1}},
		{Run: &Header{ID: "r"}}, {Server: &Server{Job: "j2"}}, {Result: new(result(now, 1, Figure{"a", 2, "", Higher}))},
		{Result: new(result(now, 2, Figure{"a", 4, "", Higher}))}} {
		line, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		text += string(line) + "\n"
	}
	r, err := ReadRun([]byte(text + `{"result": {"key`))
	if err != nil {
		t.Fatal(err)
	}
	g := r.Groups()
	if r.Ended != nil || r.Left != "j2" || len(g) != 1 || g[0].Error != "" || !cmp.Equal(g[0].Figures[0].Values, []float64{2, 4}) {
		t.Errorf("%+v", g)
	}
	if !r.Done(now.Key(), 2) || r.Done(now.Key(), 3) {
		t.Error("done is not what is done")
	}
	if _, err := ReadRun([]byte("{}\n")); err == nil {
		t.Error("no error")
	}
}

func TestDraw(t *testing.T) {
	var all []Result
	for _, n := range []string{"8", "1", "16"} {
		for _, tp := range []string{"1", "<2>\x01"} {
			c := Case{Scenario: "chat", Values: []Setting{{"tp", tp}, {"concurrency", n}}}
			all = append(all, result(c, 1, Figure{"rate", float64(len(n)), "tok/s", Higher}), result(c, 2, Figure{"rate", 3, "tok/s", Higher}))
		}
	}
	r := runOf("r", "", 1, all...)
	svg, err := Draw([]Run{r, r}, Drawn{})
	if err != nil {
		t.Fatal(err)
	}
	text := string(svg)
	one, eight, sixteen := strings.Index(text, ">1</text>"), strings.Index(text, ">8</text>"), strings.Index(text, ">16</text>")
	if one < 0 || one > eight || eight > sixteen || strings.Count(text, "<polyline") != 2 || strings.ContainsAny(text, "\x01") || strings.Contains(text, "<2>") ||
		!strings.Contains(text, "rate, tok/s") || strings.Contains(text, "NaN") {
		t.Error(text)
	}
	for want, d := range map[string]Drawn{`no figure "x": there are rate`: {Figure: "x"}, `no value "y" varies`: {By: "y"}} {
		if _, err := Draw([]Run{r}, d); err == nil || err.Error() != want {
			t.Error(err)
		}
	}
}
