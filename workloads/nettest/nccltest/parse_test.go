package nccltest

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/workloads/nettest"
)

var update = flag.Bool("update", false, "write the goldens anew")

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (write it with -update)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// samples are what real programs printed: 2.19.6-* two H200 (built from that tag, run
// by Open MPI or as one process), sweep-* sweep.py, and 2.18.5-gb10 a pair of GB10.
// Those named *-made are written by hand after the format strings of that tag.
func samples(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.*")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range files {
		if !strings.HasSuffix(f, ".golden") {
			out = append(out, f)
		}
	}
	if len(out) < 12 {
		t.Fatalf("only %d samples", len(out))
	}
	return out
}

func TestSamples(t *testing.T) {
	for _, file := range samples(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			table, err := Parse(string(text))
			if err != nil {
				t.Fatal(err)
			}
			golden(t, file+".golden", render(table))
		})
	}
}

func render(t Table) string {
	var b strings.Builder
	fmt.Fprintf(&b, "tool %q op %q nccl %q backend %q\n", t.Tool, t.Op, t.NCCL, t.Backend)
	for _, d := range t.Devices {
		fmt.Fprintf(&b, "rank %d on %s: %s\n", d.Rank, d.Host, d.Name)
	}
	for _, r := range t.Rows {
		fmt.Fprintf(&b, "%d %s %s", r.Bytes, r.Type, or(r.Redop, "-"))
		for _, p := range []*Point{r.Out, r.In} {
			if p != nil {
				wrong := "unchecked"
				if p.Wrong != nil {
					wrong = fmt.Sprintf("%g wrong", *p.Wrong)
				}
				fmt.Fprintf(&b, " | %g us %g %g %s", p.Micros, p.Alg, p.Bus, wrong)
			}
		}
		b.WriteString("\n")
	}
	if t.OutOfBounds != nil {
		fmt.Fprintf(&b, "out of bounds %d %t\n", t.OutOfBounds.Count, t.OutOfBounds.OK)
	}
	if t.Average != nil {
		fmt.Fprintf(&b, "average %g\n", *t.Average)
	}
	for _, n := range t.Notes {
		fmt.Fprintf(&b, "note %s\n", n)
	}
	return b.String()
}

// What nccl-tests itself lowers is told to the reader.
func TestNotes(t *testing.T) {
	var p Parser
	for _, line := range []string{"#", "# Reducing maxBytes to 45097156608 due to memory limitation",
		"# nThread 1 nGpus 1"} {
		p.Line(line)
	}
	if notes := p.Table().Notes; len(notes) != 1 || !strings.HasPrefix(notes[0], "Reducing maxBytes to 45097156608") {
		t.Errorf("%q", notes)
	}
}

// The text and the file of one run say the same.
func TestJSONIsTheText(t *testing.T) {
	text, err := os.ReadFile("testdata/2.19.6-all_reduce.json")
	if err != nil {
		t.Fatal(err)
	}
	table, err := Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	kept, err := json.Marshal(table)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "HF_TOKEN") || strings.Contains(string(kept), "hf_notatoken") {
		t.Error("the environment that nccl-tests writes into its file must not be kept")
	}
	if len(table.Rows) != 3 || table.Op != "all_reduce" || !table.OutOfBounds.OK {
		t.Errorf("%+v", table)
	}
}

