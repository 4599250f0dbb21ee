package usage

import (
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

// Reader reads a machine, all but its fabric's ports. One at a time: rates are by what the reading before had.
type Reader struct {
	proc proc.FS
	sys  string
	smi  *SMI

	disks  disks
	ranks  ranks
	last   counts
	heat   []Heat
	heatAt time.Time
}

// counts are what only rises.
type counts struct {
	at      time.Time
	ticks   Ticks
	stalled *time.Duration
	swapped *int64
	moved   map[uint64]found // by device
}

// heatEvery is the least time between two readings of sensors: of an NVMe disk or a network card each is a command to
// its firmware.
const heatEvery = 10 * time.Second

// NewReader makes it. Folders are those whose file systems are told of; sys is where sysfs is mounted.
func NewReader(fs proc.FS, sys string, smi *SMI, folders ...string) *Reader {
	return &Reader{proc: fs, sys: sys, smi: smi, ranks: ranks{fs: fs},
		disks: disks{sys: sys, folders: folders, busy: map[string]bool{}}}
}

// Read gives what the machine uses now, and the ranks of the ledger on it.
func (r *Reader) Read(ledger []launcher.LedgerEntry) Machine {
	m := Machine{At: time.Now(), Memory: memory(r.proc), GPUs: r.smi.GPUs(), GPUSilent: r.smi.Silent()}
	if !r.last.at.IsZero() {
		m.Over = m.At.Sub(r.last.at)
	}
	now := counts{at: m.At, moved: map[uint64]found{}}
	if text, ok := line(string(r.proc) + "/stat"); ok {
		if t, ok := ParseTicks(text); ok {
			now.ticks = t
			m.CPU = &CPU{Cores: t.Cores, Used: t.Since(r.last.ticks), Load1: load1(r.proc)}
		}
	}
	if p, err := r.proc.MemoryPressure(); err == nil {
		now.stalled = &p.Full
	}
	if n, err := r.proc.SwappedIn(); err == nil {
		now.swapped = &n
	}
	if m.Memory != nil && m.Over > 0 {
		if was := r.last.stalled; was != nil && now.stalled != nil {
			m.Memory.Stalled = new(min(max((*now.stalled-*was).Seconds()/m.Over.Seconds(), 0), 1))
		}
		if was := r.last.swapped; was != nil && now.swapped != nil {
			m.Memory.SwapIn = new(max(float64(*now.swapped-*was)/m.Over.Seconds(), 0))
		}
	}
	for _, f := range r.disks.now(r.disks.folders) {
		now.moved[f.device] = f
		if was, known := r.last.moved[f.device]; known && m.Over > 0 {
			f.Read, f.Written = Rate(f.read, was.read, m.Over), Rate(f.written, was.written, m.Over)
		}
		m.Disks = append(m.Disks, f.Disk)
	}
	if m.At.Sub(r.heatAt) >= heatEvery {
		r.heat, r.heatAt = heat(r.sys), m.At
	}
	m.Heat = r.heat
	held := r.smi.Held()
	m.Ranks = r.ranks.now(ledger, m.Over, held)
	m.Others = r.ranks.others(held)
	r.last = now
	return m
}

// Rate is by how much a counter has risen a second; nil: it is not known, or was set back.
func Rate(now, before *uint64, over time.Duration) *float64 {
	if now == nil || before == nil || *now < *before || over <= 0 {
		return nil
	}
	return new(float64(*now-*before) / over.Seconds())
}
