// Package job decides what a person types about jobs: workloads that are programs, and
// the commands ps, logs, stop, exec, attach and service.
//
// It must not follow a job itself: cmd/sparkrun/follow does.
package job

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type psOptions struct {
	all, json, quiet, watch bool
	job                     string // empty: a list
}

const psHelp = `Lists the jobs of the whole cluster that have not ended, whoever launched them
and wherever they run; with --all also those that have. With JOB (an id, the
beginning of one, or a name) it tells what that job runs, where its ranks are, what
each uses, and what has happened to its machines and links since it began; when it has
failed, why: the rank that failed first, its trace or last lines, and who failed after
it; where a machine was lost, the last lines that its disk has of its ranks, once it is
back. --watch shows it until q or Ctrl-C; without a terminal it prints it at each
change. It changes nothing.

"fabric of spark2 lost" is said of a job that goes on while a port has no link by which
its ranks meet. GPU and fabric are the rank's machine's, in and out, with all that runs
there; MEMORY is what its processes hold, GPU MEM what the driver says of them.

"unknown" is a job of which only its plan is known: without a leader, or under a new one
that has not heard all its machines. It may be running. Without a leader it says how old
all of this is.

--json prints an array with one object a job:
  job_id, name, workload, user
  state      planned (how far it has come is not known), waiting, starting, running,
             ending, restarting (its next attempt follows by itself); then completed,
             failed, stopped or rejected (no rank was started)
  exit_code  null until the job has ended
  cause      why it ended, null when completed or running
  hosts      by node rank;  away: those of them that do not answer
  ranks      in all
  stage      before or after, while that command runs; else null
  attempt, attempts  which attempt of the job this is, from 1, of how many at most
  generation its number among all that was run for the job, from 1: attempts, and stages
             before and after them; it only grows
  line       its place, from 1, among those that wait for their machines; else 0
  waits      what it waits for; null when it does not
  on_partition  continue, or end: as launch --on-partition has it
  image      that its ranks run in; null: they run on the machine itself
  planned, started, ended   RFC 3339; null while that has not come
  away_since since when each of away does not answer
  fabric_only those of hosts that the leader reaches over the fabric alone: who asks
             there on the management network is not answered
  fabric_lost those of hosts of which a port has no link now by which the ranks meet
  again_at   when its next attempt is due, while it is restarting; else null
  service    null but for a service: url (null while not known), model, state (the job's,
             or ready, unhealthy, wedged), since, text (what is wrong), tokens_per_s and
             running (requests; null while not known), autostart, restart (as launch has
             it), failures (that --restart counts now), on_wedge, metrics (URL, or null)
  usage, events  of ps JOB alone: what each rank uses, and what has happened
  suspended  hosts whose ranks a signal has stopped, as Ctrl-Z does that launch passes on
  no_leader  true: this machine's own knowledge, from as_of, when it last heard a leader
             (null: not since its agent was started)`

// NewPsCmd makes `sparkrun ps`.
func NewPsCmd(a *app.App) *cobra.Command {
	opts := &psOptions{}
	cmd := &cobra.Command{
		Use:   "ps [JOB]",
		Short: "List jobs, or tell all about one",
		Long:  psHelp,
		Example: `  sparkrun ps
  sparkrun ps --all
  sparkrun ps train --watch
  sparkrun ps -q
  sparkrun ps --all --json | jq '.[] | select(.exit_code > 0) | .job_id'`,
		ValidArgsFunction: a.CompleteJobs,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return app.Usagef("unexpected argument %q", args[1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				opts.job = args[0]
			}
			if opts.quiet && (opts.json || opts.job != "") {
				return app.Usagef("--quiet lists the ids of jobs: leave out --json and JOB")
			}
			if opts.quiet && opts.watch {
				return app.Usagef("--quiet and --watch: give one of them")
			}
			return app.Running(a, opts, runPs)(cmd, args)
		},
	}
	cmd.Flags().BoolVarP(&opts.all, "all", "a", false, "also jobs that have ended")
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	cmd.Flags().BoolVarP(&opts.watch, "watch", "w", false, "go on until q or Ctrl-C")
	cmd.Flags().BoolVarP(&opts.quiet, "quiet", "q", false, "ids alone, one a line")
	return cmd
}

func runPs(ctx context.Context, a *app.App, o psOptions) error {
	b := a.Dial()
	defer b.Close()
	if o.watch {
		return follow.Watch(ctx, a, nil, func(ctx context.Context) (follow.View, error) {
			v, notes, err := ps(ctx, a, b, o)
			if !o.json {
				v.Text += strings.Join(append(notes, ""), "\n")
			}
			return v, err
		})
	}
	v, notes, err := ps(ctx, a, b, o)
	if err == nil {
		_, err = io.WriteString(a.Out, v.Text)
	}
	for _, note := range notes {
		a.Say(note)
	}
	return err
}

