package usage

import (
	"cmp"
	"maps"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

// tick is the unit of times in /proc: USER_HZ is 100 on all that Linux runs on (proc_pid_stat(5)).
const tick = time.Second / 100

// ranks finds what is whose: a rank's process and all below it, and what carries the attempt's mark in its environment,
// as in a container, which has another parent.
type ranks struct {
	fs   proc.FS
	mine map[proc.Stat]mark // of what has been looked at, by Born
	seen map[rankKey]*spent
	of   map[int]rankKey // of the last reading
}

type rankKey struct {
	launcher.Key
	rank int
}

// mark is what a process's environment says.
type mark struct {
	sure bool // it is that of the program that runs: who was looked at before its exec had another
	key  launcher.Key
	rank int // -1: it does not say
	is   bool
	away bool // in other mounts than the agent: a container's, not a daemon that a rank has left
}

// spent is the processor time of a rank's processes.
type spent struct {
	ticks map[proc.Stat][2]uint64 // of those that live, and of what they have waited for
	lost  uint64                  // of those that nobody here has waited for
}

// now reads what the ranks of the ledger use. Over is the time since the reading before.
func (r *ranks) now(ledger []launcher.LedgerEntry, over time.Duration, held map[int]int64) (all []Rank) {
	ledger = slices.DeleteFunc(slices.Clone(ledger), func(e launcher.LedgerEntry) bool {
		return e.Phase != launcher.PhaseStarted
	})
	if len(ledger) == 0 { // the process table is not read for nothing
		r.mine, r.seen, r.of = nil, nil, nil
		return nil
	}
	table, _ := r.fs.All()
	before := r.seen
	r.seen = map[rankKey]*spent{}
	of, mains := r.owners(table, ledger)
	r.of = of
	byRank := map[rankKey][]proc.Stat{}
	for _, p := range table {
		if k, found := of[p.PID]; found {
			byRank[k] = append(byRank[k], p)
		}
	}
	for k, procs := range byRank {
		now := Rank{Job: k.Job, Generation: k.Generation, Rank: k.rank}
		if held != nil {
			now.GPUMemory = new(int64)
		}
		total, was := &spent{ticks: map[proc.Stat][2]uint64{}}, before[k]
		var gone, waited uint64 // of those that lived before, and are their parents' by now
		for _, p := range procs {
			total.ticks[p.Born()] = [2]uint64{p.Spent, p.Reaped}
			if was != nil {
				if old, known := was.ticks[p.Born()]; known {
					waited += p.Reaped - old[1]
				}
			}
			if p.PID == mains[k] {
				now.State = string(p.State)
			}
			if p.Dead() {
				continue
			}
			now.PIDs++
			now.Memory += r.fs.Resident(p.PID)
			if held != nil {
				*now.GPUMemory += held[p.PID]
			}
		}
		if was != nil {
			for p, n := range was.ticks {
				if _, lives := total.ticks[p]; !lives {
					gone += n[0] + n[1]
				}
			}
			total.lost = was.lost + gone - min(gone, waited)
			if over > 0 {
				now.CPU = new(float64(total.all()-min(total.all(), was.all())) * tick.Seconds() / over.Seconds())
			}
		}
		now.CPUTime = time.Duration(total.all()) * tick //nolint:gosec // centuries
		r.seen[k] = total
		all = append(all, now)
	}
	slices.SortFunc(all, func(a, b Rank) int {
		return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Generation, b.Generation), cmp.Compare(a.Rank, b.Rank))
	})
	return all
}

// othersLeast is from how much of a GPU's memory on a process is told of that is no rank's.
const othersLeast = 1 << 30

