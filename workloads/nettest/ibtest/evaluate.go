package ibtest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/workloads/nettest"
)

// Setting is under what a test ran.
type Setting struct {
	nettest.Setting
	// ExpectGbps and ExpectMicros are what the user says that a cable gives; 0: what is
	// known of a Spark's.
	ExpectGbps, ExpectMicros float64
}

// Lane is what one pair of devices gave.
type Lane struct {
	From     string   `json:"from"` // the device
	To       string   `json:"to"`
	Measured Measured `json:"measured,omitzero"`
	// Error says why there is no figure.
	Error string `json:"error,omitempty"`
}

// Cell is one test over one cable: bandwidth one way, by all lanes together; latency by the
// slowest of them.
type Cell struct {
	Test string `json:"test"`
	From string `json:"from"` // hosts
	To   string `json:"to"`
	Port string `json:"port"` // port 0 - port 0
	// Lanes in which nothing was measured have an Error.
	Lanes []Lane `json:"lanes"`
	// Gbps is the sum of all lanes, Micros the highest one-way latency; nil where a lane
	// gave none.
	Gbps   *float64 `json:"gbps,omitempty"`
	Micros *float64 `json:"us,omitempty"`
	// Expected is in the same unit, and Part of it was reached: 1 is all. nil where no
	// figure is known.
	Expected *float64        `json:"expected,omitempty"`
	Part     *float64        `json:"part,omitempty"`
	Grade    nettest.Grade   `json:"grade"`
	Cause    *nettest.Cause  `json:"cause,omitempty"`
	Also     []nettest.Cause `json:"also,omitempty"`
	Text     string          `json:"text"`

	cable int
	back  bool
}

// Verdict is what the whole test says: that of its worst cell.
type Verdict struct {
	Grade nettest.Grade  `json:"grade"`
	Part  *float64       `json:"part,omitempty"` // the least of all
	Cause *nettest.Cause `json:"cause,omitempty"`
	Text  string         `json:"text"`
}

// Report is a whole result.
type Report struct {
	Verdict Verdict `json:"verdict"`
	Cells   []Cell  `json:"cells"`
}

// Evaluate gives the report on what the ranks of a plan printed.
func Evaluate(p Plan, told Lines, s Setting) Report {
	var rep Report
	at := map[string]int{}
	for i, step := range p.Steps {
		for j, run := range step.Runs {
			key := fmt.Sprint(step.Test, run.Cable, run.Back)
			k, known := at[key]
			if !known {
				k, at[key] = len(rep.Cells), len(rep.Cells)
				from, to := p.Ends(run)
				c := p.Cables[run.Cable]
				slots := [2]string{c.SlotA, c.SlotB}
				if run.Back {
					slots[0], slots[1] = slots[1], slots[0]
				}
				rep.Cells = append(rep.Cells,
					Cell{Test: step.Test, From: p.Nodes[from.Node].Host, To: p.Nodes[to.Node].Host, cable: run.Cable, back: run.Back,
						Port: s.port(p.Nodes[from.Node].Host, slots[0]) + " - " + s.port(p.Nodes[to.Node].Host, slots[1])})
			}
			rep.Cells[k].Lanes = append(rep.Cells[k].Lanes, readLane(p, told, i, j))
		}
	}
	for i := range rep.Cells {
		c := &rep.Cells[i]
		c.add()
		evaluation{c: c, p: p, s: s, ends: s.endsOf(p, *c)}.evaluate()
	}
	rep.Verdict = verdict(rep.Cells)
	return rep
}

// readLane is what one run gave.
func readLane(p Plan, told Lines, step, run int) Lane {
	from, to := p.Ends(p.Steps[step].Runs[run])
	l := Lane{From: from.Way.Device, To: to.Way.Device}
	line, ok := told.clients[[2]int{step, run}]
	if !ok {
		l.Error = "nothing was reported"
	} else if m, err := Read(line.Out, line.File); err == nil && line.Error == "" {
		l.Measured = m
		l.Error = otherGID(m, from, to)
		switch {
		case m.Gbps == nil || *m.Gbps > 0:
		case m.Iters > 0:
			l.Error = firstWords(fmt.Sprintf("perftest counted %d messages, and no time", m.Iters), line.Err, nil)
		default: // with a duration it ends well all the same
			l.Error = "not one message was acknowledged: perftest's bandwidth is 0"
		}
	} else {
		l.Error = firstWords(line.Error, line.Err, err)
	}
	if l.Error != "" { // the far end may know better
		if far, ok := told.servers[[2]int{step, run}]; ok {
			if words := firstWords(far.Error, far.Err, nil); words != "" && !strings.Contains(l.Error, words) {
				l.Error += "; " + p.Nodes[to.Node].Host + ": " + words
			}
		}
	}
	return l
}

