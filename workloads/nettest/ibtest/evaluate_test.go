package ibtest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/workloads/nettest"
)

// printed is what perftest writes of a run, as 4.5 does.
func printed(p Plan, test string, r Run, figure float64) string {
	from, to := p.Ends(r)
	gid := func(w Way) string {
		b := w.Addr.As4()
		return fmt.Sprintf(" GID: 00:00:00:00:00:00:00:00:00:00:255:255:%02d:%02d:%02d:%02d\n", b[0], b[1], b[2], b[3])
	}
	text := " Mtu             : 4096[B]\n GID index       : 3\n local address: LID 0000 QPN 0x0011 PSN 0x4\n" + gid(from.Way) + " remote address: LID 0000 QPN 0x0011 PSN 0x4\n" + gid(to.Way)
	if IsBandwidth(test) {
		return text + fmt.Sprintf(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   "+
			"MsgRate[Mpps]\n 65536      %d           0.00               %.2f   \t\t   "+
			"0.187000\n", int(figure*5000), figure)
	}
	return text + fmt.Sprintf(" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "+
		"t_stdev[usec]   99%% percentile[usec]   99.9%% percentile[usec] \n"+
		" 2       1000          %.2f           9.00         %.2f     \t       %.2f        \t0.10   \t\t2.00    "+
		"\t\t4.00   \n", figure*0.95, figure, figure)
}

// told makes what ranks tell of a plan: each lane gives what figure says for its twin (0: the
// primary), and one that it gives nothing for fails with the words.
func told(p Plan, figure func(test string, twin int, r Run) (float64, string)) Lines {
	var all Lines
	for i, s := range p.Steps {
		for j, r := range s.Runs {
			f, words := figure(s.Test, r.Lane, r)
			l := Line{IBTest: 1, Step: i, Run: j}
			switch words {
			default:
				l.Exit, l.Err = 1, words
			case noTime:
				l.Out, l.Err = strings.Replace(printed(p, s.Test, r, 0), " 65536      0 ", " 65536      314 ", 1),
					" Correlation coefficient r^2: 0.570301 < 0.9\n"
			case mtu1024:
				l.Out = strings.Replace(printed(p, s.Test, r, f), "4096[B]", "1024[B]", 1)
			case "":
				l.Out = printed(p, s.Test, r, f)
			}
			all.Add(l)
		}
	}
	return all
}

// each gives every lane the same bandwidth and latency, per twin.
func each(primary, twin, us float64) func(string, int, Run) (float64, string) {
	return func(test string, t int, _ Run) (float64, string) {
		if !IsBandwidth(test) {
			return us, ""
		}
		return []float64{primary, twin}[t], ""
	}
}

// smallPackets has perftest say that RoCE's MTU is 1024.
func smallPackets(figure func(string, int, Run) (float64, string)) func(string, int, Run) (float64, string) {
	return func(test string, t int, r Run) (float64, string) {
		f, _ := figure(test, t, r)
		return f, mtu1024
	}
}

// These in place of a complaint are none: told understands them.
const (
	mtu1024 = "MTU 1024"
	noTime  = "no time" // messages were counted, and a bandwidth of 0 came of it
)

func fails(words string) func(string, int, Run) (float64, string) {
	return func(string, int, Run) (float64, string) { return 0, words }
}

