package lead

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// A generation may hold several stages, started one after the other: each once the one
// before is ready. What has been started is in the nodes' ledgers, and probes may be
// asked again, so that a new leader goes on with nothing of this in any record.

// stepping is how far a generation's steps have come.
type stepping struct {
	steps    []launcher.Stage
	ports    map[string]launcher.Ports // the head's, by name
	ready    []bool                    // by step
	all      bool                      // the last one is ready, and that was told
	since    time.Time                 // when the present step was begun
	moved    time.Time                 // when something last moved in it
	saidX    time.Time                 // when it was last said what is waited for,
	saidWhat string                    // and what
	unsaid   bool                      // that has changed since
	lost     map[string]bool           // what has been told of the loss of a rank or node that is spared
	ended    time.Time                 // of the verdict
}

func newStepping(job rendezvous.Job, now time.Time) stepping {
	st := stepping{since: now, moved: now, lost: map[string]bool{}}
	if job.Plan.Generation > 0 {
		st.steps = job.Spec.Only(job.Plan.Stage).Steps()
	}
	st.ready = make([]bool, len(st.steps))
	return st
}

// probed is what a node has last said of the probes of a step.
type probed struct {
	text, last string
	moved      int64
	passed     bool
}

// How often it is said what a step waits for: again without a change, and with one. The longer
// it has waited the seldomer: a load of an hour is told in some hundred lines.
const (
	sayEvery = 30 * time.Second
	sayLeast = time.Second
)

// stepped tells whether there is more to see to than one start.
func (g *gang) stepped() bool { return g.job.Plan.Stage == "" && g.job.Spec.Stepped() }

// present is the step that has been begun and is not ready; len(steps) once all are.
func (g *gang) present() int {
	if k := slices.Index(g.ready, false); k >= 0 {
		return k
	}
	return len(g.steps)
}

// begun tells whether each rank of a step on a node has been exec'd, or could not be.
func (g *gang) begun(s *seat, k int) bool {
	if !g.steps[k].On(s.rank) {
		return true
	}
	for _, r := range g.ranksOf(s, k) {
		if st := s.ranks[r]; st == nil || st.State == launcher.RankPending {
			return false
		}
	}
	return true
}

// ranksOf are a step's ranks on a node.
func (g *gang) ranksOf(s *seat, k int) (ranks []int) {
	if !g.steps[k].On(s.rank) {
		return nil
	}
	first := s.FirstRank + g.job.Spec.Only(g.job.Plan.Stage).FirstOf(k, s.rank)
	for r := first; r < first+g.steps[k].RanksPerNode; r++ {
		ranks = append(ranks, r)
	}
	return ranks
}

// stageOf names the stage of a rank, with the words that lead to it; empty where a job has but one.
func (g *gang) stageOf(rank int) string {
	if !g.stepped() {
		return ""
	}
	for _, s := range g.seats {
		if k, _ := g.job.Spec.StepOf(s.rank, rank-s.FirstRank); rank >= s.FirstRank && rank < s.FirstRank+s.Ranks && k >= 0 {
			return "stage " + g.steps[k].Name + ", "
		}
	}
	return ""
}

// climb sees to it that steps become ready one after the other, and tells of it. It gives
// the first one that is not.
func (g *gang) climb(now time.Time) int {
	for k := g.present(); k < len(g.steps); k++ {
		if !g.isReady(k) {
			return k
		}
		g.ready[k] = true
		g.since, g.moved, g.saidX = now, now, time.Time{}
		if until := now.Add(g.job.Spec.StartTimeout); until.After(g.deadline) {
			g.deadline = until
		}
		if g.stepped() {
			g.waits("")
			g.tell(rendezvous.Progress{Step: rendezvous.StepStage, Text: "stage " + g.steps[k].Name + " is ready"})
		}
	}
	return len(g.steps)
}

// isReady tells whether the step after this one may be started. That it was says so, too:
// an earlier leader has seen to it.
func (g *gang) isReady(k int) bool {
	if g.job.Spec.Service != nil && g.job.Plan.Stage == "" {
		if g.wasReady() {
			return true
		}
	} else if g.allBegun() {
		return true
	}
	for _, s := range g.seats {
		for later := k + 1; later < len(g.steps); later++ {
			for _, r := range g.ranksOf(s, later) {
				if st := s.ranks[r]; st != nil && st.State > launcher.RankPending {
					return true
				}
			}
		}
	}
	ready := true
	for _, s := range g.seats {
		ready = ready && g.begun(s, k)
	}
	if !ready {
		return false
	}
	for _, s := range g.seats {
		if !g.steps[k].AskedOn(s.rank) {
			continue
		}
		if s.up && s.asked&(1<<k) == 0 {
			s.asked |= 1 << k
			g.send(s, launcher.Order{Probe: &launcher.AskReady{Key: g.job.Key(), Step: k, HeadPorts: g.ports}})
		}
		ready = ready && s.probes[k].passed
	}
	return ready
}

