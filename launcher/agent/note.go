package agent

import (
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// note applies one event of the shim's journal.
func (t *attempt) note(ev shim.Event) {
	t.heard = max(t.heard, ev.Seq)
	switch ev.Kind {
	case shim.Starting:
		t.execd = true
		t.change(nil, func(e *launcher.LedgerEntry) { e.Phase = max(e.Phase, launcher.PhaseStarted) })
	case shim.OutputLost:
		t.noteLost(ev)
		t.a.cfg.Logger.Warn("output lost", "job", t.key.Job, "rank", ev.Rank, "bytes", ev.Lost.Bytes, "error", ev.Lost.Error)
	case shim.Left:
		t.change(&launcher.Event{Kind: launcher.Left, Rank: ev.Rank, Text: ev.Why, Time: ev.Time}, nil)
	case shim.Stuck:
		t.stuck(ev.Why)
	case shim.Started:
		t.rankIs(launcher.RankStatus{Rank: ev.Rank, Again: ev.Again, State: launcher.RankRunning, PID: ev.PID, Time: ev.Time})
	case shim.Exited:
		t.rankIs(launcher.RankStatus{Rank: ev.Rank, Again: ev.Again, State: launcher.RankEnded, PID: ev.PID,
			Time: ev.Time, Exit: ev.Exit})
	case shim.Ended:
		t.noteEnded(ev)
	}
}

// stuck reports processes that were killed and do not go. The attempt has not ended: that
// is reported once they are gone.
func (t *attempt) stuck(who string) {
	if t.entry.Phase == launcher.PhaseEnded || t.entry.Stuck == who {
		return
	}
	t.a.cfg.Logger.Error("ranks cannot be ended", "job", t.key.Job, "processes", who)
	t.change(&launcher.Event{Kind: launcher.Stuck, Text: who}, func(e *launcher.LedgerEntry) { e.Stuck = who })
}

func (t *attempt) noteEnded(ev shim.Event) {
	switch {
	case t.entry.Phase == launcher.PhaseEnded:
		return
	case t.execd: // a killed shim could not see the exits of its ranks
		for _, r := range t.ranks() {
			if _, began := t.at[r]; !began && t.assignment != nil && t.assignment.Spec.Stepped() {
				continue // its step was not started
			}
			t.rankIs(launcher.RankStatus{Rank: r, Again: t.again(r), State: launcher.RankEnded, Time: ev.Time,
				Exit: &launcher.Exit{Error: "exit not seen: its shim was killed"}})
		}
	case !t.replaying && !t.ending && t.entry.Refused == "":
		t.refuse("ended before the start: " + ev.Why)
	}
	t.letGo()
	t.ended(ev.Time)
}

// ranks lists the global ranks of this node, as far as they are known.
func (t *attempt) ranks() []int {
	var out []int
	if as := t.assignment; as != nil {
		for r := as.FirstRank; r < as.FirstRank+as.Ranks; r++ {
			out = append(out, r)
		}
		return out
	}
	for _, r := range t.entry.Ranks {
		out = append(out, r.Rank)
	}
	return out
}

// rankIs moves one rank, and reports its end, and once the start of all.
func (t *attempt) rankIs(r launcher.RankStatus) {
	i, known := t.at[r.Rank]
	if known && !t.entry.Ranks[i].Before(r) {
		return
	}
	if !known {
		i = len(t.entry.Ranks)
		t.at[r.Rank] = i
	} else if r.PID == 0 && r.Again == t.entry.Ranks[i].Again {
		r.PID = t.entry.Ranks[i].PID
	}
	var ev *launcher.Event
	if r.State == launcher.RankEnded {
		ev = &launcher.Event{Kind: launcher.Exited, Rank: r.Rank, Again: r.Again, Exit: r.Exit, Time: r.Time}
	} else if r.Again > 0 {
		ev = &launcher.Event{Kind: launcher.Returned, Rank: r.Rank, Again: r.Again, Time: r.Time}
	}
	t.change(ev, func(e *launcher.LedgerEntry) {
		e.Phase = max(e.Phase, launcher.PhaseStarted)
		if !known {
			e.Ranks = append(e.Ranks, launcher.RankStatus{Rank: r.Rank})
		}
		e.Ranks[i].Advance(r)
	})
	switch as := t.assignment; {
	case known || as == nil:
	case as.Spec.Stepped():
		if step, all := t.stepExecd(r.Rank); all {
			t.does("", false)
			t.change(&launcher.Event{Kind: launcher.Started, Step: step, Time: r.Time}, nil)
		}
	case t.allExecd():
		t.does("", false)
		t.change(&launcher.Event{Kind: launcher.Started, Time: r.Time}, nil)
	}
}

// stepExecd gives the step of a rank, and whether all ranks of that step here were exec'd.
func (t *attempt) stepExecd(rank int) (step int, all bool) {
	step, st, _ := t.assignment.Local(rank - t.assignment.FirstRank)
	execd := 0
	for _, r := range t.entry.Ranks {
		if of, _, _ := t.assignment.Local(r.Rank - t.assignment.FirstRank); of == step && r.PID != 0 {
			execd++
		}
	}
	return step, execd == st.RanksPerNode
}

func (t *attempt) allExecd() bool {
	never := func(r launcher.RankStatus) bool { return r.PID == 0 }
	return t.assignment != nil && len(t.entry.Ranks) == t.assignment.Ranks && !slices.ContainsFunc(t.entry.Ranks, never)
}

// allEnded reports whether no more output can come from the wanted ranks.
func (t *attempt) allEnded(wanted map[int]bool) bool {
	t.entryMu.Lock()
	defer t.entryMu.Unlock()
	if t.entry.Phase == launcher.PhaseEnded || t.restartable.Load() { // the second: a rank may be started again
		return t.entry.Phase == launcher.PhaseEnded
	}
	ended := 0
	for _, r := range t.entry.Ranks {
		if wanted[r.Rank] && r.State == launcher.RankEnded {
			ended++
		}
	}
	return ended == len(wanted)
}