// Made-up results, each with the cause that a person who knows would give.
func TestVerdicts(t *testing.T) {
	noAddress := func(twin int, h *envgen.HCA, n *envgen.NIC) {
		if twin == 1 {
			h.GIDs, n.Addresses = nil, nil
		}
	}
	link100 := func(_ int, _ *envgen.HCA, n *envgen.NIC) { n.SpeedMbps = new(100000) }
	mtu1500 := func(_ int, _ *envgen.HCA, n *envgen.NIC) { n.MTU = 1500 }
	pcieX2 := func(twin int, h *envgen.HCA, _ *envgen.NIC) {
		if twin == 1 {
			h.PCIeLanes = new(2)
		}
	}
	software := func(_ int, h *envgen.HCA, _ *envgen.NIC) { h.PCI = nil }
	lost := []nettest.Traffic{{Host: "spark1", Device: "rocep1s0f0", RDMA: true, Sent: 9 << 30, Lost: 900,
		LostWords: "packet_seq_err +900"}}
	strangers := []nettest.Traffic{{Host: "spark1", Device: "rocep1s0f1", RDMA: true, Sent: 9 << 30, Lost: 900,
		LostWords: "packet_seq_err +900"}}
	gone := func(c *cluster) *cluster { // the second function of the port is not on the bus
		inv := &c.nodes[1].Inventory
		inv.Devices = append(inv.Devices[:1:1], inv.Devices[2:]...)
		return c
	}
	tests := map[string]struct {
		cluster *cluster
		options Options
		figures func(string, int, Run) (float64, string)
		change  func(*Setting)
		grade   nettest.Grade
		cause   string
		says    string // in text, evidence or remedy
	}{
		"good pair": {pair(t), Options{Kinds: []string{"bw"}}, each(98, 98, 0), nil, nettest.Good, "",
			"100 % of the 196 that a cable should give"},
		"just the mark": {pair(t), Options{Kinds: []string{"bw"}}, each(87.6, 87.5, 0), nil, nettest.Good, "", "89 %"},
		"below the mark": {pair(t), Options{Kinds: []string{"bw"}}, each(87, 87, 0), nil, nettest.Low,
			nettest.CauseUnknown, ""},
		"two cables": {pair(t).cable(0, 1, 1, 1, 1), Options{}, each(98, 97, 1.5), nil, nettest.Good, "",
			"all 6 are"},
		"ring": {ring(t, 3), Options{}, each(98, 97, 1.5), nil, nettest.Good, "", "all 9 are"},
		"one twin": {pair(t).with(noAddress), Options{}, each(111.5, 0, 1.5), nil, nettest.Low,
			nettest.CauseOneTwin, "roceP2p1s0f0 of spark2 has no IPv4 address"},
		"twin not on the bus": {gone(pair(t)), Options{}, each(111.5, 0, 1.5), nil, nettest.Low, nettest.CauseOneTwin,
			"its second PCI function is not there"},
		"MTU 1500, and good": {pair(t).with(mtu1500), Options{}, each(94, 94, 1.5), nil, nettest.Good, "", "96 %"},
		"MTU 1500": {pair(t).with(mtu1500), Options{}, each(85, 85, 1.5), nil, nettest.Low,
			nettest.CauseMTU, "enp1s0f0np0 mtu 1500"},
		"RoCE MTU 1024": {pair(t), Options{}, smallPackets(each(85, 85, 1.5)), nil, nettest.Low,
			nettest.CauseMTU, "perftest: Mtu 1024[B]"},
		"100G link": {pair(t).with(link100), Options{}, each(49, 49, 1.5), nil, nettest.Low,
			nettest.CauseSpeed, "speed 100000 Mb/s"},
		"PCIe x2": {pair(t).with(pcieX2), Options{}, each(98, 55, 1.5), nil, nettest.Low,
			nettest.CausePCIe, "32 GT/s x2"},
		"degraded": {pair(t), Options{}, each(6.5, 6.5, 1.5), nil, nettest.Low, nettest.CauseDegraded,
			"13.0 Gb/s over RDMA"},
		"degraded, and MTU": {pair(t).with(mtu1500), Options{}, each(6.5, 6.5, 1.5), nil, nettest.Low,
			nettest.CauseDegraded, "wall"},
		"one twin degraded": {pair(t), Options{}, each(98, 13, 1.5), nil, nettest.Low, nettest.CauseDegraded,
			"roceP2p1s0f0 -> roceP2p1s0f0 13.0 Gb/s, rocep1s0f0 -> rocep1s0f0 98.0"},
		"losses": {pair(t), Options{}, each(60, 60, 1.5), func(s *Setting) { s.Traffic = lost },
			nettest.Low, nettest.CauseLosses, "packet_seq_err +900"},
		"losses of another": {pair(t), Options{}, each(80, 80, 1.5), func(s *Setting) { s.Traffic = strangers },
			nettest.Low, nettest.CauseUnknown, ""},
		"slow latency": {pair(t), Options{}, each(98, 98, 8), nil, nettest.Low, nettest.CauseUnknown,
			"8.00 us, where a cable should take 1.47"},
		"latency by a switch": {newCluster(t, 3).onSwitch(), Options{}, each(98, 98, 4.5), nil, nettest.Good, "", ""},
		"without the switch":  {pair(t), Options{}, each(98, 98, 4.5), nil, nettest.Low, nettest.CauseUnknown, ""},
		"software": {pair(t).with(software), Options{}, each(1.2, 1.2, 300), nil, nettest.Unjudged, "",
			"rocep1s0f0 of spark2 is RDMA in software"},
		"software, as told": {pair(t).with(software), Options{Kinds: []string{"bw"}}, each(1.2, 1.2, 0),
			func(s *Setting) { s.ExpectGbps = 1 }, nettest.Good, "", "120 % of the 1 that --expect says"},
		"software, and slower": {pair(t).with(software), Options{Kinds: []string{"bw"}}, each(0.2, 0.2, 0),
			func(s *Setting) { s.ExpectGbps = 1 }, nettest.Low, nettest.CauseUnknown, "20 %"},
		"latency as told": {pair(t), Options{Kinds: []string{"lat"}}, each(0, 0, 30),
			func(s *Setting) { s.ExpectMicros = 20 }, nettest.Good, "", "--expect-us"},
		"sends": {pair(t), Options{Verb: "send"}, each(98, 98, 1.5), nil, nettest.Unjudged, "",
			"no figure is known for ib_send_bw"},
		"small messages": {pair(t), Options{Kinds: []string{"bw"}, Bytes: 4096}, each(40, 40, 0), nil,
			nettest.Unjudged, nettest.CauseSmall, "--size 64K"},
		"wrong GID": {pair(t), Options{}, func(test string, _ int, r Run) (float64, string) {
			return 0, "Failed to modify QP 17 to RTR\n Unable to Connect the HCA's through the link"
		},
			nil, nettest.Failed, CauseGID, "Failed to modify QP 17 to RTR"},
		"no GID": {pair(t), Options{}, fails("spark2: roceP2p1s0f0 has no RoCE v2 GID of 192.168.101.12"), nil,
			nettest.Failed, CauseGID, "192.168.101.12"},
		"nothing comes through": {pair(t), Options{},
			fails(" Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81"), nil,
			nettest.Failed, CauseUnreachable, "Failed status 12"},
		"MTUs differ": {pair(t).with(mtu1500), Options{},
			fails(" Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81"), nil,
			nettest.Failed, CauseMTUUnequal, "rocep1s0f0 of spark1 mtu 9000, rocep1s0f0 of spark2 mtu 1500"},
		"no connection": {pair(t), Options{}, fails("Couldn't connect to 192.168.100.12:20000"), nil,
			nettest.Failed, CauseUnreachable, "firewall"},
		"zero": {pair(t), Options{}, each(98, 0, 1.5), nil, nettest.Failed, CauseUnreachable,
			"not one message was acknowledged"},
		"no clock": {pair(t), Options{Kinds: []string{"bw"}}, fails(noTime), nil, nettest.Failed, CauseBusy,
			"counted 314 messages, and no time; Correlation coefficient r^2: 0.570301"},
		"no clock, no report": {pair(t), Options{Kinds: []string{"lat"}},
			fails(" Correlation coefficient r^2: 0.697545 < 0.9\n Can't produce a report"), nil, nettest.Failed,
			CauseBusy, "governor"},
		"hangs": {pair(t), Options{}, fails("it did not end within 33s"), nil, nettest.Failed,
			CauseUnreachable, ""},
		"memlock": {pair(t), Options{}, fails("Couldn't allocate MR"), nil, nettest.Failed, CauseMemlock,
			"memlock=unlimited"},
		"device gone": {pair(t), Options{},
			fails("IB device rocep1s0f0 not found\n Unable to find the Infiniband/RoCE device"), nil, nettest.Failed,
			CauseDevice, "dmesg"},
		"other trouble": {pair(t), Options{}, fails("it is Tuesday"), nil, nettest.Failed, CauseFaulty,
			"it is Tuesday"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p, s := tc.cluster.plan(t, tc.options)
			if tc.change != nil {
				tc.change(&s)
			}
			rep := Evaluate(p, told(p, tc.figures), s)
			v := rep.Verdict
			code, all := "", v.Text
			if v.Cause != nil {
				code = v.Cause.Code
				all += " " + v.Cause.Text + " " + v.Cause.Evidence + " " + v.Cause.Remedy
				if v.Cause.Evidence == "" || v.Cause.Remedy == "" {
					t.Errorf("a cause needs evidence and remedy: %+v", v.Cause)
				}
			}
			if v.Grade != tc.grade || code != tc.cause || !strings.Contains(all, tc.says) {
				t.Errorf("%s by %q: %s\nwant %s by %q with %q", v.Grade, code, all, tc.grade, tc.cause, tc.says)
			}
			if strings.Contains(all, "NaN") || strings.Contains(all, "Inf ") || strings.Contains(all, "Inf,") {
				t.Error(all)
			}
			if _, err := json.Marshal(rep); err != nil {
				t.Error(err)
			}
		})
	}
}