// otherGID tells of a run that did not speak from and to the addresses of its lane.
func otherGID(m Measured, from, to End) string {
	for _, side := range []struct {
		gid  fmt.Stringer
		ok   bool
		want Way
	}{{m.Local, !m.Local.IsValid() || m.Local.Unmap() == from.Way.Addr, from.Way},
		{m.Remote, !m.Remote.IsValid() || m.Remote.Unmap() == to.Way.Addr, to.Way}} {
		if !side.ok {
			return fmt.Sprintf("%s spoke by GID %s, and not by that of %s", side.want.Device, side.gid, side.want.Addr)
		}
	}
	return ""
}

// firstWords are the first that say something, in one line.
func firstWords(own, printed string, err error) string {
	var words []string
	if own != "" {
		words = append(words, own)
	}
	for line := range strings.Lines(printed) {
		if line = strings.TrimSpace(line); line != "" && len(words) < 3 {
			words = append(words, line)
		}
	}
	if len(words) == 0 && err != nil {
		words = append(words, err.Error())
	}
	return strings.Join(words, "; ")
}

// add sums the lanes up.
func (c *Cell) add() {
	sum, slowest := 0.0, 0.0
	for _, l := range c.Lanes {
		switch {
		case l.Error != "":
			return
		case IsBandwidth(c.Test):
			if l.Measured.Gbps == nil {
				return
			}
			sum += *l.Measured.Gbps
		case l.Measured.latency() == nil:
			return
		default:
			slowest = max(slowest, *l.Measured.latency())
		}
	}
	if IsBandwidth(c.Test) {
		c.Gbps = &sum
	} else {
		c.Micros = &slowest
	}
}

// node finds one by its host name.
func (s Setting) node(host string) envgen.TopologyNode {
	i := slices.IndexFunc(s.Topology.Nodes, func(n envgen.TopologyNode) bool { return n.Host == host })
	if i < 0 {
		return envgen.TopologyNode{Host: host}
	}
	return s.Topology.Nodes[i]
}

// port names a node's port as people do.
func (s Setting) port(host, slot string) string {
	n := s.node(host)
	p, ok := n.Port(slot)
	if !ok {
		return slot
	}
	return topology.PortName(n, p)
}

// Reached is the part that a gate is held against: the least of all bandwidths, and of latencies that are
// low. A good one may be half of what is expected (LatencyPass), of which no gate for bandwidth knows; where
// only latency was measured it counts. nil: nothing was expected.
func (r Report) Reached() *float64 {
	var least *float64
	for _, c := range r.Cells {
		if c.Part != nil && (IsBandwidth(c.Test) || c.Grade == nettest.Low) && (least == nil || *c.Part < *least) {
			least = c.Part
		}
	}
	if least == nil {
		return r.Verdict.Part
	}
	return least
}

// rank orders grades, the worst highest.
func rank(g nettest.Grade) int {
	return slices.Index([]nettest.Grade{nettest.Good, nettest.Unjudged, nettest.Low, nettest.Failed}, g)
}

// verdict is the worst cell's; of equal ones that which reached the smallest part.
func verdict(cells []Cell) Verdict {
	if len(cells) == 0 {
		return Verdict{Grade: nettest.Failed, Text: "nothing was measured"}
	}
	part := func(c Cell) float64 {
		if c.Part == nil {
			return 1
		}
		return *c.Part
	}
	worst := cells[0]
	var least *float64
	for _, c := range cells {
		if rank(c.Grade) > rank(worst.Grade) || c.Grade == worst.Grade && part(c) < part(worst) {
			worst = c
		}
		if c.Part != nil && (least == nil || *c.Part < *least) {
			least = c.Part
		}
	}
	v := Verdict{Grade: worst.Grade, Part: least, Cause: worst.Cause, Text: worst.Text}
	alike := 0
	for _, c := range cells {
		if c.Grade == worst.Grade {
			alike++
		}
	}
	switch {
	case v.Grade == nettest.Good && len(cells) > 1:
		v.Text = fmt.Sprintf("all %d are; the least, %s", len(cells), v.Text)
	case alike > 1:
		v.Text = fmt.Sprintf("%s; %d of %d are %s", v.Text, alike, len(cells), v.Grade)
	}
	return v
}
