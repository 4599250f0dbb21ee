package wire

import (
	"fmt"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// JobEvent is something that has happened to a job's machines or their links since its ranks began.
type JobEvent struct {
	At   time.Time `json:"at"`
	Host string    `json:"host"`
	Text string    `json:"text"`
}

// sameClock is how old a machine's answer may be: beyond that its clock is another than ours.
const sameClock = 5 * time.Second

// JobEvents are what has happened, the oldest first. Of links those count by which the ranks meet.
func JobEvents(j rendezvous.JobStatus, nodes []NodeUsage, now time.Time) (all []JobEvent) {
	began := j.Planned
	if j.Started != nil {
		began = *j.Started
	}
	for _, p := range j.Plan.Nodes {
		say := func(at time.Time, format string, args ...any) {
			if at.After(began) {
				all = append(all, JobEvent{at, p.Host, fmt.Sprintf(format, args...)})
			}
		}
		if since, away := j.AwaySince[p.Host]; away {
			say(since, "%s stopped answering", p.Host)
		}
		i := slices.IndexFunc(nodes, func(u NodeUsage) bool { return u.ID == p.Node && u.Error == "" })
		if i < 0 {
			continue
		}
		u := nodes[i]
		skew := now.Sub(u.At)
		if u.At.IsZero() || skew.Abs() < sameClock {
			skew = 0
		}
		ours := func(at time.Time) time.Time { return at.Add(skew) }
		say(ours(u.Began), "%s's agent was restarted", p.Host)
		var down []envgen.LinkChange // the ports without a link, each by its last change
		slots := slotsOf(p.Entry)
		for _, slot := range slots {
			lost, without := 0, time.Duration(0)
			var last *envgen.LinkChange
			for _, c := range u.Links {
				switch {
				case c.Slot != slot:
				case c.Up == nil:
					say(ours(c.At), "%s of %s %s", c.Port, p.Host, c.Text)
				default:
					if !*c.Up && ours(c.At).After(began) {
						lost++
					} else if *c.Up && lost > 0 && !*last.Up {
						without += c.At.Sub(last.At)
					}
					last = &c
				}
			}
			switch {
			case last == nil:
			case !*last.Up:
				down = append(down, *last)
			case lost > 0:
				times := ""
				if lost > 1 {
					times = fmt.Sprintf(", lost %d times", lost)
				}
				say(ours(last.At), "%s of %s has a link again (%s without%s)", last.Port, p.Host, launcher.Age(without), times)
			}
		}
		if len(down) > 0 && len(down) == len(slots) {
			latest := slices.MaxFunc(down, func(a, b envgen.LinkChange) int { return a.At.Compare(b.At) })
			say(ours(latest.At), "fabric of %s lost", p.Host)
			continue
		}
		for _, c := range down {
			say(ours(c.At), "%s of %s %s", c.Port, p.Host, c.Text)
		}
	}
	slices.SortStableFunc(all, func(a, b JobEvent) int { return a.At.Compare(b.At) })
	return all
}

// slotsOf are the ports by which a job meets at a node.
func slotsOf(e envgen.Entry) (slots []string) {
	for _, path := range e.Paths {
		if !slices.Contains(slots, path.Slot) {
			slots = append(slots, path.Slot)
		}
	}
	return slots
}
