package why

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// lasts is for how long ranks have to have waited before that is a finding: in a look of two seconds a shard that is
// read, or a checkpoint that is written, is like a hang.
const lasts = time.Minute

// endless is the same for a rank that computes while all others wait, in readings of a minute.
const endless = 5

// useOf is what a rank used of a machine, of its newest generation there.
func useOf(m usage.Machine, r wire.RankLook) (u usage.Rank, ran bool) {
	for _, u := range slices.Backward(m.Ranks) {
		if u.Job == r.Job && u.Rank == r.Rank {
			return u, true
		}
	}
	return u, false
}

// lately is how many cores a rank has used since the newest reading of a past minute that is old enough; false: there is
// none.
func (e Evidence) lately(r wire.RankLook) (cores float64, known bool) {
	for _, l := range e.Looks {
		now, runs := useOf(l.Machine, r)
		for _, m := range slices.Backward(l.Past) {
			over := l.Machine.At.Sub(m.At)
			if was, ran := useOf(m, r); runs && ran && l.Host == r.Host && was.Generation == now.Generation && over >= lasts {
				return (now.CPUTime - was.CPUTime).Seconds() / over.Seconds(), true
			}
		}
	}
	return 0, false
}

// lasted reports whether ranks have done as little, or spun, for long, and sent each other nothing. One for which something
// comes from elsewhere is no such rank: a download may be slow.
func (e Evidence) lasted(ranks []wire.RankLook) bool {
	for _, r := range ranks {
		if slices.ContainsFunc(r.Awaits, func(a wire.Await) bool {
			return a.Main && !a.Own && !a.Asks && !a.Connects && a.Idle < lasts
		}) {
			return false
		}
		was, known := e.lately(r)
		if !known || r.CPU < 2*quiet && was >= 2*quiet || r.CPU >= 2*quiet && was < 0.8*min(r.CPU, 1) {
			return false
		}
	}
	return silent(ranks) >= lasts
}

// silent is for how long nothing has gone over connections between ranks. Where they meet threads of torch ask each second
// whether all is well, while the main one waits or spins.
func silent(ranks []wire.RankLook) time.Duration {
	least := time.Duration(1<<63 - 1)
	for c, r := range between(ranks) {
		meets := r.Port != 0 && (int(c.Local.Port()) == r.Port || int(c.Remote.Port()) == r.Port)
		if !meets || c.Idle >= window || r.Main.Ran > 0 && r.CPU < 2*quiet {
			least = min(least, c.Idle)
		}
	}
	return least
}

// between are the connections of ranks to each other.
func between(all []wire.RankLook) iter.Seq2[wire.Conn, wire.RankLook] {
	local := map[netip.AddrPort]int{}
	for _, r := range all {
		for _, c := range r.Conns {
			local[c.Local] = r.Rank
		}
	}
	return func(yield func(wire.Conn, wire.RankLook) bool) {
		for _, r := range all {
			for _, c := range r.Conns {
				if of, known := local[c.Remote]; known && of != r.Rank && !yield(c, r) {
					return
				}
			}
		}
	}
}

// onceLasted gives a finding about ranks that wait if that has lasted; else one that nobody is sure of, which says so, or
// that one loads.
func (e Evidence) onceLasted(f wire.WhyFinding, late, waiting []wire.RankLook) []wire.WhyFinding {
	if loader := e.loader(late, waiting); len(loader) > 0 {
		return loader
	}
	if e.lasted(slices.Concat(late, waiting)) {
		return []wire.WhyFinding{f}
	}
	text := wait(waiting)
	if len(late) > 0 {
		does := " does nothing"
		switch several := len(late) > 1; {
		case !slices.ContainsFunc(late, func(r wire.RankLook) bool { return !sleeps(r) }) && several:
			does = " sleep"
		case sleeps(late[0]) && !several:
			does = " sleeps"
		case several:
			does = " do nothing"
		}
		text = list(late) + does + " and " + text
	}
	return []wire.WhyFinding{{Text: fmt.Sprintf("%s, which has not been seen for a whole minute: ask again if that goes on", text)}}
}

// computes is a rank that has used about a core in all the minutes there are, while all others waited. It has no other
// to talk to meanwhile.
func (e Evidence) computes(all []wire.RankLook) []wire.WhyFinding {
	i := slices.IndexFunc(all, spins)
	still := silent(all)
	if i < 0 || !joined(all) || still < lasts {
		return nil
	}
	late, rest := all[i], slices.Delete(slices.Clone(all), i, i+1)
	minutes := e.throughout(late, func(cores float64) bool { return cores >= 0.8 && cores < 1.5 })
	for _, r := range rest {
		if !waitsForPeers(r) {
			return nil
		}
		minutes = min(minutes, e.throughout(r, func(cores float64) bool { return cores < 2*quiet }))
	}
	if minutes < endless || still < endless*time.Minute {
		return []wire.WhyFinding{{Text: fmt.Sprintf("rank %d computes, %s for it, and nothing has gone between them for %s: "+
			"that is a finding once %d whole minutes of it have been seen", late.Rank, wait(rest), still.Round(time.Second), endless)}}
	}
	f := waitFinding(e, []wire.RankLook{late}, rest, 50, "")
	f.Code, f.Text = "computes", fmt.Sprintf("rank %d on %s has computed for %d min while %s for it", late.Rank, late.Host,
		minutes, wait(rest))
	return []wire.WhyFinding{f}
}

// offGPU is the only rank that has nothing on a GPU: it computes, and nothing goes between it and the others meanwhile.
func (e Evidence) offGPU(all []wire.RankLook) []wire.WhyFinding {
	var late, rest []wire.RankLook
	for _, r := range all {
		i := slices.IndexFunc(e.Looks, func(l wire.NodeLook) bool { return l.Host == r.Host })
		if i < 0 || len(e.Looks[i].Machine.GPUs) == 0 || e.Looks[i].Machine.At.Sub(r.Since) < lasts {
			return nil
		}
		u, known := useOf(e.Looks[i].Machine, r)
		switch {
		case !known:
			return nil
		case u.GPUMemory == nil || *u.GPUMemory == 0:
			late = append(late, r)
		default:
			rest = append(rest, r)
		}
	}
	if len(late) != 1 || len(rest) == 0 || !spins(late[0]) || !joined(all) || silent(all) < window {
		return nil
	}
	f := waitFinding(e, late, rest, 60, "")
	f.Code, f.Text = "off-gpu", fmt.Sprintf("rank %d on %s computes on the processor, and has nothing on its GPU, as all others have: %s for it",
		late[0].Rank, late[0].Host, wait(rest))
	return []wire.WhyFinding{f}
}

// throughout counts the past minutes of a rank, but for that of its start, if something holds of its use in all of them;
// else it is 0.
func (e Evidence) throughout(r wire.RankLook, holds func(cores float64) bool) (minutes int) {
	for _, l := range e.Looks {
		for _, m := range l.Past {
			u, ran := useOf(m, r)
			if l.Host != r.Host || !ran || u.CPU == nil || m.At.Sub(r.Since) < 2*time.Minute {
				continue
			}
			if !holds(*u.CPU) {
				return 0
			}
			minutes++
		}
	}
	return minutes
}
