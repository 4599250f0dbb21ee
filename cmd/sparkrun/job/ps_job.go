package job

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/figures"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// figuresWithin bounds the wait for what the ranks use, beside which all else is shown: the agent gives up on a machine
// that does not answer after 3 s.
const figuresWithin = 3500 * time.Millisecond

// rankUsed is what a rank uses, and where.
type rankUsed struct {
	Host string `json:"host"`
	usage.Rank
}

// psJob tells everything about one job.
func psJob(ctx context.Context, a *app.App, b *wire.Client, res wire.JobsResponse, o psOptions) (follow.View, error) {
	j, err := pick(res, o.job)
	if err != nil {
		return follow.View{}, err
	}
	var used wire.UsageResponse
	if j.Outcome == nil {
		soon, cancel := context.WithTimeout(ctx, figuresWithin)
		defer cancel()
		used, _ = wire.Usage.Call(soon, b, wire.Empty{}) //nolint:errcheck // all else is shown without it
	}
	now := time.Now()
	happened := wire.JobEvents(j, used.Nodes, now)
	v := follow.View{Key: Key(res.Line(j))}
	for _, e := range happened {
		v.Key += "\n" + e.Text
	}
	if o.json {
		ranks := []rankUsed{}
		for _, n := range used.Nodes {
			for _, r := range n.Ranks {
				if r.Job == j.Spec.ID && r.Generation == j.Plan.Generation {
					ranks = append(ranks, rankUsed{n.Host, r})
				}
			}
		}
		v.Text, err = a.ObjectText(struct {
			wire.JobLine
			Usage  []rankUsed      `json:"usage"`
			Events []wire.JobEvent `json:"events"`
		}{res.Line(j), ranks, append([]wire.JobEvent{}, happened...)})
		return v, err
	}
	v.Text = strings.Join(append(describe(j, now), follow.LastOfLost(ctx, b, j)...), "\n") + "\n"
	if rows := rankRows(j, used.Nodes); len(rows) > 1 {
		v.Text += app.TableText(rows)
	}
	v.Text += plain.Text(eventsText(happened, now))
	return v, nil
}

// someRanks are shown of a job; --json has all.
const someRanks = 64

// rankRows are what each rank uses, and what the machine's GPU and fabric do beside it; none: nothing is told.
func rankRows(j rendezvous.JobStatus, nodes []wire.NodeUsage) [][]string {
	rows := [][]string{slices.Concat([]string{"RANK", "HOST"}, figures.RankHeads,
		[]string{"GPU", "RDMA GB/S", "ETHERNET GB/S", "STATE"})}
	told := false
	for _, p := range j.Plan.Nodes {
		var m wire.NodeUsage
		for _, n := range nodes {
			if n.ID == p.Node && n.Error == "" {
				m, told = n, true
			}
		}
		rdma, ether := figures.Ports(m.Ports)
		for rank := p.FirstRank; rank < p.FirstRank+p.Ranks && len(rows) <= someRanks; rank++ {
			r := figures.Of(nodes, j.Job, rank)
			state := figures.RankState(r)
			if slices.Contains(j.Away, p.Host) {
				state = "away"
			}
			rows = append(rows, slices.Concat([]string{strconv.Itoa(rank), p.Host}, figures.Rank(r),
				[]string{figures.GPU(m.GPUs), rdma, ether, state}))
		}
	}
	if !told {
		return nil
	}
	return rows
}

// pick finds the job that a text means, by the record's rules.
func pick(res wire.JobsResponse, text string) (rendezvous.JobStatus, error) {
	plain := make([]rendezvous.Job, len(res.Jobs))
	for i, j := range res.Jobs {
		plain[i] = j.Job
	}
	i, err := rendezvous.FindJob(plain, res.User, text)
	if err != nil {
		return rendezvous.JobStatus{}, err
	}
	return res.Jobs[i], nil
}

