package job

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type attachOptions struct {
	job     string
	rank    *int // nil: the rank of the job's --stdin
	noStdin bool
	keys    follow.DetachKeys
	tail    int
}

// NewAttachCmd makes `sparkrun attach`.
func NewAttachCmd(a *app.App) *cobra.Command {
	opts := &attachOptions{}
	var rank int
	cmd := &cobra.Command{
		Use:   "attach JOB",
		Short: "Follow a running job as if it had been launched here",
		Long: `Follows a job that was launched elsewhere, or left, as its launch does: its output
from now on, after the last lines of each stream, then its exit code. JOB is an
id, the beginning of one, or a name.

Where the job was launched with --stdin RANK or --tty, this command's standard
input goes to that rank, and so does its end: --no-stdin sends none. With
--stdin all it goes to the rank of --rank, or to none. One at a time should type:
of what two send at once, some is lost.

Signals do what they do to launch: Ctrl-C ends the job (in a --tty job it is a key
like any other; from a service it takes leave), QUIT, USR1, USR2, CONT and TSTP go to
the ranks. A hang-up or the detach keys leave it running; --no-stdin has no such keys.
Only the job's user, and root, may do more than look on, as logs -f does.`,
		Example: `  sparkrun attach k3x
  sparkrun attach train --rank 0 --tail 50
  sparkrun attach train --no-stdin`,
		Args:              app.TakesJob,
		ValidArgsFunction: a.CompleteJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.job = args[0]
			if cmd.Flags().Changed("rank") {
				opts.rank = &rank
			}
			if opts.tail < 0 {
				return app.Usagef("--tail %d: want 0 or more", opts.tail)
			}
			return runAttach(cmd.Context(), a, *opts)
		},
	}
	fs := cmd.Flags()
	fs.IntVar(&rank, "rank", 0, "only this rank, its input included (default: all; the input of the one that has it)")
	fs.BoolVar(&opts.noStdin, "no-stdin", false,
		"send no input; signals, Ctrl-C included, do what they do to launch all the same")
	fs.Var(&opts.keys, "detach-keys", "keys that leave, such as ctrl-x,x; empty: none do (default: ctrl-p,ctrl-q)")
	fs.IntVar(&opts.tail, "tail", 10, "lines of each rank's output to begin with")
	return cmd
}

func runAttach(ctx context.Context, a *app.App, o attachOptions) error {
	b := a.Dial()
	defer b.Close()
	asking, stop := app.Stoppable(ctx)
	j, s, err := o.find(asking, b)
	interrupted := asking.Err() != nil
	stop()
	switch {
	case interrupted && err != nil:
		return app.Exits(launcher.ExitInterrupted, nil)
	case err != nil:
		return err
	}
	return followAttached(ctx, a, b, j, s, o)
}

// find looks up the job, and the part of it to attach to.
func (o attachOptions) find(ctx context.Context, b *wire.Client) (rendezvous.JobStatus, attachment, error) {
	jobs, err := wire.Jobs.Call(ctx, b, wire.JobsRequest{})
	if err != nil {
		return rendezvous.JobStatus{}, attachment{}, err
	}
	j, err := pick(jobs, o.job)
	if err != nil {
		return j, attachment{}, err
	}
	s, err := o.attachment(j)
	s.others = jobs.User != "" && jobs.User != "root" && jobs.User != j.Spec.User
	if err == nil && s.input {
		s.at, err = inputAt(ctx, b, j, s.rank)
	}
	return j, s, err
}

// attachment is the part of a job that a user attaches to.
type attachment struct {
	only   []int // ranks whose output is shown; none: all
	rank   int   // the rank of the input or terminal
	input  bool
	tty    bool
	at     int64 // the offset at which its input continues
	others bool  // the job is another user's
}

func (o attachOptions) attachment(j rendezvous.JobStatus) (attachment, error) {
	id := j.Spec.ID
	if j.Outcome != nil {
		return attachment{}, fmt.Errorf("attach to job %s: %w: `sparkrun logs %[1]s` has its output", id,
			rendezvous.ErrJobEnded)
	}
	st := j.Spec.MainStage()
	var s attachment
	n, err := strconv.Atoi(string(st.Stdin))
	switch {
	case o.rank != nil:
		s.rank, s.only = *o.rank, []int{*o.rank}
		if world := j.Plan.World; s.rank < 0 || world > 0 && s.rank >= world {
			return attachment{}, fmt.Errorf("job %s: rank %d: %w: its ranks are 0 to %d", id, s.rank,
				launcher.ErrInvalid, world-1)
		}
		s.input = st.Stdin.Has(s.rank)
	case err == nil:
		s.rank, s.input = n, true
	}
	if st.HasTTY(s.rank) {
		s.tty, s.only = true, []int{s.rank} // a terminal's output must not mix with other ranks'
	}
	s.input = s.input && !o.noStdin
	return s, nil
}

// inputAt asks where a rank's input continues; the answer also tells whether it accepts
// input. A rank that does not read yet, or no longer, has had none.
func inputAt(ctx context.Context, b *wire.Client, j rendezvous.JobStatus, rank int) (int64, error) {
	at, err := wire.InputAt.Call(ctx, b, wire.InputAtRequest{Job: string(j.Spec.ID), Rank: rank})
	switch {
	case errors.Is(err, wire.ErrNoReader):
		return 0, nil
	case errors.Is(err, wire.ErrDenied):
		return 0, fmt.Errorf("%w: --no-stdin only looks on", err)
	}
	return at.Offset, err
}

// followAttached follows the job of the attachment.
func followAttached(ctx context.Context, a *app.App, b *wire.Client, j rendezvous.JobStatus, s attachment,
	o attachOptions) error {
	mode := follow.OutputMode{}
	if s.tty {
		mode.Kind = "raw"
	}
	out, err := follow.OpenPrinter(a, mode, false)
	if err != nil {
		return err
	}
	out.World(j.Plan.World)
	signals, stop := a.Signals() // from here on signals are for the job
	defer stop()
	f := follow.Follower{
		Agent: b, Spec: j.Spec, Out: out, Signals: signals, Only: s.only, World: j.Plan.World,
		Attached: true, Others: s.others, Runs: j.Started != nil, From: launcher.From{Lines: &o.tail},
		Heard: j.Plan.Generation,
	}
	f.First.Store(uint64(j.Plan.Generation))
	errs := a.Err
	if s.input {
		f.In, f.InputAt = follow.InForeground(a.In), s.at
		if o.rank != nil {
			f.InputOf = s.only
		}
		tty, err := follow.TerminalOf(a.In)
		switch {
		case err == nil && s.tty:
			defer tty.Restore()
			f.Terminal, f.Keys = tty, o.keys.OrDefault()
			if a.ErrTTY {
				errs = follow.RawLines{To: errs}
			}
		case err == nil:
			f.Keys = o.keys.OrDefault()
		case s.tty:
			return fmt.Errorf("%w; --no-stdin only looks on", follow.ErrNoTerminal)
		}
	}
	n := follow.OpenNotes(errs)
	f.Say, f.Out.Note = n.Say, n.Say
	code, err := f.Run(ctx)
	n.Close()
	return app.Exits(code, err)
}
