package job

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type stopOptions struct {
	jobs  []string
	grace *time.Duration // nil: each job's own
	kill  bool
	all   bool
}

// NewStopCmd makes `sparkrun stop`.
func NewStopCmd(a *app.App) *cobra.Command {
	opts := &stopOptions{}
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "stop JOB...|--all",
		Short: "End jobs",
		Long: `Ends all ranks of a job: TERM, then KILL after the grace that the job was launched
with, or the one given here. It waits until no process of the job is left on any
machine, and says so. Ctrl-C ends the waiting, not the stopping. A process that the
kernel keeps alive 10 s after KILL, for a file server that does not answer, is named;
stop then fails, and that machine is drained: it gets no jobs until the process is
gone.

JOB is an id, the beginning of one, or a name, one's own before another's. A job that
has ended already is no error. Of several, each is asked to end before any is waited
for; one that cannot be ended is named, keeps no other from it, and makes the exit code
1. --all means all jobs of one's own; another user's are root's to end, by their names.`,
		Example: `  sparkrun stop k3x
  sparkrun stop k3x train
  sparkrun stop train --grace 60s
  sparkrun stop k3x --kill
  sparkrun stop --all`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 && !opts.all:
				return app.Usagef("the job is missing: `sparkrun ps` lists them, --all means all of yours")
			case len(args) > 0 && opts.all:
				return app.Usagef("--all and %s: give one of them", args[0])
			}
			return nil
		},
		ValidArgsFunction: a.CompleteJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.jobs = args
			switch {
			case opts.kill && cmd.Flags().Changed("grace"):
				return app.Usagef("--kill and --grace: give one of them")
			case opts.kill:
				opts.grace = new(time.Duration)
			case cmd.Flags().Changed("grace"):
				opts.grace = &grace
			}
			return app.Running(a, opts, runStop)(cmd, args)
		},
	}
	cmd.Flags().Var(app.Span{D: &grace}, "grace", "time between TERM and KILL (default: the job's own)")
	cmd.Flags().BoolVar(&opts.all, "all", false, "all jobs of one's own")
	cmd.Flags().BoolVar(&opts.kill, "kill", false, "kill at once")
	return cmd
}

func runStop(ctx context.Context, a *app.App, o stopOptions) error {
	b := a.Dial()
	defer b.Close()
	if o.all {
		res, err := wire.Jobs.Call(ctx, b, wire.JobsRequest{Open: true})
		if err != nil {
			return err
		}
		for _, j := range res.Jobs {
			if j.Outcome == nil && j.Spec.User == res.User {
				o.jobs = append(o.jobs, string(j.Spec.ID))
			}
		}
		if len(o.jobs) == 0 {
			_, err := fmt.Fprintf(a.Out, "no job of %s runs\n", res.User)
			return err
		}
	}
	var ends []func() error
	for _, job := range o.jobs {
		ends = append(ends, stopOne(ctx, a, b, wire.StopRequest{Job: job, Grace: o.grace}))
	}
	if len(ends) == 1 {
		return ends[0]()
	}
	code := 0
	for _, end := range ends {
		if err := end(); ctx.Err() != nil {
			return err
		} else if err != nil {
			a.Say(err.Error())
			code = app.ExitFailure
		}
	}
	return app.Exits(code, nil)
}

// stopOne requests a job's end, and returns the func that waits for it.
func stopOne(ctx context.Context, a *app.App, b *wire.Client, r wire.StopRequest) (wait func() error) {
	job, err := askToStop(ctx, b, r)
	return func() error {
		switch {
		case errors.Is(err, rendezvous.ErrJobEnded):
			fmt.Fprintf(a.Out, "job %s had ended already\n", r.Job)
			return nil
		case err != nil:
			return err
		case len(job.Strays) > 0:
			fmt.Fprintf(a.Out, "job %s is being ended on %s; the record does not know what runs there, and will "+
				"not tell its end\n", job.Job, strings.Join(job.Strays, ", "))
			return nil
		}
		r.Job = string(job.Job)
		return awaitEnd(ctx, a, b, r)
	}
}

