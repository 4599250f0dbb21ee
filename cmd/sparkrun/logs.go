package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
)

type logsOptions struct {
	job    string
	follow bool
	ranks  []int
	json   bool
}

func newLogsCmd(complete completion, run func(context.Context, logsOptions) error) *cobra.Command {
	opts := &logsOptions{}
	cmd := &cobra.Command{
		Use:   "logs JOB",
		Short: "Show what a job's ranks wrote",
		Long: `Prints the output of a job's ranks from its beginning, each line under its rank,
what went to standard error on standard error. JOB is an id, the beginning of
one, or a name (then the latest job of that name).

The output lies on the machines that the ranks ran on, and comes straight from
them: from any machine of the cluster, whether or not there is a leader. Reading
it changes nothing, and reading slowly slows no rank.`,
		Example: `  sparkrun logs k3x
  sparkrun logs -f train
  sparkrun logs k3x --rank 0 --rank 4`,
		Args:              takes(1, "the job"),
		ValidArgsFunction: complete.jobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.job = args[0]
			return running(opts, run)(cmd, args)
		},
	}
	cmd.Flags().BoolVarP(&opts.follow, "follow", "f", false, "go on until every rank has ended")
	cmd.Flags().IntSliceVar(&opts.ranks, "rank", nil, "only this rank (repeat for more)")
	cmd.Flags().BoolVar(&opts.json, "json", false, "print one JSON object a line")
	return cmd
}

func (a *app) logs(ctx context.Context, o logsOptions) error {
	for _, r := range o.ranks {
		if r < 0 {
			return usagef("--rank %d: want 0 or more", r)
		}
	}
	b := a.dial()
	defer b.close()
	out := a.printer(o.json)
	out.note = a.say
	r := outputReader{gangs: b, out: out, job: o.job, ranks: o.ranks, follow: o.follow, outage: outage{say: a.say}}
	err := r.run(ctx)
	if !errors.Is(err, errOutput) {
		err = errors.Join(err, out.flush())
	}
	if errors.Is(err, errOutput) {
		f := follower{say: a.say}
		return exits(f.outputBroken(err, true), nil)
	}
	return err
}

func (a *app) printer(json bool) *printer {
	p := newPrinter(a.out, a.err)
	p.json = json
	p.outColour, p.errColour = a.colour(a.outTTY), a.colour(a.errTTY)
	return p
}
