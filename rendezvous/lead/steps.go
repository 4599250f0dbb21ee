package lead

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// A generation may have several stages (steps), each started once the one before is ready. What was started is in
// the nodes' ledgers, and probes can be run again, so a new leader needs no record of this.

// stepping is the progress of a generation's steps.
type stepping struct {
	steps    []launcher.Stage
	ports    map[string]launcher.Ports // the head's, by name
	ready    []bool                    // by step
	all      bool                      // the last one is ready, and this was reported
	since    time.Time                 // when the present step was begun
	moved    time.Time                 // when it last made progress
	saidAt   time.Time                 // when it was last reported what the step waits for,
	saidWhat string                    // and what
	unsaid   bool                      // it has changed since
	lost     map[string]bool           // reported losses of spared ranks and nodes
	ended    time.Time                 // when the verdict was set
}

func newStepping(job rendezvous.Job, now time.Time) stepping {
	st := stepping{since: now, moved: now, lost: map[string]bool{}}
	if job.Plan.Generation > 0 {
		st.steps = job.Spec.Only(job.Plan.Stage).Steps()
	}
	st.ready = make([]bool, len(st.steps))
	return st
}

// probed is a node's last report about the probes of a step.
type probed struct {
	text, last string
	moved      int64
	passed     bool
}

// How often it is reported what a step waits for: without a change, and at most with changes. The longer the wait,
// the rarer the reports: loading for an hour makes about a hundred lines.
const (
	sayEvery = 30 * time.Second
	sayLeast = time.Second
)

// stepped tells whether the generation has steps instead of one start.
func (r *run) stepped() bool { return r.job.Plan.Stage == "" && r.job.Spec.Stepped() }

// present is the first step that is not ready; len(steps) if all are.
func (r *run) present() int {
	if k := slices.Index(r.ready, false); k >= 0 {
		return k
	}
	return len(r.steps)
}

// begun tells whether each rank of a step on a node was exec'd or could not be.
func (r *run) begun(p *placement, k int) bool {
	if !r.steps[k].On(p.rank) {
		return true
	}
	for _, r := range r.ranksOf(p, k) {
		if st := p.ranks[r]; st == nil || st.State == launcher.RankPending {
			return false
		}
	}
	return true
}

// ranksOf are a step's ranks on a node.
func (r *run) ranksOf(p *placement, k int) (ranks []int) {
	if !r.steps[k].On(p.rank) {
		return nil
	}
	first := p.FirstRank + r.job.Spec.Only(r.job.Plan.Stage).FirstOf(k, p.rank)
	for rank := first; rank < first+r.steps[k].RanksPerNode; rank++ {
		ranks = append(ranks, rank)
	}
	return ranks
}

// stageOf names the stage of a rank, to begin a sentence with; empty if the job has only one.
func (r *run) stageOf(rank int) string {
	if !r.stepped() {
		return ""
	}
	for _, p := range r.placements {
		if k, _ := r.job.Spec.StepOf(p.rank, rank-p.FirstRank); rank >= p.FirstRank && rank < p.FirstRank+p.Ranks && k >= 0 {
			return "stage " + r.steps[k].Name + ", "
		}
	}
	return ""
}

// firstUnready marks and reports, in order, the steps that have become ready, and gives the first one that is not.
func (r *run) firstUnready(now time.Time) int {
	for k := r.present(); k < len(r.steps); k++ {
		if !r.isReady(k) {
			return k
		}
		r.ready[k] = true
		r.since, r.moved, r.saidAt = now, now, time.Time{}
		if until := now.Add(r.job.Spec.StartTimeout); until.After(r.deadline) {
			r.deadline = until
		}
		if r.stepped() {
			r.waits("")
			r.tell(rendezvous.Progress{Step: rendezvous.StepStage, Text: "stage " + r.steps[k].Name + " is ready"})
		}
	}
	return len(r.steps)
}

// isReady tells whether the next step may be started. If that was started already, an earlier leader found this one
// ready.
func (r *run) isReady(k int) bool {
	if r.job.Spec.Service != nil && r.job.Plan.Stage == "" {
		if r.wasReady() {
			return true
		}
	} else if r.allBegun() {
		return true
	}
	for _, p := range r.placements {
		for later := k + 1; later < len(r.steps); later++ {
			for _, r := range r.ranksOf(p, later) {
				if st := p.ranks[r]; st != nil && st.State > launcher.RankPending {
					return true
				}
			}
		}
	}
	ready := true
	for _, p := range r.placements {
		ready = ready && r.begun(p, k)
	}
	if !ready {
		return false
	}
	for _, p := range r.placements {
		if !r.steps[k].AskedOn(p.rank) {
			continue
		}
		if p.up && p.asked&(1<<k) == 0 {
			p.asked |= 1 << k
			r.send(p, launcher.Order{Probe: &launcher.AskReady{Key: r.job.Key(), Step: k, HeadPorts: r.ports}})
		}
		ready = ready && p.probes[k].passed
	}
	return ready
}

