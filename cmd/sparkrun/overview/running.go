package overview

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/figures"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/job"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// jobRows are the jobs and services that have not ended, and what their ranks use together.
func (s *seen) jobRows() [][]string {
	lines := s.lines()
	rows := [][]string{append([]string{"JOB", "NODES"}, figures.RankHeads...)}
	serving := slices.ContainsFunc(lines, func(l wire.JobLine) bool { return l.Service != nil })
	if serving {
		rows[0] = append(rows[0], "TOKENS/S")
	}
	rows[0] = append(rows[0], "STATE")
	for i, l := range lines {
		row := []string{cmp.Or(l.Name, string(l.JobID)), cmp.Or(app.Hosts(l.Hosts), "-")}
		row = append(row, figures.Rank(figures.Sum(s.usage, s.jobs.Jobs[i].Job))...)
		if serving {
			row = append(row, job.RateText(l.Service))
		}
		rows = append(rows, append(row, job.StateText(l, s.now)))
	}
	return rows
}

func (s *seen) lines() (all []wire.JobLine) {
	for _, j := range s.jobs.Jobs {
		all = append(all, s.jobs.Line(j))
	}
	return all
}

// rankRows are the ranks of all of them, and what each uses.
func (s *seen) rankRows() [][]string {
	rows := [][]string{slices.Concat([]string{"JOB", "RANK", "HOST"}, figures.RankHeads, []string{"STATE"})}
	for _, j := range s.jobs.Jobs {
		for _, p := range j.Plan.Nodes {
			for rank := p.FirstRank; rank < p.FirstRank+p.Ranks; rank++ {
				r := figures.Of(s.usage, j.Job, rank)
				row := []string{cmp.Or(j.Spec.Name, string(j.Spec.ID)), strconv.Itoa(rank), p.Host}
				rows = append(rows, append(append(row, figures.Rank(r)...), figures.RankState(r)))
			}
		}
	}
	return rows
}
