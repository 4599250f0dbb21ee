package overview

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node/checkup"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/figures"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/job"
	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// text is the whole picture. Where width and height are not 0 it is cut to them.
func (s *seen) text(o options, width, height int) string {
	var b strings.Builder
	leader := "leader " + s.status.Leader
	if s.status.Leader == "" {
		leader = "no leader"
		if !s.status.Heard.IsZero() {
			leader += " for " + launcher.Age(s.now.Sub(s.status.Heard))
		}
	}
	if s.status.Epoch > 1 { // there was a take-over
		leader += fmt.Sprintf(", epoch %d", s.status.Epoch)
	}
	fmt.Fprintf(&b, "cluster %s, %s", s.status.Cluster, leader)
	if o.watch {
		b.WriteString(", " + s.now.Format(time.TimeOnly))
	}
	b.WriteString("\n")
	running := s.jobRows()
	if o.ranks {
		running = s.rankRows()
	}
	machines := s.status.Nodes
	spare := 0 // lines for what runs
	if height > 0 {
		const around = 4 // the first line, two headings, an empty line
		high := max(height-around, 2)
		spare = max(high-len(machines), high/2)
		if hidden := len(machines) - (high - min(spare, len(running))); hidden > 0 {
			machines = worstFirst(machines, s)[:max(len(machines)-hidden-1, 1)] // and a line that says how many more
		}
	} else if !o.ranks {
		spare = someJobs
	}
	b.WriteString(app.TableText(app.Fit(s.machineRows(machines, o.wide), width, leftOut)))
	if left := len(s.status.Nodes) - len(machines); left > 0 {
		fmt.Fprintf(&b, "... and %d more\n", left)
	}
	if len(running) > 1 {
		left := 0
		if spare > 0 && len(running)-1 > spare {
			left = len(running) - spare
			running = running[:spare]
		}
		b.WriteString("\n" + app.TableText(app.Fit(running, width, leftOut)))
		if left > 0 {
			fmt.Fprintf(&b, "... and %d more: sparkrun ps\n", left)
		}
	}
	return b.String()
}

// someJobs are shown where nothing says how many lines there is room for; ps has all.
const someJobs = 12

// worstFirst moves those to the top that something is wrong with: there is no room for all.
func worstFirst(nodes []wire.NodeStatus, s *seen) []wire.NodeStatus {
	order := func(n wire.NodeStatus) int {
		switch {
		case n.State != "ready" || n.FabricOnly:
			return 0
		case s.tallies[n.Host].Errors > 0:
			return 1
		}
		return 2
	}
	nodes = slices.Clone(nodes)
	slices.SortStableFunc(nodes, func(a, b wire.NodeStatus) int { return order(a) - order(b) })
	return nodes
}

// fabricWarnings are those that cables and addresses show by themselves: doctor asks machines, and may have more.
const fabricWarnings = "FABRIC WARNINGS"

// leftOut are the columns that a narrow terminal has no room for, the first one first.
var leftOut = []string{"ADDRESS", fabricWarnings, "LOAD", "SWAP", "MHZ", "ROLE", "W", "ETHERNET GB/S", "DISK FREE",
	"CPU", "RDMA GB/S", "NODES", "TOKENS/S", "GPU MEM", "MEMORY", "GPU"}

func (s *seen) machineRows(nodes []wire.NodeStatus, wide bool) [][]string {
	rows := [][]string{{"HOST", "ADDRESS", "STATE", "ROLE", "GPU", "MEMORY"}}
	if wide {
		rows[0] = append(rows[0], figures.WideHeads...)
	}
	rows[0] = append(rows[0], "FABRIC")
	if wide {
		rows[0] = append(rows[0], fabricWarnings)
	}
	for _, n := range nodes {
		addr := "-"
		if n.Addr.IsValid() {
			addr = n.Addr.String()
		}
		u := s.of(n.ID)
		if u == nil {
			u = &wire.NodeUsage{}
		}
		row := []string{n.Host, addr, s.stateOf(n), roleOf(n), figures.GPU(u.GPUs), figures.Memory(u.Memory)}
		if wide {
			row = append(row, figures.Wide(u)...)
		}
		row = append(row, checkup.Fabric(n, s.tallies[n.Host]))
		if wide {
			warnings := "-"
			if t := s.tallies[n.Host]; t.Warnings > 0 {
				warnings = strconv.Itoa(t.Warnings)
			}
			row = append(row, warnings)
		}
		rows = append(rows, row)
	}
	return rows
}

func (s *seen) stateOf(n wire.NodeStatus) string {
	state := n.State
	switch {
	case n.State == "away" && !n.Since.IsZero():
		state += " " + launcher.Age(s.now.Sub(n.Since))
	case n.State == "unknown" && n.Host == s.status.Self:
		state = "answers" // this machine: its agent has just answered
	}
	if n.FabricOnly {
		state += ", fabric only"
	}
	return state
}

// key is what counts as a change of the picture: no figure, no age.
func (s *seen) key() string {
	var b strings.Builder
	fmt.Fprintln(&b, s.status.Leader, s.status.Epoch, s.status.Problem)
	for _, n := range s.status.Nodes {
		fmt.Fprintln(&b, n.Host, n.State, n.Why, n.FabricOnly, n.NoVote, roleOf(n), checkup.Fabric(n, s.tallies[n.Host]))
	}
	for _, j := range s.jobs.Jobs {
		b.WriteString(job.Key(s.jobs.Line(j)))
	}
	return b.String()
}

// notes say below the picture what is wrong, and what to look at.
func (s *seen) notes() (notes []string) {
	say := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	for _, n := range s.status.Nodes {
		if n.Why != "" {
			say("%s is %s: %s", n.Host, n.State, n.Why)
		}
	}
	for _, n := range s.status.Nodes {
		if n.NoVote != "" {
			say("%s takes no part in the vote: %s", n.Host, n.NoVote)
		}
	}
	for _, n := range s.status.Nodes {
		if u := s.of(n.ID); u != nil {
			if u.GPUSilent != "" {
				say("nvidia-smi on %s tells nothing: %s; see `sparkrun doctor`", n.Host, u.GPUSilent)
			}
			for _, g := range u.GPUs {
				if why := doctor.Slowed(g.Name, g.Throttle, g.Busy, g.MHz, g.MaxMHz); why != "" {
					say("%s's GPU is slowed down: %s; see `sparkrun doctor`", n.Host, why)
				}
			}
		}
	}
	if s.status.Problem != "" {
		say("%s", s.status.Problem)
	}
	known := checkup.Seen(s.status)
	for _, f := range known.FabricOnly() {
		say("%s", f.Text)
	}
	if known.Derive() == nil { // else doctor says why
		for _, text := range known.Fallbacks() {
			say("warning: %s", text)
		}
	}
	if t := s.tallies[""]; t.Errors > 0 {
		say("the cluster as a whole has %s: `sparkrun doctor`", app.Count(t.Errors, "error"))
	}
	return notes
}

// roleOf is a node's part in the vote. A witness only votes; that it gets no ranks is
// said where machines are counted.
func roleOf(n wire.NodeStatus) string {
	if !n.Witness {
		return cmp.Or(n.Role, "-")
	}
	return strings.TrimPrefix(n.Role+", witness", ", ")
}