// allBegun tells of a gang that was taken up from an earlier leader that nothing is left to be
// started in it. Whether the last step was ready is in no ledger; its probes might never pass
// again, for a rank that was spared since.
func (g *gang) allBegun() bool {
	if g.fresh || !g.allKnown() {
		return false
	}
	for _, s := range g.seats {
		for k := range g.steps {
			if s.lost == "" && s.rejoined == 0 && !g.begun(s, k) {
				return false
			}
		}
	}
	return true
}

// probedIs takes what a node says of a step's probes.
func (g *gang) probedIs(s *seat, ev launcher.Event) {
	if ev.Step < 0 || ev.Step >= len(g.steps) {
		return
	}
	now := probed{text: ev.Text, last: ev.Last, moved: ev.Moved, passed: ev.Text == ""}
	if old := s.probes[ev.Step]; old != now {
		g.moved = time.Now()
	}
	if s.probes == nil {
		s.probes = map[int]probed{}
	}
	s.probes[ev.Step] = now
}

// waitsItsTurn tells whether all that a node has yet to start is of later steps.
func (g *gang) waitsItsTurn(s *seat) bool {
	for k := range min(g.present()+1, len(g.steps)) {
		if !g.begun(s, k) {
			return false
		}
	}
	return g.stepped()
}

// sayWaits tells what the present step waits for, as its probes' words change and now and then.
func (g *gang) sayWaits(now time.Time) {
	k := g.present()
	if !g.stepped() || !g.ordered || k == len(g.steps) {
		return
	}
	what := g.waitedFor(k)
	if now.Before(g.sayAt(now, what)) {
		g.unsaid = g.saidWhat != what
		return
	}
	g.unsaid = false
	g.saidWhat, g.saidX = what, now
	text := fmt.Sprintf("stage %s: %s", g.steps[k].Name, what)
	if age := now.Sub(g.since).Round(time.Second); age > 0 {
		text += ", " + age.String()
	}
	g.waits(text)
}

// sayAt is when it may be said what is waited for.
func (g *gang) sayAt(now time.Time, what string) time.Time {
	switch {
	case g.saidX.IsZero():
		return now
	case what == g.saidWhat:
		return g.saidX.Add(sayEvery)
	}
	return g.saidX.Add(max(sayLeast, min(now.Sub(g.since)/20, sayEvery)))
}

// waitedFor says what keeps a step from being ready, and where.
func (g *gang) waitedFor(k int) string {
	var late, words []string
	for _, s := range g.seats {
		switch p, told := s.probes[k]; {
		case !g.begun(s, k) && !s.up:
			late = append(late, s.Host+" does not answer")
		case !g.begun(s, k):
			late = append(late, s.Host+" starts")
		case told && !p.passed:
			words = append(words, p.text+" ("+s.Host+")")
		case !told && g.steps[k].AskedOn(s.rank):
			text := "no word yet"
			if ready := g.steps[k].Ready; len(ready) > 0 { // whoever is asked may be another machine than those that start
				text = ready[0].What + ": " + text
			}
			words = append(words, text+" ("+s.Host+")")
		}
	}
	return strings.Join(append(late, words...), "; ")
}

// stalledAt is when the present step has had enough patience; zero while none is waited for.
func (g *gang) stalledAt() time.Time {
	k := g.present()
	if !g.stepped() || !g.ordered || !g.allKnown() || k == len(g.steps) || g.job.Restored != nil {
		return time.Time{}
	}
	for _, s := range g.seats { // who cannot be heard cannot say that anything moves
		if !s.up && (!g.begun(s, k) || g.steps[k].AskedOn(s.rank)) {
			return time.Time{}
		}
	}
	patience := g.steps[k].Patience
	if patience == 0 {
		patience = launcher.DefaultPatience
	}
	return g.moved.Add(patience)
}

func (g *gang) stalled(now time.Time) bool {
	at := g.stalledAt()
	return !at.IsZero() && !now.Before(at)
}

// whyStalled names the stage, the nodes, and the last that is known of them.
func (g *gang) whyStalled() string {
	k := g.present()
	text := fmt.Sprintf("stage %s is not ready, and for %s nothing has moved in it: %s", g.steps[k].Name, g.stalledAt().Sub(g.moved), g.waitedFor(k))
	for _, s := range g.seats {
		if p := s.probes[k]; p.last != "" {
			text += fmt.Sprintf("\n  the last lines of it on %s:\n    %s", s.Host, strings.ReplaceAll(p.last, "\n", "\n    "))
		}
	}
	return text
}