// One lane that is broken fails its cable, and leaves the others as they are.
func TestOneOfMany(t *testing.T) {
	p, s := newCluster(t, 4).onSwitch().plan(t, Options{Kinds: []string{"bw"}})
	rep := Evaluate(p, told(p, func(test string, twin int, r Run) (float64, string) {
		from, to := p.Ends(r)
		if p.Nodes[from.Node].Host == "spark3" && p.Nodes[to.Node].Host == "spark2" && twin == 1 {
			return 0, "Couldn't connect to 192.168.101.12:20001"
		}
		return 97, ""
	}), s)
	if v := rep.Verdict; v.Grade != nettest.Failed ||
		!strings.Contains(v.Text,
			"spark3 -> spark2 over port 0 - port 0: roceP2p1s0f0 -> roceP2p1s0f0: nothing gets through") {
		t.Errorf("%+v", v)
	}
	good := 0
	for _, c := range rep.Cells {
		if c.Grade == nettest.Good {
			good++
		}
	}
	if len(rep.Cells) != 12 || good != 11 {
		t.Errorf("%d cells, %d of them good", len(rep.Cells), good)
	}
	want := `ib_write_bw: Gb/s, all lanes of a cable at once
            spark1   spark2   spark3   spark4
spark1           -    194.0    194.0    194.0
spark2       194.0        -    194.0    194.0
spark3       194.0   failed        -    194.0
spark4       194.0    194.0    194.0        -
`
	if got := Matrix(p, rep.Cells, "write_bw", 100); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := Matrix(p, rep.Cells, "write_bw", 30); !strings.Contains(got,
		"spark3 -> spark2  port 0 - port 0    failed\n") || strings.Count(got, "\n") != 13 {
		t.Errorf("too wide for a terminal:\n%s", got)
	}
}

