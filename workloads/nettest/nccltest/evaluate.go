package nccltest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/workloads/nettest"
)

// Setting is under what a test ran.
type Setting struct {
	nettest.Setting
	// Nodes are the ids of those that ran it, of a text's hosts those that are known.
	Nodes []string
}

// Verdict is what a test says about its links.
type Verdict struct {
	Grade nettest.Grade `json:"grade"`
	// Bytes is the message size that was judged, the largest; Bus what it reached, GB/s.
	Bytes int64   `json:"bytes,omitempty"`
	Bus   float64 `json:"bus_gbps,omitempty"`
	// Expected is what these links give with messages of that size, GB/s; nil where no
	// figure is known. Part is Bus / Expected.
	Expected *float64 `json:"expected_gbps,omitempty"`
	Part     *float64 `json:"part,omitempty"`
	Mark     *Mark    `json:"mark,omitempty"`
	// Cause is the likely one, nil where all is well. Also are other facts that cost.
	Cause *nettest.Cause  `json:"cause,omitempty"`
	Also  []nettest.Cause `json:"also,omitempty"`
	// Text is the verdict as a sentence.
	Text string `json:"text"`
}

// Evaluate gives the verdict on a result.
func Evaluate(t Table, log Log, s Setting) Verdict {
	if c := incorrect(t, log, s); c != nil {
		v := Verdict{Grade: nettest.Failed, Cause: c, Text: c.Text}
		if r := t.Largest(); r != nil {
			v.Bytes, v.Bus = r.Bytes, r.Bus()
		}
		return v
	}
	r := t.Largest()
	v := Verdict{Grade: nettest.Unjudged, Bytes: r.Bytes, Bus: r.Bus()}
	reached := fmt.Sprintf("%s reached %.2f GB/s with %s messages", or(t.Op, "the test"), v.Bus, nettest.Size(r.Bytes))
	f := newFabric(s)
	ranks := max(len(t.Devices), len(s.Nodes))
	mark := f.mark()
	if t.Backend != "nccl" {
		v.Text = fmt.Sprintf("%s over %s, without NCCL and RDMA: every element was right, and of the links it says "+
			"nothing", reached, t.Backend)
		return v
	}
	tcp, overTCP := f.overTCP(log, mark)
	if overTCP {
		v.Cause = &tcp
	}
	switch {
	case len(s.Nodes) < len(t.Hosts()) && len(t.Hosts()) > 1:
		v.Text = reached + "; not all of its machines are this cluster's, so there is no figure to hold it against"
		return v
	case len(s.Nodes) < 2:
		v.Text, v.Cause = reached+" on one node: there is no link to judge", nil
		return v
	case mark == nil:
		v.Text = reached + "; no cable between these nodes is known, so there is no figure to hold it against"
		return v
	case t.Op == "":
		v.Text = reached + "; it does not say which operation that was, as old versions do not: name it, as in " +
			"sparkrun launch nccl-test all_gather --read FILE"
		return v
	case busFactor(t.Op, ranks) == 0:
		v.Text = fmt.Sprintf("%s; no figure is known for %s", reached, t.Op)
		return v
	}
	part := mark.part(t.Op, r.Bytes, ranks)
	expected := mark.Full * part
	v.Mark = mark
	found := f.settings(log, s.Traffic)
	if part < 0.5 && (!overTCP || expected == 0) { // then nothing is expected, and no gate passes
		v.Cause = &nettest.Cause{Code: nettest.CauseSmall, Text: "such small messages show latency, not the link's rate",
			Evidence: fmt.Sprintf("the largest message has %s", nettest.Size(r.Bytes)),
			Remedy:   "sparkrun launch nccl-test --max 1G"}
		v.Text, v.Also = reached+": "+v.Cause.Text, found
		return v
	}
	share := v.Bus / expected
	v.Expected, v.Part = &expected, &share
	against := fmt.Sprintf("%s, %.0f %% of the %.2f that %s should give", reached, 100*share, expected, mark.Text)
	if v.Bus >= mark.Pass*part && !overTCP {
		v.Grade, v.Text, v.Also = nettest.Good, against+"; every element was right", found
		return v
	}
	v.Grade = nettest.Low
	if !overTCP {
		v.Cause = likely(v.Bus/part, found, log, s.Traffic)
	}
	for _, c := range found {
		if c.Code != v.Cause.Code {
			v.Also = append(v.Also, c)
		}
	}
	v.Text = against + ": " + v.Cause.Text
	return v
}

// likely picks the fact that leaves nearest to what was measured (with messages so
// large that latency does not count). One that leaves far more explains nothing.
func likely(bus float64, found []nettest.Cause, log Log, traffic []nettest.Traffic) *nettest.Cause {
	best, explains := nettest.Likely(bus, found)
	if explains {
		return best
	}
	lost, anyLost := nettest.Losses(traffic)
	switch {
	case len(log.Bad) > 0:
		return &nettest.Cause{Code: nettest.CauseLosses, Text: "NCCL met errors on the way", Evidence: log.Bad[0],
			Remedy: "sparkrun doctor"}
	case anyLost:
		return &lost
	case bus < deeply && log.Via["NET/IB"] == 0:
		return &nettest.Cause{Code: nettest.CauseUnknown,
			Text:     "this is below half of one twin: NCCL went by TCP, or a ConnectX-7 has degraded",
			Evidence: strings.TrimSuffix(fmt.Sprintf("%.1f Gb/s; %s", bus*8, unknown(log, traffic)), "; "), Remedy: askNCCL}
	case bus < deeply:
		c := nettest.Degraded(bus * 8)
		return &c
	case best != nil:
		return best
	}
	c := &nettest.Cause{Code: nettest.CauseUnknown, Text: "nothing that was looked at explains it",
		Evidence: "twins, speed, PCIe, MTU, transport and losses are as they should be",
		Remedy:   "sparkrun doctor; is something else using the links or the GPUs?"}
	if not := unknown(log, traffic); not != "" {
		c.Evidence = "twins, speed, PCIe and MTU are as they should be; " + not
		c.Remedy = askNCCL + "; sparkrun doctor"
	}
	return c
}