// describe gives the lines for one job.
func describe(j rendezvous.JobStatus, now time.Time) []string {
	l := wire.JobsResponse{}.Line(j)
	head := fmt.Sprintf("job %s", j.Spec.ID)
	if j.Spec.Name != "" {
		head += fmt.Sprintf(" (%s)", j.Spec.Name)
	}
	head += fmt.Sprintf(": %s of %s, %s", j.Spec.Workload, cmp.Or(j.Spec.User, "?"), l.State.Text())
	if l.ExitCode != nil {
		head += fmt.Sprintf(", exit code %d", *l.ExitCode)
	}
	out := []string{head}
	if line := j.CommandLine(); line != "" {
		out = append(out, "  $ "+line)
	}
	if image := imageOf(j.Spec); image != "" {
		out = append(out, "  in containers of "+image)
	}
	for i, p := range j.Plan.Nodes {
		line := fmt.Sprintf("  %s: %s", p.Host, app.RankSpan(p.FirstRank, p.Ranks))
		if j.Spec.Stepped() && j.Plan.Stage == "" {
			line = fmt.Sprintf("  %s: %s", p.Host, stagesOn(j.Spec, i, p.FirstRank))
		}
		if since, known := j.AwaySince[p.Host]; known {
			line += ", has not answered for " + launcher.Age(now.Sub(since))
		} else if slices.Contains(j.Away, p.Host) {
			line += ", does not answer"
		}
		if slices.Contains(j.FabricOnly, p.Host) {
			line += ", reached over the fabric only"
		}
		if slices.Contains(j.FabricLost, p.Host) {
			line += ", has lost the fabric"
		}
		out = append(out, line)
	}
	out = append(out, times(j, now))
	out = append(out, describeService(j, now)...)
	for _, a := range j.Attempts {
		if a.Cause != "" {
			when := "ended " + ago(a.Ended, now)
			if a.Ended.IsZero() { // the other half of a cluster that was split ran it
				when = "was given up"
			}
			out = append(out, fmt.Sprintf("  generation %d on %s %s: %s",
				a.Generation, app.Hosts(a.Hosts), when, a.Cause))
		}
	}
	if text := j.AttemptText(); text != "" && j.Outcome == nil {
		out = append(out, "  "+text)
	}
	if lease := j.Spec.Lease(); lease > 0 && j.Outcome == nil {
		out = append(out, fmt.Sprintf("  --on-partition end: ranks that hear no leader for %s are ended", lease))
	}
	if len(j.Suspended) > 0 && j.Outcome == nil {
		out = append(out, fmt.Sprintf("  suspended on %s, as by Ctrl-Z: `fg`, or kill -CONT, where its launch or "+
			"attach was stopped wakes the ranks; `sparkrun stop` ends them",
			app.Hosts(j.Suspended)))
	}
	if len(j.Done) > 0 && j.Outcome == nil && len(j.Done) < j.Plan.World {
		out = append(out, fmt.Sprintf("  %s ended with 0, while the others go on", follow.RankNames(j.Spec, j.Done)))
	}
	if j.Waits != "" {
		out = append(out, "  "+j.Waits)
	}
	if o := j.Outcome; o != nil && o.End != rendezvous.Completed {
		out = append(out, follow.Sentence(*o, j.Spec, j.Plan.World))
		out = append(out, follow.Why(*o, j.Spec)...)
	}
	for i := range out {
		out[i] = plain.Text(out[i])
	}
	return out
}

// stagesOn lists the ranks of a node by stage.
func stagesOn(spec launcher.Spec, node, first int) string {
	var parts []string
	for _, st := range spec.Steps() {
		if st.On(node) {
			parts = append(parts, fmt.Sprintf("%s (%s)", app.RankSpan(first, st.RanksPerNode), st.Name))
			first += st.RanksPerNode
		}
	}
	return strings.Join(parts, ", ")
}

// someEvents are shown: the newest.
const someEvents = 12

func eventsText(all []wire.JobEvent, now time.Time) string {
	var b strings.Builder
	if len(all) > 0 {
		b.WriteString("since it began:\n")
	}
	if more := len(all) - someEvents; more > 0 {
		fmt.Fprintf(&b, "  ... and %d earlier changes\n", more)
		all = all[more:]
	}
	for _, e := range all {
		fmt.Fprintf(&b, "  %s %s ago\n", e.Text, launcher.Age(now.Sub(e.At)))
	}
	return b.String()
}

// imageOf is the image of a job's ranks; empty: they run on the host.
func imageOf(spec launcher.Spec) string {
	if st := spec.MainStage(); st != nil && st.Container != nil {
		return st.Container.Image
	}
	return ""
}

func times(j rendezvous.JobStatus, now time.Time) string {
	text := "  placed " + ago(j.Planned, now)
	switch {
	case j.Outcome != nil && j.Started != nil:
		text += ", ran for " + launcher.Age(j.Outcome.At.Sub(*j.Started))
	case j.Started != nil:
		text += ", runs for " + launcher.Age(now.Sub(*j.Started))
	}
	if j.Outcome != nil {
		text += ", ended " + ago(j.Outcome.At, now)
	}
	return text
}

// ago is a time as an age and as a time in now's zone.
func ago(t, now time.Time) string {
	return launcher.Age(now.Sub(t)) + " ago (" + t.In(now.Location()).Format(time.DateTime) + ")"
}