// Two cables between two nodes have a line each; latency one figure for both ways.
func TestMatrices(t *testing.T) {
	p, s := pair(t).cable(0, 1, 1, 1, 1).plan(t, Options{})
	rep := Evaluate(p, told(p, each(98, 97, 1.5)), s)
	want := `ib_write_bw: Gb/s, all lanes of a cable at once
spark1 -> spark2  port 0 - port 0     195.0
spark2 -> spark1  port 0 - port 0     195.0
spark1 -> spark2  port 1 - port 1     195.0
spark2 -> spark1  port 1 - port 1     195.0
`
	if got := Matrix(p, rep.Cells, "write_bw", 100); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	p, s = ring(t, 4).plan(t, Options{Kinds: []string{Latency}})
	rep = Evaluate(p, told(p, each(0, 0, 3)), s)
	want = `ib_write_lat: us, one way, the slower lane
            spark1   spark2   spark3   spark4
spark1           -    3.00!        -    3.00!
spark2       3.00!        -    3.00!        -
spark3           -    3.00!        -    3.00!
spark4       3.00!        -    3.00!        -
`
	got := Matrix(p, rep.Cells, "write_lat", 100)
	if rows := strings.Split(got, "\n"); len(rows) != 7 || strings.Count(got, "3.00!") != 8 {
		t.Errorf("got\n%s\nwant, in whatever order of hosts,\n%s", got, want)
	}
	if got, want := rep.Cells[0].LaneText(), "3.00 us (2.85 at best, 99 % within 2.00)"; !strings.Contains(got, want) {
		t.Errorf("%s", got)
	}
}

// A machine that was busy shows by what it reached at best.
func TestBusy(t *testing.T) {
	p, s := pair(t).plan(t, Options{Kinds: []string{Latency}})
	all := told(p, each(0, 0, 9))
	for key, l := range all.clients {
		l.Out = strings.ReplaceAll(l.Out, "8.55", "1.52")
		all.clients[key] = l
	}
	v := Evaluate(p, all, s).Verdict
	if v.Grade != nettest.Low || v.Cause == nil || v.Cause.Code != CauseBusy ||
		!strings.Contains(v.Cause.Evidence, "1.52 us at best, 9.00 usually") {
		t.Errorf("%+v", v)
	}
}