// noTorch is how the sweep says that it could not begin.
const noTorch = "sparkrun sweep: "

// NoTorch is the verdict where a line of a rank's, on host, says that PyTorch is not there.
func NoTorch(host, line string) (Verdict, bool) {
	text, ok := strings.CutPrefix(line, noTorch)
	if !ok || !strings.Contains(text, "cannot import torch") {
		return Verdict{}, false
	}
	c := nettest.Cause{Code: CauseNoTorch, Text: "torch cannot be imported on " + host, Evidence: text,
		Remedy: "--python PYTHON of an environment with PyTorch, type this in an active one ($VIRTUAL_ENV), or pip " +
			"install torch there; nccl-tests needs none: sparkrun nccl-test build SRC"}
	return Verdict{Grade: nettest.Failed, Cause: &c, Text: c.Text}, true
}

// askNCCL is the remedy where a text does not say how NCCL went.
const askNCCL = "let sparkrun launch nccl-test run it, which reads NCCL's log and the counters; or run it with " +
	"NCCL_DEBUG=INFO and --read that output"

// unknown says what nobody has looked at; empty: all has been.
func unknown(log Log, traffic []nettest.Traffic) string {
	var parts []string
	if len(log.Via) == 0 {
		parts = append(parts, "the transport (no lines of NCCL_DEBUG=INFO)")
	}
	if !slices.ContainsFunc(traffic, func(t nettest.Traffic) bool { return t.RDMA }) {
		parts = append(parts, "losses (no RDMA device's counters)")
	}
	if len(parts) == 0 {
		return ""
	}
	return "not known: " + strings.Join(parts, ", ")
}

// incomplete is the cause where a test has not come to its end: what NCCL said of it, if it did.
func incomplete(text, evidence string, log Log) *nettest.Cause {
	c := &nettest.Cause{Code: CauseIncomplete, Text: text, Evidence: evidence,
		Remedy: "read what the ranks wrote: sparkrun logs"}
	if len(log.Bad) > 0 {
		c.Text += ": NCCL met errors on the way"
		c.Evidence, c.Remedy = log.Bad[0], "sparkrun doctor; sparkrun logs has all that the ranks wrote"
	}
	return c
}

// incorrect finds what makes a result worth nothing, whatever its speed.
func incorrect(t Table, log Log, s Setting) *nettest.Cause {
	if c := alone(t, s); c != nil {
		return c
	}
	if len(t.Rows) == 0 {
		return incomplete("the test gave no result", "no row of the table came", log)
	}
	checked := 0
	for _, r := range t.Rows {
		n, known := r.Wrong()
		if known {
			checked++
		}
		if n != 0 { // NaN is wrong, too
			return &nettest.Cause{Code: CauseWrong,
				Text:     fmt.Sprintf("%.0f elements of %s messages are wrong", n, nettest.Size(r.Bytes)),
				Evidence: fmt.Sprintf("#wrong %g", n),
				Remedy:   "do not use these links or GPUs until it is found: repeat with --on and two machines at a time"}
		}
	}
	switch b := t.OutOfBounds; {
	case b != nil && (!b.OK || b.Count != 0):
		return &nettest.Cause{Code: CauseWrong, Text: fmt.Sprintf("%d values are out of bounds", b.Count),
			Evidence: fmt.Sprintf("Out of bounds values : %d", b.Count),
			Remedy:   "do not use these links or GPUs until it is found: repeat with --on and two machines at a time"}
	case b == nil:
		return incomplete("the test did not come to its end", `no line "Out of bounds values : 0 OK"`, log)
	case checked == 0:
		return &nettest.Cause{Code: CauseUnchecked, Text: "nobody checked the results",
			Evidence: "#wrong is N/A for every size (nccl-tests -c 0 says OK all the same)", Remedy: "run it without -c 0"}
	}
	return nil
}

// alone: each rank has run a test of its own, in which nothing goes over a link, as programs do that
// were built without MPI, or that mistake who has started them.
func alone(t Table, s Setting) *nettest.Cause {
	seen := map[int]bool{}
	evidence := ""
	for _, d := range t.Devices {
		if seen[d.Rank] {
			evidence = fmt.Sprintf("rank %d is there twice, on %s", d.Rank, strings.Join(t.Hosts(), " and "))
		}
		seen[d.Rank] = true
	}
	if n := len(t.Devices); evidence == "" && n > 0 && n < len(s.Nodes) {
		evidence = fmt.Sprintf("it lists %d of the ranks of %d machines", n, len(s.Nodes))
	}
	if evidence == "" {
		return nil
	}
	return &nettest.Cause{Code: CauseAlone, Text: "each rank ran a test by itself, and none went over a link",
		Evidence: evidence,
		Remedy: "build nccl-tests with MPI=1: sparkrun nccl-test build SRC; and start it by the MPI it was built " +
			"with (--mpi)"}
}

func or(text, otherwise string) string {
	if strings.TrimSpace(text) == "" {
		return otherwise
	}
	return text
}

// Compare says how a result stands to the last one like it: +0.02 is 2 % more.
func Compare(now, last Record) (change float64, ok bool) {
	if last.Bus <= 0 || now.Bytes != last.Bytes || now.Op != last.Op || now.Tool != last.Tool ||
		!slices.Equal(now.Hosts, last.Hosts) {
		return 0, false
	}
	return now.Bus/last.Bus - 1, true
}