// awaitEnd waits until nothing of a stopped job is left, and says so.
func awaitEnd(ctx context.Context, a *app.App, b *wire.Client, r wire.StopRequest) error {
	stuck := ""
	if a.ErrTTY {
		waits := time.AfterFunc(sayWaiting, func() { a.Say(waitsText(r)) })
		defer waits.Stop()
	}
	outcome, only, err := watchEnd(ctx, b, r, app.Outage{Say: a.Say}, func(text string) { stuck = text })
	if err != nil {
		if ctx.Err() != nil {
			a.Say(fmt.Sprintf("not waiting any longer; job %s is being ended", r.Job))
		}
		return err
	}
	a.SayAlone(only)
	how := ""
	if outcome.End != rendezvous.Stopped {
		how = fmt.Sprintf(" (%s, exit code %d)", outcome.End, outcome.ExitCode)
	}
	if stuck != "" {
		return fmt.Errorf("job %s has ended%s, but %s; its machine gets no jobs until it is gone", r.Job, how, stuck)
	}
	if doubts := outcome.Doubts(); doubts != "" {
		how += ", but " + doubts
	}
	fmt.Fprintf(a.Out, "job %s has ended%s\n", r.Job, how)
	return nil
}

// sayWaiting is after how long a person wants to know what is awaited.
const sayWaiting = time.Second

// waitsText says what a stop waits for.
func waitsText(r wire.StopRequest) string {
	grace := "the grace it was launched with"
	switch {
	case r.Grace == nil:
	case *r.Grace == 0:
		return fmt.Sprintf("the ranks of job %s are being killed; waiting until none is left", r.Job)
	default:
		grace = r.Grace.String()
	}
	return fmt.Sprintf("waiting until the ranks of job %[1]s have ended: KILL follows TERM after %[2]s (`sparkrun "+
		"stop --kill %[1]s`: at once)", r.Job, grace)
}

// askToStop repeats the request until a leader has answered; repeating does no harm.
func askToStop(ctx context.Context, g *wire.Client, r wire.StopRequest) (wire.StopResponse, error) {
	var again app.Pause
	var trouble app.Outage
	for first := true; ; first = false {
		res, err := wire.Stop.Call(ctx, g, r)
		if err == nil || !app.Passing(err) || ctx.Err() != nil || first && errors.Is(err, node.ErrNoAgent) {
			return res, err
		}
		trouble.Failed("")
		limit := app.Patience
		if errors.Is(err, wire.ErrNoLeader) {
			limit = follow.LeaderlessWait
		}
		if trouble.Lasted() >= limit {
			return res, err
		}
		if werr := again.Wait(ctx); werr != nil {
			return res, werr
		}
	}
}

// watchEnd waits for the end of a stopped job, through changes of agents and leaders. A
// leader that dies before it has recorded the request loses it, so the next one is asked
// again. stuck is called with what could not be killed; only is the only host that has
// the end recorded, empty where others have it.
func watchEnd(ctx context.Context, g *wire.Client, r wire.StopRequest, trouble app.Outage,
	stuck func(string)) (out rendezvous.Outcome, only string, err error) {
	var again app.Pause
	var outcome *rendezvous.Outcome
	for {
		err := wire.Watch.Call(ctx, g, wire.JobRequest{Job: r.Job}, func(p rendezvous.Progress) error {
			trouble.Over()
			again.Reset()
			switch p.Step {
			case rendezvous.StepStuck:
				stuck(p.Text)
			case rendezvous.StepEnded:
				outcome, only = p.Outcome, p.OnlyOn
			}
			return nil
		})
		switch {
		case outcome != nil:
			return *outcome, only, nil
		case ctx.Err() != nil:
			return rendezvous.Outcome{}, "", ctx.Err()
		case err == nil:
			err = follow.ErrCutShort
		case !app.Passing(err):
			return rendezvous.Outcome{}, "", err
		}
		trouble.Failed(fmt.Sprintf("%v; waiting", err))
		if err := again.Wait(ctx); err != nil {
			return rendezvous.Outcome{}, "", err
		}
		_, err = wire.Stop.Call(ctx, g, r)
		if err != nil && !app.Passing(err) && !errors.Is(err, rendezvous.ErrJobEnded) {
			return rendezvous.Outcome{}, "", err
		}
	}
}