// Figures that came by another GID than that of the lane's address are of another route.
func TestOtherGID(t *testing.T) {
	p, s := pair(t).plan(t, Options{Kinds: []string{Bandwidth}})
	all := told(p, each(98, 98, 0))
	for key, l := range all.clients {
		l.Out = strings.Replace(l.Out, "255:255:192:168:", "255:255:10:00:", 1)
		all.clients[key] = l
	}
	v := Evaluate(p, all, s).Verdict
	if v.Grade != nettest.Failed || v.Cause.Code != CauseGID ||
		!strings.Contains(v.Cause.Evidence, "spoke by GID ::ffff:10.0.100.") {
		t.Errorf("%+v %+v", v, v.Cause)
	}
}

// A rank that tells nothing, and one that tells of what the far end saw.
func TestSilence(t *testing.T) {
	p, s := pair(t).plan(t, Options{Kinds: []string{Bandwidth}})
	if v := Evaluate(p, Lines{}, s).Verdict; v.Grade != nettest.Failed ||
		!strings.Contains(v.Cause.Evidence, "nothing was reported") {
		t.Errorf("%+v", v)
	}
	all := told(p, fails("Couldn't read remote address"))
	all.Add(Line{IBTest: 1, Step: 0, Run: 0, Server: true, Exit: 1, Err: "Couldn't allocate MR\n"})
	if v := Evaluate(p, all, s).Verdict; v.Cause.Code != CauseMemlock ||
		!strings.Contains(v.Cause.Evidence, "spark2: Couldn't allocate MR") {
		t.Errorf("%+v %+v", v, v.Cause)
	}
	if v := Evaluate(Plan{}, Lines{}, Setting{}).Verdict; v.Grade != nettest.Failed {
		t.Errorf("%+v", v)
	}
}

func TestHistory(t *testing.T) {
	p, s := pair(t).plan(t, Options{})
	rep := Evaluate(p, told(p, each(98, 60, 1.5)), s)
	now := NewRecord(p, "write", rep)
	now.Cluster = "c"
	if now.Gbps == nil || *now.Gbps != 158 || *now.Micros != 1.5 || now.Grade != nettest.Low ||
		strings.Join(now.Hosts, ",") != "spark1,spark2" {
		t.Fatalf("%+v", now)
	}
	var lines strings.Builder
	for i, change := range []func(*Record){
		func(r *Record) { *r.Gbps = 1 }, func(r *Record) { *r.Gbps = 2 }, func(r *Record) { r.Cluster = "d" },
		func(r *Record) { r.Verb = "read" },
		func(r *Record) { r.Hosts = []string{"spark1"} }, func(r *Record) { r.Bytes = 7 },
		func(r *Record) { r.Gbps = nil },
	} {
		r := now
		r.Gbps = new(*now.Gbps + float64(i))
		change(&r)
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		lines.Write(append(text, "\nbroken {\n"...))
	}
	if last := Last([]byte(lines.String()), now); last == nil || *last.Gbps != 2 {
		t.Errorf("%+v", last)
	}
	if last := Last(nil, now); last != nil {
		t.Errorf("%+v", last)
	}
}

// A gate for bandwidth is not shut by a latency that is good.
func TestReached(t *testing.T) {
	part := func(v float64) *float64 { return &v }
	bw := Cell{Test: "write_bw", Part: part(0.97), Grade: nettest.Good}
	lat := Cell{Test: "write_lat", Part: part(0.74), Grade: nettest.Good}
	slow := Cell{Test: "write_lat", Part: part(0.3), Grade: nettest.Low}
	for name, tc := range map[string]struct {
		cells []Cell
		want  float64
	}{
		"both": {[]Cell{bw, lat}, 0.97}, "a low latency": {[]Cell{bw, lat, slow}, 0.3},
		"latency alone": {[]Cell{lat}, 0.74}, "nothing expected": {[]Cell{{Test: "send_bw"}}, -1},
	} {
		got := Report{Cells: tc.cells, Verdict: verdict(tc.cells)}.Reached()
		if (got == nil) != (tc.want < 0) || got != nil && *got != tc.want {
			t.Errorf("%s: %v, want %g", name, got, tc.want)
		}
	}
}
