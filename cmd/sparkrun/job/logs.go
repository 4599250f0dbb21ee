package job

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/launcher"
)

type logsOptions struct {
	job        string
	follow     bool
	ranks      []int
	hosts      []string
	generation uint64
	tail       int
	since      string
	grep       string
	output     follow.OutputMode
	json       bool
	timestamps bool

	from  launcher.From  // from --tail and --since
	match *regexp.Regexp // from --grep
}

// NewLogsCmd makes `sparkrun logs`.
func NewLogsCmd(a *app.App) *cobra.Command {
	opts := &logsOptions{}
	cmd := &cobra.Command{
		Use:   "logs JOB",
		Short: "Show what a job's ranks wrote",
		Long: `Prints the output of a job's ranks from its beginning, each line under its rank,
what went to standard error on standard error. JOB is an id, the beginning of
one, or a name (then the job of that name that runs, else the latest).

The output lies on the machines that the ranks ran on, and comes straight from
them: from any machine of the cluster, whether or not there is a leader, and
after the job's end for as long as the agent keeps it (agent --keep-logs).
Reading it changes nothing, and reading slowly slows no rank. A machine that
does not answer is named, the others' output is shown, and the exit code is 1.
What a machine could not keep (a full disk, --max-output) is told in a line that
names machine, rank and size.

--output prefix, the default, is lines under their ranks; the beginning of a line
that has no end for a second is shown as it is. raw: the bytes as they are, best
with one --rank. json: an object a line, with job, rank, host, stream, time, offset,
and the line or, where it is no UTF-8, its base64. files=DIR: rank-N.out and
rank-N.err in DIR, which must hold none yet.

--since and --tail count on the machines: --since goes by their clocks, to a
second while the job is young and to 1/4096 of its age later, and begins with a
whole line. --tail counts the last lines of each rank, of both streams together
and before --grep; which stream's line was later is known as well as --since.`,
		Example: `  sparkrun logs k3x
  sparkrun logs -f train --tail 20
  sparkrun logs k3x --rank 0 --rank 4 --since 5m --grep 'loss|error'
  sparkrun logs k3x --node spark2 --generation 1
  sparkrun logs k3x --timestamps | sort -k 2
  sparkrun logs k3x --rank 0 --output raw > result.bin`,
		Args:              app.TakesJob,
		ValidArgsFunction: a.CompleteJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.job = args[0]
			if err := opts.settle(cmd.Flags().Changed("tail"), time.Now()); err != nil {
				return err
			}
			return app.Running(a, opts, runLogs)(cmd, args)
		},
	}
	fs := cmd.Flags()
	fs.BoolVarP(&opts.follow, "follow", "f", false, "go on until every rank of this attempt has ended")
	fs.Var(app.RankList{Ranks: &opts.ranks}, "rank", "only these ranks: 3, 0,4 or 0-3 (repeat for more)")
	fs.StringSliceVar(&opts.hosts, "node", nil, "only ranks on this machine (repeat for more)")
	fs.Uint64Var(&opts.generation, "generation", 0, "the attempt to show, as ps JOB lists them (default: the latest)")
	fs.IntVarP(&opts.tail, "tail", "n", 0, "only so many lines at the end of each rank's output")
	fs.StringVar(&opts.since, "since", "",
		"only what came since: so long ago (5m), or a time (15:04, 2006-01-02T15:04:05Z)")
	fs.StringVar(&opts.grep, "grep", "", "only lines that this regular expression (RE2) matches")
	fs.Var(&opts.output, "output", "how to show it (default: prefix)")
	fs.BoolVar(&opts.json, "json", false, "the same as --output json")
	fs.BoolVarP(&opts.timestamps, "timestamps", "t", false,
		"put before each line when its rank wrote it, by the machine's clock")
	app.CompleteFlag(cmd, "node", a.CompleteHosts)
	app.CompleteFlag(cmd, "output", app.OutputWords)
	return cmd
}

// settle parses the flags that are texts.
func (o *logsOptions) settle(tail bool, now time.Time) (err error) {
	if o.tail < 0 {
		return app.Usagef("--tail %d: want 0 or more", o.tail)
	}
	if tail {
		o.from.Lines = &o.tail
	}
	if o.since != "" {
		if o.from.Since, err = parseSince(o.since, now); err != nil {
			return app.Usagef("--since %s: %v", o.since, err)
		}
	}
	if err := o.output.Settle(&o.json); err != nil {
		return err
	}
	switch {
	case o.timestamps && o.json:
		return app.Usagef("--timestamps and --output json: its objects have the time already")
	case o.timestamps && o.output.Kind != "" && o.output.Kind != "prefix":
		return app.Usagef("--timestamps and --output %s: that passes bytes on as they are", o.output.Kind)
	case o.grep == "":
		return nil
	}
	if o.output.Kind == "raw" || o.output.Kind == "files" {
		return app.Usagef("--grep and --output %s: one looks at lines, the other passes bytes on", o.output.Kind)
	}
	if o.match, err = regexp.Compile(o.grep); err != nil {
		return app.Usagef("--grep: %s", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	return nil
}

// parseSince reads a duration before now, a time of day (today's or yesterday's), or a
// full time; without a zone it is local time.
func parseSince(text string, now time.Time) (time.Time, error) {
	if d, err := app.ParseSpan(text); err == nil {
		return now.Add(-d), nil
	}
	for _, layout := range []string{"15:04", "15:04:05"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			t = time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), 0, now.Location())
			if t.After(now) {
				t = t.AddDate(0, 0, -1)
			}
			return t, nil
		}
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02 15:04",
		"2006-01-02"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	return time.Time{}, errors.New("want a span such as 5m, or a time such as 15:04 or 2006-01-02T15:04:05Z")
}

func runLogs(ctx context.Context, a *app.App, o logsOptions) error {
	out, err := follow.OpenPrinter(a, o.output, o.json)
	if err != nil {
		return err
	}
	b := a.Dial()
	defer b.Close()
	out.Note, out.Grep, out.Times = a.Say, o.match, o.timestamps
	r := follow.OutputReader{
		Agent: b, Out: out, Job: o.job, Ranks: o.ranks, Hosts: o.hosts, From: o.from, Follow: o.follow,
		Generation: launcher.Generation(o.generation), Outage: app.Outage{Say: a.Say},
	}
	err = r.Run(ctx)
	if !errors.Is(err, follow.ErrOutput) {
		err = errors.Join(err, out.Flush())
	}
	if errors.Is(err, follow.ErrOutput) {
		f := follow.Follower{Say: a.Say}
		return app.Exits(f.OutputBroken(err, true), nil)
	}
	if away := out.Missing(); err == nil && len(away) > 0 {
		return fmt.Errorf("the output on %s is missing: no answer", strings.Join(away, " and "))
	}
	return err
}