func TestNoTable(t *testing.T) {
	for name, text := range map[string]string{
		"empty":       "",
		"header only": "# nccl-tests version 2.19.6 nccl-headers=22803 nccl-library=22803\n",
		"no header":   "  1048576  262144  float  sum  -1  10 1.0 1.0 0  10 1.0 1.0 0\n",
		"other":       "bash: all_gather_perf: command not found\n",
		"JSON":        `{"results":[]}`,
	} {
		if _, err := Parse(text); !errors.Is(err, ErrNoTable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Parse(`{"results": 3}`); err == nil || !strings.Contains(err.Error(), "as the JSON of nccl-tests -J") {
		t.Errorf("not its JSON: %v", err)
	}
}

// A row whose columns do not fit the header is no row: a number in the wrong place
// would be a bandwidth that nobody measured.
func TestBrokenRows(t *testing.T) {
	good := " 1048576  262144  float  sum  -1  10.0  104.85  104.85  0  10.0  104.85  104.85  0\n"
	for name, line := range map[string]string{
		"cut short":      " 1048576  262144  float  sum  -1  10.0  104.85\n",
		"no number":      " 1048576  262144  float  sum  -1  ten  104.85  104.85  0  10.0  104.85  104.85  0\n",
		"negative":       " 1048576  262144  float  sum  -1  10.0  -104.85  104.85  0  10.0  104.85  104.85  0\n",
		"infinite":       " 1048576  262144  float  sum  -1  10.0  +Inf  104.85  0  10.0  104.85  104.85  0\n",
		"negative size":  " -1048576  262144  float  sum  -1  10.0  104.85  104.85  0  10.0  104.85  104.85  0\n",
		"after the foot": "# Out of bounds values : 0 OK\n" + good,
	} {
		table, err := Parse(head + line)
		if !errors.Is(err, ErrNoTable) {
			t.Errorf("%s: %+v", name, table.Rows)
		}
	}
	if table, err := Parse(head + good); err != nil || len(table.Rows) != 1 || table.Rows[0].Bus() != 104.85 {
		t.Errorf("the row that is none of them: %+v %v", table, err)
	}
}

const head = "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   " +
	"algbw   busbw  #wrong\n"

// NCCL connects in the middle of a row, and what it logs cuts that in two: the row counts all the same.
func TestRowInTwoParts(t *testing.T) {
	begun := "     8388608       2097152     float    none      -1"
	rest := "    400.5   20.95   10.47       0    401.5   20.89   10.45       0\n"
	info := "spark1:605:605 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0\n"
	for name, text := range map[string]string{
		"log behind the root": begun + info + info + rest,
		"a warning": begun + "\n[2026-03-01 12:00:00] spark1:605:605 [0] misc/socket.cc:58 NCCL " +
			"WARN socketProgress: Connection closed\n" + rest,
		"a warning with its function": begun + "spark1:605:605 [0] NCCL INFO x\n\n[2026-03-01 12:00:00] " +
			"spark1:605:605 [0] net_ib/p2p.cc:688 (f) NCCL WARN y\n" + rest,
		"the next is whole": begun + info + "" + strings.Replace(begun, "8388608", "9388608", 1) + rest,
		"time in whole us":  begun + info + strings.Replace(rest, "400.5", "400500", 1),
	} {
		table, err := Parse(head + text + "# Out of bounds values : 0 OK\n")
		if err != nil || len(table.Rows) != 1 || table.Rows[0].In == nil || table.Rows[0].Out.Bus != 10.47 ||
			table.Rows[0].In.Bus != 10.45 {
			t.Errorf("%s: %v %+v", name, err, table.Rows)
		}
		var log Log
		for line := range strings.Lines(text) {
			log.Line(strings.TrimSuffix(line, "\n"))
		}
		if strings.Contains(text, "via") && log.Via["NET/IB"] == 0 {
			t.Errorf("%s: the log behind the row is not read: %+v", name, log)
		}
	}
}

// A test that ran with --report_cputime names its column so.
func TestCPUTime(t *testing.T) {
	table, err := Parse(strings.ReplaceAll(head, "   time",
		"cputime") + " 8388608 2097152 float none -1 12.5 20.95 10.47 0 12.6 20.89 10.45 0\n")
	if err != nil || len(table.Rows) != 1 || table.Rows[0].Out.Micros != 12.5 || table.Rows[0].Bus() != 10.46 {
		t.Errorf("%v %+v", err, table.Rows)
	}
	table, err = Parse(`{"results":[{"size":8388608,"out_of_place":{"cpu_time":12.5,"alg_bw":20.95,"bus_bw":10.47,"nwrong":0}}]}`)
	if err != nil || table.Rows[0].Micros() != 12.5 {
		t.Errorf("%v %+v", err, table.Rows)
	}
}

// What is no number reaches no verdict and no file: JSON has no word for it.
func TestNoNumbers(t *testing.T) {
	row := func(bus, wrong string) string {
		return " 8388608 2097152 float none -1 12.5 20.95 " + bus + " 0 12.6 20.89 10.45 " + wrong + "\n"
	}
	const good = " 1048576 262144 float none -1 12.5 20.95 10.47 0 12.6 20.89 10.45 0\n"
	for _, bus := range []string{"nan", "-nan", "inf", "-inf", "NaN"} {
		table, err := Parse(head + good + row(bus, "0") + "# Avg bus bandwidth    : " + bus + "\n")
		if err != nil || len(table.Rows) != 1 || len(table.Notes) != 1 ||
			table.Notes[0] != "no result of 8 MiB: busbw is "+bus {
			t.Errorf("%s: %v %+v", bus, err, table)
		}
		if _, err := json.Marshal(table); err != nil {
			t.Errorf("%s: %v", bus, err)
		}
	}
	// The largest deviation of old versions is below no bound where it is no number, and their last
	// line says OK.
	old := strings.NewReplacer("#wrong", "error").Replace(head)
	for _, wrong := range []string{"nan", "-nan", "inf", "1e-07"} {
		table, err := Parse(old + row("10.47", wrong))
		if err != nil {
			t.Fatal(err)
		}
		if n, checked := table.Rows[0].Wrong(); !checked || (n != 0) != (wrong != "1e-07") {
			t.Errorf("%s: %g wrong, %t", wrong, n, checked)
		}
		if _, err := json.Marshal(table); err != nil {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	for _, bus := range []string{`"nan"`, "inf", "-nan", "null"} {
		table, err := Parse(`{"args":["x=:inf"],"results":[{"size":1,"out_of_place":{"time":1,"alg_bw":1,"bus_bw":2,"nwrong":0}},{"size":8388608,"out_of_place":{"time":0,"alg_bw":` + bus + `,"bus_bw":` + bus + `,"nwrong":0}}]}`)
		if err != nil || len(table.Rows) != 1 || len(table.Notes) != 1 {
			t.Errorf("%s: %v %+v", bus, err, table)
		}
	}
}

// mpirun --tag-output names the rank of each line.
func TestTaggedOutput(t *testing.T) {
	text, err := os.ReadFile("testdata/2.19.6-two-hosts-log.txt")
	if err != nil {
		t.Fatal(err)
	}
	want, err := Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	var tagged strings.Builder
	for line := range strings.Lines(string(text)) {
		tagged.WriteString("[1,0]<stdout>:" + line)
	}
	got, err := Parse(tagged.String())
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

// Up to 2.17.8 nccl-tests has written its average under another name.
func TestAverageOfOldJSON(t *testing.T) {
	table, err := Parse(`{"results":[{"size":1,"out_of_place":{"time":1,"alg_bw":1,"bus_bw":2,"nwrong":0}}],"average_bus_bandwidith":{"bandwidith":2.5,"okay":"unchecked"}}`)
	if err != nil || table.Average == nil || *table.Average != 2.5 {
		t.Errorf("%v %+v", err, table)
	}
}

// Of a text with several runs the last is judged, and not the rows of one by the end of another.
func TestSeveralRuns(t *testing.T) {
	text, err := os.ReadFile("testdata/2.18.5-gb10.txt")
	if err != nil {
		t.Fatal(err)
	}
	want, err := Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	bad := strings.NewReplacer(": 0 OK", ": 3 FAILED", "17179869184  ", "1717986918  ").Replace(string(text))
	for name, first := range map[string]string{"ended": bad, "broken off": bad[:strings.Index(bad, "# Out of")]} {
		got, err := Parse(first + string(text))
		want.Notes = []string{earlierRun}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
	header := bad[:strings.Index(bad, "#       size")]
	want.Notes = nil
	if got, err := Parse(header + "spark1: Test NCCL failure common.cu:1 'x'\n" + string(text)); err != nil ||
		cmp.Diff(want, got) != "" {
		t.Errorf("after one without a row: %v %s", err, cmp.Diff(want, got))
	}
	if got, err := Parse(string(text) + bad); err != nil || got.OutOfBounds.OK {
		t.Errorf("the last one failed: %v %+v", err, got)
	}
}

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.*")
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && !strings.HasSuffix(file, ".golden") {
			f.Add(string(text))
		}
	}
	known := pair(f).setting(f)
	f.Fuzz(func(t *testing.T, text string) {
		table, err := Parse(text)
		if (err == nil) != (len(table.Rows) > 0) {
			t.Errorf("%d rows and the error %v", len(table.Rows), err)
		}
		var log Log
		for line := range strings.Lines(text) {
			log.Line(line)
		}
		v := Evaluate(table, log, Setting{})
		if v.Grade == nettest.Good {
			t.Errorf("good, with no link known: %+v", v)
		}
		judged := Evaluate(table, log, known)
		if _, err := json.Marshal([]any{table, log, v, judged}); err != nil {
			t.Error(err)
		}
	})
}