// allBegun tells whether nothing is left to start in a run that was adopted from an earlier leader. No ledger says
// whether the last step was ready, and its probes might never pass again because of a rank that was spared since.
func (r *run) allBegun() bool {
	if r.fresh || !r.allKnown() {
		return false
	}
	for _, p := range r.placements {
		for k := range r.steps {
			if p.lost == "" && p.rejoined == 0 && !r.begun(p, k) {
				return false
			}
		}
	}
	return true
}

// probedIs takes a node's results of a step's probes.
func (r *run) probedIs(p *placement, ev launcher.Event) {
	if ev.Step < 0 || ev.Step >= len(r.steps) {
		return
	}
	now := probed{text: ev.Text, last: ev.Last, moved: ev.Moved, passed: ev.Text == ""}
	if old := p.probes[ev.Step]; old != now {
		r.moved = time.Now()
	}
	if p.probes == nil {
		p.probes = map[int]probed{}
	}
	p.probes[ev.Step] = now
}

// waitsItsTurn tells whether all ranks that a node has still to start belong to later
// steps.
func (r *run) waitsItsTurn(p *placement) bool {
	for k := range min(r.present()+1, len(r.steps)) {
		if !r.begun(p, k) {
			return false
		}
	}
	return r.stepped()
}

// sayWaits reports what the current step waits for, when that changes and from time to time.
func (r *run) sayWaits(now time.Time) {
	k := r.present()
	if !r.stepped() || !r.ordered || k == len(r.steps) {
		return
	}
	what := r.waitedFor(k)
	if now.Before(r.sayAt(now, what)) {
		r.unsaid = r.saidWhat != what
		return
	}
	r.unsaid = false
	r.saidWhat, r.saidAt = what, now
	text := fmt.Sprintf("stage %s: %s", r.steps[k].Name, what)
	if age := now.Sub(r.since).Round(time.Second); age > 0 {
		text += ", " + age.String()
	}
	r.waits(text + r.progress(k))
}

// progressLine is how a program tells how far it is: Loading safetensors checkpoint shards:  40% Completed.
var progressLine = plain.Pattern(`(?m)^.*\d ?%.*$`)

const progressMost = 120 // bytes of such a line that are told

// progress is the last such line of the first machine that has one.
func (r *run) progress(k int) string {
	for _, p := range r.placements {
		if lines := progressLine().FindAllString(p.probes[k].last, -1); len(lines) > 0 && !p.probes[k].passed {
			return fmt.Sprintf("; %s: %s", p.Host, plain.Cut(strings.TrimSpace(lines[len(lines)-1]), progressMost))
		}
	}
	return ""
}

// sayAt is when that may be reported again.
func (r *run) sayAt(now time.Time, what string) time.Time {
	switch {
	case r.saidAt.IsZero():
		return now
	case what == r.saidWhat:
		return r.saidAt.Add(sayEvery)
	}
	return r.saidAt.Add(max(sayLeast, min(now.Sub(r.since)/20, sayEvery)))
}

// waitedFor says what keeps a step from being ready, and where.
func (r *run) waitedFor(k int) string {
	var late, words []string
	for _, p := range r.placements {
		switch probe, told := p.probes[k]; {
		case !r.begun(p, k) && !p.up:
			late = append(late, p.Host+" does not answer")
		case !r.begun(p, k):
			late = append(late, p.Host+" starts")
		case told && !probe.passed:
			words = append(words, probe.text+" ("+p.Host+")")
		case !told && r.steps[k].AskedOn(p.rank):
			text := "no report yet"
			if ready := r.steps[k].Ready; len(ready) > 0 { // the machine that probes may not be one that starts ranks
				text = ready[0].What + ": " + text
			}
			words = append(words, text+" ("+p.Host+")")
		}
	}
	return strings.Join(append(late, words...), "; ")
}

// stalledAt is when the patience with the current step ends; zero if there is none to wait for.
func (r *run) stalledAt() time.Time {
	k := r.present()
	if !r.stepped() || !r.ordered || !r.allKnown() || k == len(r.steps) || r.job.Restored != nil {
		return time.Time{}
	}
	for _, p := range r.placements { // a node that is away cannot report progress
		if !p.up && (!r.begun(p, k) || r.steps[k].AskedOn(p.rank)) {
			return time.Time{}
		}
	}
	patience := r.steps[k].Patience
	if patience == 0 {
		patience = launcher.DefaultPatience
	}
	return r.moved.Add(patience)
}

func (r *run) stalled(now time.Time) bool {
	at := r.stalledAt()
	return !at.IsZero() && !now.Before(at)
}

// whyStalled names the stage, the nodes, and the last report of each.
func (r *run) whyStalled() string {
	k := r.present()
	text := fmt.Sprintf("stage %s is not ready, and has made no progress for %s: %s", r.steps[k].Name,
		r.stalledAt().Sub(r.moved), r.waitedFor(k))
	for _, p := range r.placements {
		if probe := p.probes[k]; probe.last != "" {
			text += fmt.Sprintf("\n  its last lines on %s:\n    %s", p.Host,
				strings.ReplaceAll(probe.last, "\n", "\n    "))
		}
	}
	return text
}

