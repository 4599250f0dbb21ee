package sampler

import (
	"strconv"
	"time"

	"github.com/sparkrun/sparkrun/launcher/usage"
)

// kept minutes are remembered.
const kept = 60

// past is what the machine used in each of the last minutes.
type past struct {
	minutes []usage.Machine
	minute  time.Time // the one that is under way
	newest  usage.Machine
	sums    map[string]sum // of the minute, by figure
}

// sum is one of a figure, by time: it is the mean over the time since the reading before.
type sum struct{ value, over float64 }

// add takes a reading. The minute that is over is remembered: its last reading, with the means of the minute in place of
// what moves.
func (p *past) add(m usage.Machine) {
	if minute := m.At.Truncate(time.Minute); !minute.Equal(p.minute) {
		if p.sums != nil {
			mean := copied(p.newest)
			figures(&mean, func(name string, v **float64) {
				if s, known := p.sums[name]; known {
					*v = new(s.value / s.over)
				}
			})
			p.minutes = append(p.minutes, mean)
			p.minutes = p.minutes[max(0, len(p.minutes)-kept):]
		}
		p.minute, p.sums = minute, map[string]sum{}
	}
	over := max(m.Over, time.Millisecond).Seconds()
	figures(&m, func(name string, v **float64) {
		if *v != nil {
			s := p.sums[name]
			p.sums[name] = sum{s.value + **v*over, s.over + over}
		}
	})
	p.newest = m
}

// copied has lists of its own, so that the reading stays as it was told.
func copied(m usage.Machine) usage.Machine {
	if m.CPU != nil {
		m.CPU = new(*m.CPU)
	}
	if m.Memory != nil {
		m.Memory = new(*m.Memory)
	}
	m.GPUs, m.Disks = append([]usage.GPU(nil), m.GPUs...), append([]usage.Disk(nil), m.Disks...)
	m.Ports, m.Ranks = append([]usage.Port(nil), m.Ports...), append([]usage.Rank(nil), m.Ranks...)
	return m
}

// figures calls fn for all that is meant to be a mean.
func figures(m *usage.Machine, fn func(name string, v **float64)) {
	if c := m.CPU; c != nil {
		fn("cpu", &c.Used)
	}
	if mem := m.Memory; mem != nil {
		fn("stalled", &mem.Stalled)
		fn("swap in", &mem.SwapIn)
	}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		of := "gpu " + strconv.Itoa(g.Index)
		fn(of+" busy", &g.Busy)
		fn(of+" clock", &g.MHz)
		fn(of+" watts", &g.Watts)
		fn(of+" celsius", &g.Celsius)
	}
	for i := range m.Disks {
		d := &m.Disks[i]
		fn("read "+d.Mount, &d.Read)
		fn("written "+d.Mount, &d.Written)
	}
	for i := range m.Ports {
		p := &m.Ports[i]
		fn("rdma in "+p.Name, &p.RDMAIn)
		fn("rdma out "+p.Name, &p.RDMAOut)
		fn("ether in "+p.Name, &p.EtherIn)
		fn("ether out "+p.Name, &p.EtherOut)
	}
	for i := range m.Ranks {
		r := &m.Ranks[i]
		fn("rank "+string(r.Job)+" "+strconv.FormatUint(uint64(r.Generation), 10)+" "+strconv.Itoa(r.Rank), &r.CPU)
	}
}