// others are those that hold a GPU's memory and were no rank's in the last reading, the largest first.
func (r *ranks) others(held map[int]int64) (all []Other) {
	for pid, n := range held {
		if _, mine := r.of[pid]; mine || n < othersLeast {
			continue
		}
		o := Other{PID: pid, Name: r.fs.Name(pid), Job: r.markOf(pid).key.Job, GPUMemory: n}
		var st unix.Stat_t
		if unix.Stat(string(r.fs)+"/"+strconv.Itoa(pid), &st) == nil {
			o.User = strconv.FormatUint(uint64(st.Uid), 10)
			if u, err := user.LookupId(o.User); err == nil {
				o.User = u.Username
			}
		}
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b Other) int {
		return cmp.Or(cmp.Compare(b.GPUMemory, a.GPUMemory), cmp.Compare(a.PID, b.PID))
	})
	return all
}

func (s *spent) all() uint64 {
	n := s.lost
	for _, ticks := range s.ticks {
		n += ticks[0] + ticks[1]
	}
	return n
}

// owners says which rank a process is of, and which process is a rank's main one.
func (r *ranks) owners(table []proc.Stat, ledger []launcher.LedgerEntry) (of map[int]rankKey, mains map[rankKey]int) {
	of, mains = map[int]rankKey{}, map[rankKey]int{}
	only := map[launcher.Key]int{} // the rank of an attempt that has one alone here
	for _, e := range ledger {
		for _, rank := range e.Ranks {
			if rank.PID > 0 && rank.State == launcher.RankRunning {
				k := rankKey{e.Key, rank.Rank}
				of[rank.PID], mains[k] = k, rank.PID
			}
		}
		if len(e.Ranks) == 1 {
			only[e.Key] = e.Ranks[0].Rank
		}
	}
	parents := map[int]int{}
	for _, p := range table {
		parents[p.PID] = p.PPID
	}
	known := r.mine
	r.mine = map[proc.Stat]mark{}
	roots, contained := maps.Clone(of), map[rankKey]proc.Stat{} // of the latter the first process of each rank
	for _, p := range table {
		if _, found := above(of, parents, p.PID); found {
			continue
		}
		m, looked := known[p.Born()]
		if !m.sure {
			m = r.markOf(p.PID)
			m.sure = looked || m.is
		}
		r.mine[p.Born()] = m
		rank, alone := only[m.key]
		if !alone {
			rank = m.rank
		}
		k := rankKey{m.key, rank}
		if _, here := mains[k]; !m.is || !here { // nobody's, or a rank's that is over
			continue
		}
		roots[p.PID] = k
		if first, another := contained[k]; m.away && (!another || p.Ticks < first.Ticks) {
			contained[k] = p
		}
	}
	for k, p := range contained {
		mains[k] = p.PID
	}
	for _, p := range table {
		if k, found := above(roots, parents, p.PID); found {
			of[p.PID] = k
		}
	}
	return of, mains
}

// above is the rank of a process or of the nearest above it that has one.
func above(of map[int]rankKey, parents map[int]int, pid int) (rankKey, bool) {
	for steps := 0; pid > 1 && steps <= len(parents); steps++ { // a reused PID can close a loop
		if k, found := of[pid]; found {
			return k, true
		}
		pid = parents[pid]
	}
	return rankKey{}, false
}

// markOf reads SPARKRUN_GANG, JOB.GENERATION/NONCE, and RANK, which sparkrun gives to each rank.
func (r *ranks) markOf(pid int) mark {
	text, is := r.fs.Env(pid, "SPARKRUN_GANG")
	if !is {
		return mark{}
	}
	text, _, _ = strings.Cut(text, "/")
	job, gen, _ := strings.Cut(text, ".")
	n, err := strconv.ParseUint(gen, 10, 64)
	m := mark{key: launcher.Key{Job: launcher.JobID(job), Generation: launcher.Generation(n)}, rank: -1, is: err == nil,
		away: !r.fs.SameMounts(pid)}
	if text, told := r.fs.Env(pid, "RANK"); told {
		if rank, err := strconv.Atoi(text); err == nil {
			m.rank = rank
		}
	}
	return m
}
