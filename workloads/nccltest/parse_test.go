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
	for _, line := range []string{"#", "# Reducing maxBytes to 45097156608 due to memory limitation", "# nThread 1 nGpus 1"} {
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
	head := "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong\n"
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

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.*")
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && !strings.HasSuffix(file, ".golden") {
			f.Add(string(text))
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		table, err := Parse(text)
		if (err == nil) != (len(table.Rows) > 0) {
			t.Errorf("%d rows and the error %v", len(table.Rows), err)
		}
		var log Log
		for line := range strings.Lines(text) {
			log.Line(line)
		}
		v := Judge(table, log, Setting{})
		if v.Grade == Good {
			t.Errorf("good, with no link known: %+v", v)
		}
	})
}