// spared tells whether the job does without a rank's stage losing one: it was ready, and
// there is no other try that would bring the rank back, or it is replaced. Of what an earlier leader has begun
// nothing is judged before all is known.
func (g *gang) spared(s *seat, rank int) bool {
	if !g.stepped() || retried(g.job.Spec) && !g.replaces(s, rank) {
		return false
	}
	k, _ := g.job.Spec.StepOf(s.rank, rank-s.FirstRank)
	return k >= 0 && g.steps[k].Spares && (g.ready[k] || !g.fresh && !g.allKnown() || g.allBegun())
}

// sparedSeat tells that of a node.
func (g *gang) sparedSeat(s *seat) bool {
	for r := s.FirstRank; r < s.FirstRank+s.Ranks; r++ {
		if !g.spared(s, r) {
			return false
		}
	}
	return true
}

// tellSpared tells once of each loss that ends nothing.
func (g *gang) tellSpared() {
	if !g.stepped() || g.verdict != nil || !g.allKnown() {
		return
	}
	for _, s := range g.seats {
		switch away := "away " + s.Host; {
		case s.up:
			delete(g.lost, away)
		case !g.lost[away] && s.phase != launcher.PhaseEnded && g.sparedSeat(s):
			g.lost[away] = true
			g.tell(rendezvous.Progress{Step: rendezvous.StepStage, Host: s.Host, Text: fmt.Sprintf("%s%s does not answer", g.stageOf(s.FirstRank), s.Host) + g.withoutIt(s, -1)})
		}
		for _, e := range g.exitsOf(s) {
			key := fmt.Sprint("rank ", e.Rank, " ", s.rejoined, " ", s.ranks[e.Rank].Again)
			if !g.lost[key] && g.spared(s, e.Rank) && !e.Exit.ByUs {
				g.lost[key] = true
				g.tell(rendezvous.Progress{Step: rendezvous.StepStage, Host: s.Host, Text: g.blame(e) + g.withoutIt(s, e.Rank)})
			}
		}
		if s.lost != "" && !g.lost[s.lost] && g.sparedSeat(s) {
			g.lost[s.lost] = true
			g.tell(rendezvous.Progress{Step: rendezvous.StepStage, Host: s.Host, Text: g.stageOf(s.FirstRank) + s.lost + g.withoutIt(s, -1)})
		}
		if why := fmt.Sprint("refused ", s.rejoined, " ", s.Host); s.refused != "" && s.rejoined > 0 && !g.lost[why] {
			g.lost[why] = true
			g.tell(rendezvous.Progress{Step: rendezvous.StepStage, Host: s.Host, Text: g.stageOf(s.FirstRank) + s.refusal() + "; the job goes on without it"})
		}
	}
}

// mainDone tells whether the main stage has completed while others of its generation are there to serve it.
func (g *gang) mainDone() bool {
	if !g.stepped() || len(g.steps) < 2 || g.job.Spec.Service != nil {
		return false
	}
	k := slices.IndexFunc(g.steps, func(st launcher.Stage) bool { return st.Main })
	for _, s := range g.seats {
		for _, r := range g.ranksOf(s, k) {
			if st := s.ranks[r]; st == nil || st.State != launcher.RankEnded || st.Exit == nil || st.Exit.Failed() || st.Exit.ByUs {
				return false
			}
		}
	}
	return true
}

// leftEarly finds a rank that has ended with 0 while the main stage needs it.
func (g *gang) leftEarly() *launcher.RankExit {
	if !g.stepped() {
		return nil
	}
	for _, s := range g.seats {
		for _, e := range g.exitsOf(s) {
			k, _ := g.job.Spec.StepOf(s.rank, e.Rank-s.FirstRank)
			if k >= 0 && !g.steps[k].Main && !e.Exit.Failed() && !e.Exit.ByUs && !g.spared(s, e.Rank) {
				return &e
			}
		}
	}
	return nil
}

// reverseWait bounds, beside the grace, how long the end of one node's stages is waited
// for before those that were started earlier, elsewhere, are ended.
const reverseWait = 2 * time.Second

// depth is the first step that a node has ranks of.
func (g *gang) depth(s *seat) int {
	return slices.IndexFunc(g.steps, func(st launcher.Stage) bool { return st.On(s.rank) })
}

// endsLater tells whether a node's end waits: what came up last goes first, where the
// job has completed and nobody is in a hurry.
func (g *gang) endsLater(s *seat, now time.Time) bool {
	if !g.stepped() || g.verdict.End != rendezvous.Completed || !now.Before(g.ended.Add(g.grace+reverseWait)) {
		return false
	}
	return g.find(func(o *seat) bool {
		return g.depth(o) > g.depth(s) && o.up && o.phase != launcher.PhaseEnded && o.stuck == ""
	}) != nil
}