// spared tells whether the job goes on without a rank: its stage allows that and was ready, and the rank is
// replaced, or no other attempt would bring it back. In an adopted run a rank counts as spared until all ledgers
// are there.
func (r *run) spared(p *placement, rank int) bool {
	if !r.stepped() || retried(r.job.Spec) && !r.replaces(p, rank) {
		return false
	}
	k, _ := r.job.Spec.StepOf(p.rank, rank-p.FirstRank)
	return k >= 0 && r.steps[k].Spares && (r.ready[k] || !r.fresh && !r.allKnown() || r.allBegun())
}

// sparedAll tells whether all ranks of a node are spared.
func (r *run) sparedAll(p *placement) bool {
	for rank := p.FirstRank; rank < p.FirstRank+p.Ranks; rank++ {
		if !r.spared(p, rank) {
			return false
		}
	}
	return true
}

// tellSpared reports, once, each loss that does not end the job.
func (r *run) tellSpared() {
	if !r.stepped() || r.verdict != nil || !r.allKnown() {
		return
	}
	for _, p := range r.placements {
		switch away := "away " + p.Host; {
		case p.up:
			delete(r.lost, away)
		case !r.lost[away] && p.phase != launcher.PhaseEnded && r.sparedAll(p):
			r.lost[away] = true
			r.tell(rendezvous.Progress{Step: rendezvous.StepStage, Host: p.Host,
				Text: fmt.Sprintf("%s%s does not answer", r.stageOf(p.FirstRank), p.Host) + r.withoutIt(p, -1)})
		}
		for _, e := range r.exitsOf(p) {
			key := fmt.Sprint("rank ", e.Rank, " ", p.rejoined, " ", p.ranks[e.Rank].Again)
			if !r.lost[key] && r.spared(p, e.Rank) && !e.Exit.ByUs {
				r.lost[key] = true
				r.tell(rendezvous.Progress{Step: rendezvous.StepStage, Host: p.Host, Text: r.blame(e) + r.withoutIt(p, e.Rank)})
			}
		}
		if p.lost != "" && !r.lost[p.lost] && r.sparedAll(p) {
			r.lost[p.lost] = true
			r.tell(rendezvous.Progress{Step: rendezvous.StepStage, Host: p.Host,
				Text: r.stageOf(p.FirstRank) + p.lost + r.withoutIt(p, -1)})
		}
		if why := fmt.Sprint("refused ", p.rejoined, " ", p.Host); p.refused != "" && p.rejoined > 0 && !r.lost[why] {
			r.lost[why] = true
			r.tell(rendezvous.Progress{Step: rendezvous.StepStage, Host: p.Host,
				Text: r.stageOf(p.FirstRank) + p.refusal() + "; the job goes on without it"})
		}
	}
}

// mainDone tells whether the main stage has completed; the other stages exist only for it.
func (r *run) mainDone() bool {
	if !r.stepped() || len(r.steps) < 2 || r.job.Spec.Service != nil {
		return false
	}
	k := slices.IndexFunc(r.steps, func(st launcher.Stage) bool { return st.Main })
	for _, p := range r.placements {
		for _, r := range r.ranksOf(p, k) {
			if st := p.ranks[r]; st == nil || st.State != launcher.RankEnded || st.Exit == nil || st.Exit.Failed() ||
				st.Exit.ByUs {
				return false
			}
		}
	}
	return true
}

// leftEarly finds a rank that exited with 0 while the main stage needs it.
func (r *run) leftEarly() *launcher.RankExit {
	if !r.stepped() {
		return nil
	}
	for _, p := range r.placements {
		for _, e := range r.exitsOf(p) {
			k, _ := r.job.Spec.StepOf(p.rank, e.Rank-p.FirstRank)
			if k >= 0 && !r.steps[k].Main && !e.Exit.Failed() && !e.Exit.ByUs && !r.spared(p, e.Rank) {
				return &e
			}
		}
	}
	return nil
}

// reverseWait bounds, added to the grace, how long nodes with earlier stages wait for the end of later ones.
const reverseWait = 2 * time.Second

// firstStep is the first step of which a node has ranks.
func (r *run) firstStep(p *placement) int {
	return slices.IndexFunc(r.steps, func(st launcher.Stage) bool { return st.On(p.rank) })
}

// endsLater tells whether a node's end has to wait: when a job has completed, what was started last ends first.
func (r *run) endsLater(p *placement, now time.Time) bool {
	if !r.stepped() || r.verdict.End != rendezvous.Completed || !now.Before(r.ended.Add(r.grace+reverseWait)) {
		return false
	}
	return r.find(func(o *placement) bool {
		return r.firstStep(o) > r.firstStep(p) && o.up && o.phase != launcher.PhaseEnded && o.stuck == ""
	}) != nil
}
