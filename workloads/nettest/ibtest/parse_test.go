package ibtest

import (
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the goldens anew")

// samples are what real programs printed between two VMs over rdma_rxe: built from the tag
// that each is named by, or Debian's (4.5-0.17). 4.4 knows no JSON; that of 4.5 is none.
func TestSamples(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 11 {
		t.Fatalf("%d samples, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			beside, err := os.ReadFile(strings.TrimSuffix(file, ".txt") + ".json")
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			m, err := Read(string(text), "")
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.MarshalIndent(m, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden := file + ".golden"
			if *update {
				if err := os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatalf("%v (write it with -update)", err)
			}
			if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if len(beside) == 0 {
				if !strings.HasPrefix(filepath.Base(file), "4.4-") && !strings.HasPrefix(filepath.Base(file), "mib") {
					t.Error("it has no JSON beside it")
				}
				return
			}
			// Its JSON says the same, alone and beside the text.
			both, err := Read(string(text), string(beside))
			if err != nil {
				t.Fatal(err)
			}
			alone, err := Read("", string(beside))
			if err != nil {
				t.Fatal(err)
			}
			alone.Local, alone.Remote = m.Local, m.Remote // those it does not tell
			for name, other := range map[string]Measured{"beside": both, "alone": alone} {
				if diff := cmp.Diff(m, other,
					cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) <= 0.001*math.Abs(a) }),
					cmp.Comparer(func(a, b interface{ String() string }) bool { return a.String() == b.String() })); diff != "" {
					t.Errorf("%s: -text +JSON:\n%s", name, diff)
				}
			}
		})
	}
}

// Figures of the field, in the formats that the programs have.
func TestRead(t *testing.T) {
	header := " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
	tests := map[string]struct {
		text, file string
		gbps, us   float64 // NaN: none
		err        bool
	}{
		"a good twin": {header + " 65536      2130000           0.00               111.70             0.213051\n", "",
			111.70, math.NaN(), false},
		"MiB a second": {strings.ReplaceAll(header, "Gb/sec",
			"MiB/sec") + " 65536      5000             11980.51            11969.10\t\t   0.191506\n", "", 100.404,
			math.NaN(), false},
		"MB, of before": {strings.ReplaceAll(header, "Gb/sec",
			"MB/sec") + " 65536      5000             11980.51            11969.10\t\t   0.191506\n", "", 100.404,
			math.NaN(), false},
		"several sizes": {header + " 2          5000           0.11               0.10             6.0\n 65536      " +
			"5000           97.0               98.00             0.18\n", "", 98, math.NaN(), false},
		"CPU as well": {strings.TrimSuffix(header,
			"\n") + "    CPU_Util[%]\n 65536      5000           97.0               98.00             0.18\t    4.20\n", "", 98, math.NaN(), false},
		"latency by time": {" #bytes        #iterations       t_avg[usec]    tps average\n 2             1700000    " +
			"        1.75           571428.00\n", "", math.NaN(), 1.75, false},
		"latency": {" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    " +
			"t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n 2       1000          1.40           " +
			"5.20         1.47     \t       1.50        \t0.10   \t\t1.90    \t\t5.20   \n", "", math.NaN(), 1.47, false},
		"another unit": {strings.ReplaceAll(header, "Gb/sec",
			"furlongs") + " 65536      5000           97.0               98.00             0.18\n", "", 0, 0, true},
		"nan": {header + " 65536      5000           -nan               -nan             nan\n", "", 0,
			0, true},
		"inf": {header + " 65536      5000           inf               inf             inf\n", "", 0,
			0, true},
		"a header alone": {header, "", 0, 0, true},
		"a row alone":    {" 65536      5000           97.0               98.00             0.18\n", "", 0, 0, true},
		"a shorter row":  {header + " 65536      5000           97.0               98.00\n", "", 0, 0, true},
		"JSON in one line": {"", `{"test_info":{"Mtu":4096},"results":{"MsgSize":65536,"BW_average":98.5}}`, 98.5,
			math.NaN(), false},
		"JSON of 4.5": {"", "{\nresults: {\nMsgSize: 65536,\nBW_average: 98.50,\n},\n}\n", 98.5, math.NaN(), false},
		"JSON that is broken": {header + " 65536      5000           97.0               98.00             0.18\n",
			"{\n\"results\": {\n\"BW_average\": nan", 98, math.NaN(), false},
		"nothing": {"", "", 0, 0, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m, err := Read(tc.text, tc.file)
			if (err != nil) != tc.err {
				t.Fatalf("%v", err)
			}
			if err != nil {
				return
			}
			is := func(got *float64, want float64) bool {
				if math.IsNaN(want) {
					return got == nil
				}
				return got != nil && math.Abs(*got-want) < 0.001
			}
			if !is(m.Gbps, tc.gbps) || !is(m.latency(), tc.us) {
				t.Errorf("%+v", m)
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		beside, _ := os.ReadFile(strings.TrimSuffix(file, ".txt") + ".json") // not all have one
		f.Add(string(text), string(beside))
	}
	f.Fuzz(func(t *testing.T, text, file string) {
		m, err := Read(text, file)
		if err != nil {
			return
		}
		for _, v := range []*float64{m.Gbps, m.Min, m.Max, m.Typical, m.Avg, m.P99, m.MsgRate} {
			if v != nil && (math.IsNaN(*v) || math.IsInf(*v, 0) || *v < 0) {
				t.Errorf("%g", *v)
			}
		}
		if _, err := json.Marshal(m); err != nil {
			t.Error(err)
		}
	})
}

func FuzzParseLine(f *testing.F) {
	f.Add(`{"ib_test":1,"step":0,"run":1,"exit":0,"out":"x"}`)
	f.Add(`{"ib_test":2}`)
	f.Add("ib_write_bw")
	f.Fuzz(func(t *testing.T, text string) {
		l, ok := ParseLine(text)
		if !ok {
			return
		}
		var all Lines // whatever a rank claims, judging comes to an end
		all.Add(l)
		p := Plan{Nodes: []Node{{Host: "a", Ways: []Way{{Device: "x"}}}, {Host: "b", Ways: []Way{{Device: "y"}}}},
			Cables: []Cable{{B: 1, Lanes: [][2]int{{0, 0}}}}, Steps: []Step{{Test: "write_bw", Runs: []Run{{}}}}}
		if v := Evaluate(p, all, Setting{}).Verdict; v.Text == "" {
			t.Errorf("%+v", v)
		}
	})
}
