package follow

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// lostPatience is how long the lost machine may take to send what its ranks wrote last.
const lostPatience = 5 * time.Second

// lostWith finds the machine whose loss ended a job. None of its ranks could report an
// end, so no rank is the cause; the leader's sentence begins with the machine's name.
func lostWith(j rendezvous.JobStatus) (rendezvous.Place, bool) {
	if o := j.Outcome; o != nil && o.End == rendezvous.Failed && o.Root == nil {
		for _, p := range j.Plan.Nodes {
			if strings.HasPrefix(o.Cause, p.Host+" ") && p.Ranks > 0 {
				return p, true
			}
		}
	}
	return rendezvous.Place{}, false
}

// LastOfLost gives the last lines of the ranks that were lost with their machine, as far
// as they reached its disk.
func LastOfLost(ctx context.Context, b *wire.Client, j rendezvous.JobStatus) []string {
	p, lost := lostWith(j)
	if !lost {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lostPatience)
	defer cancel()
	var text bytes.Buffer
	out := NewPrinter(&text, &text)
	out.World(j.Plan.World)
	lines := min(launcher.MaxLastLines, max(1, whyLines/p.Ranks))
	r := OutputReader{
		Agent: b, Out: out, Job: string(j.Spec.ID), Hosts: []string{p.Host}, Generation: j.Plan.Generation,
		From: launcher.From{Lines: &lines}, Outage: app.Outage{Say: func(string) {}},
	}
	err := r.Run(ctx)
	if err == nil {
		err = out.Flush()
	}
	ranks := app.RankSpan(p.FirstRank, p.Ranks)
	switch {
	case err != nil || len(out.Missing()) > 0:
		return []string{fmt.Sprintf("the last lines of %s are on %s, which does not answer", ranks, p.Host)}
	case text.Len() == 0:
		return []string{fmt.Sprintf("%s has no output of %s", p.Host, ranks)}
	}
	return append([]string{fmt.Sprintf("the last lines of %s, as %s has them:", ranks, p.Host)},
		indented(strings.TrimSuffix(text.String(), "\n"))...)
}