// ps is what is shown at one moment.
func ps(ctx context.Context, a *app.App, b *wire.Client, o psOptions) (v follow.View, notes []string, err error) {
	res, err := wire.Jobs.Call(ctx, b, wire.JobsRequest{Open: !o.all && o.job == ""})
	if err != nil {
		return v, nil, err
	}
	if o.job != "" {
		v, err = psJob(ctx, a, b, res, o)
	} else {
		v, err = psAll(a, res, o)
	}
	if res.Problem != "" {
		notes = []string{res.Problem, staleText(res.Heard, time.Now())}
	}
	return v, notes, err
}

func psAll(a *app.App, res wire.JobsResponse, o psOptions) (v follow.View, err error) {
	lines := []wire.JobLine{}
	for _, j := range res.Jobs {
		lines = append(lines, res.Line(j))
		v.Key += Key(res.Line(j))
	}
	switch {
	case o.json:
		v.Text, err = a.ObjectText(lines)
	case o.quiet:
		for _, l := range lines {
			v.Text += string(l.JobID) + "\n"
		}
	default:
		width := 0
		if o.watch && follow.OnScreen(a) { // which cuts what is longer; elsewhere it wraps
			width = a.Columns()
		}
		rows := app.Fit(jobRows(lines, time.Now()), width, []string{"WORKLOAD", "AGE", "NODES", "TOKENS/S", "EXIT"})
		v.Text = app.TableText(rows)
	}
	return v, err
}

// Key is what counts as a change of a job for who watches: no figure, and no age.
func Key(l wire.JobLine) string {
	service := ""
	if l.Service != nil {
		service = l.Service.State
	}
	return fmt.Sprintln(l.JobID, l.State, service, l.Hosts, l.Away, l.FabricOnly, l.FabricLost, l.Suspended, l.Generation,
		l.Line)
}

// staleText says how old an answer is that comes from no leader.
func staleText(heard, now time.Time) string {
	old := "is of before this machine's agent was started"
	if !heard.IsZero() {
		old = "is " + launcher.Age(now.Sub(heard)) + " old"
	}
	return "what is shown " + old + ", but for what runs on this machine itself; \"unknown\" is how far a job has " +
		"come elsewhere"
}

func jobRows(lines []wire.JobLine, now time.Time) [][]string {
	rows := [][]string{{"JOB", "NAME", "WORKLOAD", "NODES", "STATE", "AGE", "EXIT"}}
	serving := slices.ContainsFunc(lines, func(l wire.JobLine) bool { return l.Service != nil && l.ExitCode == nil })
	if serving {
		rows[0] = append(rows[0], "URL", "TOKENS/S")
	}
	for _, l := range lines {
		exit := "-"
		if l.ExitCode != nil {
			exit = strconv.Itoa(*l.ExitCode)
		}
		workload := l.Workload
		if l.Image != nil {
			workload += " (" + *l.Image + ")"
		}
		row := []string{string(l.JobID), cmp.Or(l.Name, "-"), workload, cmp.Or(app.Hosts(l.Hosts), "-"), StateText(l, now),
			launcher.Age(now.Sub(l.Planned)), exit}
		if serving {
			row = append(row, urlText(l.Service), RateText(l.Service))
		}
		rows = append(rows, row)
	}
	return rows
}

// StateText is the state of a job, or of a service, with what else one has to know of it.
func StateText(l wire.JobLine, now time.Time) string {
	state := l.State.Text()
	if l.Service != nil && l.ExitCode == nil {
		state = rendezvous.State(l.Service.State).Text()
	}
	state += againText(l.AgainAt, now)
	if len(l.Suspended) > 0 {
		state += " (suspended)"
	}
	if l.Line > 0 {
		state += fmt.Sprintf(" (number %d in the queue)", l.Line)
	}
	if l.Stage != nil {
		state += " (--" + *l.Stage + ")"
	}
	if l.Attempts > 1 {
		state += fmt.Sprintf(" (attempt %d of %d)", l.Attempt, l.Attempts)
	}
	return state + whereText(l, now)
}

// againText says when a job starts again.
func againText(at *time.Time, now time.Time) string {
	if at == nil || !at.After(now) {
		return ""
	}
	return " in " + launcher.Age(at.Sub(now).Round(time.Second))
}

// whereText says which of a job's machines do not answer, do not answer on management, or have lost the fabric.
func whereText(l wire.JobLine, now time.Time) (text string) {
	if len(l.Away) > 0 {
		text = " (" + app.Hosts(l.Away) + " away" + awayText(l, now) + ")"
	}
	if len(l.FabricOnly) > 0 {
		text += " (" + app.Hosts(l.FabricOnly) + " by fabric only)"
	}
	if len(l.FabricLost) > 0 {
		text += " (fabric of " + app.Hosts(l.FabricLost) + " lost)"
	}
	return text
}

// awayText says how long the first of a job's hosts has been away, where that is known.
func awayText(l wire.JobLine, now time.Time) string {
	var longest time.Duration
	for _, since := range l.AwaySince {
		longest = max(longest, now.Sub(since))
	}
	if len(l.AwaySince) == 0 {
		return ""
	}
	return " " + launcher.Age(longest)
}
