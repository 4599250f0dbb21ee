package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type attachOptions struct {
	job     string
	rank    *int // nil: that of the job's --stdin
	noStdin bool
	keys    detachKeys
	tail    int
}

func newAttachCmd(a *app) *cobra.Command {
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
like any other), QUIT, USR1, USR2, CONT and TSTP go to the ranks. A hang-up or the
detach keys leave it running; --no-stdin has no such keys. Only the job's user, and
root, may do more than look on, as logs -f does.`,
		Example: `  sparkrun attach k3x
  sparkrun attach train --rank 0 --tail 50
  sparkrun attach train --no-stdin`,
		Args:              takes(1, "the job"),
		ValidArgsFunction: a.completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.job = args[0]
			if cmd.Flags().Changed("rank") {
				opts.rank = &rank
			}
			if opts.tail < 0 {
				return usagef("--tail %d: want 0 or more", opts.tail)
			}
			return a.attach(cmd.Context(), *opts)
		},
	}
	fs := cmd.Flags()
	fs.IntVar(&rank, "rank", 0, "only this rank, its input included (default: all; the input of the one that has it)")
	fs.BoolVar(&opts.noStdin, "no-stdin", false, "send no input; signals, Ctrl-C included, do what they do to launch all the same")
	fs.Var(&opts.keys, "detach-keys", "keys that leave, such as ctrl-x,x; empty: none do (default: ctrl-p,ctrl-q)")
	fs.IntVar(&opts.tail, "tail", 10, "lines of each rank's output to begin with")
	return cmd
}

func (a *app) attach(ctx context.Context, o attachOptions) error {
	b := a.dial()
	defer b.close()
	asking, stop := stoppable(ctx)
	j, s, err := o.find(asking, b)
	interrupted := asking.Err() != nil
	stop()
	switch {
	case interrupted && err != nil:
		return exits(launcher.ExitInterrupted, nil)
	case err != nil:
		return err
	}
	return a.sit(ctx, b, j, s, o)
}

// find looks up the job, and what of it is attached to.
func (o attachOptions) find(ctx context.Context, b *backend) (rendezvous.JobStatus, seat, error) {
	jobs, err := b.Jobs(ctx)
	if err != nil {
		return rendezvous.JobStatus{}, seat{}, err
	}
	j, err := pick(jobs.Jobs, o.job)
	if err != nil {
		return j, seat{}, err
	}
	s, err := o.seat(j)
	if err == nil && s.input {
		s.at, err = inputAt(ctx, b, j, s.rank)
	}
	return j, s, err
}

// seat is what somebody attaches to.
type seat struct {
	only  []int // whose output; none: everybody's
	rank  int   // whose input, or terminal
	input bool
	tty   bool
	at    int64 // where that input goes on
}

func (o attachOptions) seat(j rendezvous.JobStatus) (seat, error) {
	id := j.Spec.ID
	if j.Outcome != nil {
		return seat{}, fmt.Errorf("attach to job %s: %w: `sparkrun logs %[1]s` has its output", id, rendezvous.ErrJobEnded)
	}
	st := j.Spec.MainStage()
	var s seat
	n, err := strconv.Atoi(string(st.Stdin))
	switch {
	case o.rank != nil:
		s.rank, s.only = *o.rank, []int{*o.rank}
		if world := j.Plan.World; s.rank < 0 || world > 0 && s.rank >= world {
			return seat{}, fmt.Errorf("job %s: rank %d: %w: its ranks are 0 to %d", id, s.rank, launcher.ErrInvalid, world-1)
		}
		s.input = st.Stdin.Has(s.rank)
	case err == nil:
		s.rank, s.input = n, true
	}
	if st.HasTTY(s.rank) {
		s.tty, s.only = true, []int{s.rank} // bytes that mix with no others
	}
	s.input = s.input && !o.noStdin
	return s, nil
}

// inputAt asks where a rank's input goes on, and by that whether it may be
// written to. One that does not read yet, or no more, has had none.
func inputAt(ctx context.Context, b attacher, j rendezvous.JobStatus, rank int) (int64, error) {
	at, err := b.InputAt(ctx, wire.InputAtRequest{Job: string(j.Spec.ID), Rank: rank})
	switch {
	case errors.Is(err, wire.ErrNoReader):
		return 0, nil
	case errors.Is(err, wire.ErrDenied):
		return 0, fmt.Errorf("%w: --no-stdin only looks on", err)
	}
	return at.Offset, err
}

// sit follows the job from a seat.
func (a *app) sit(ctx context.Context, b *backend, j rendezvous.JobStatus, s seat, o attachOptions) error {
	mode := outputMode{}
	if s.tty {
		mode.kind = "raw"
	}
	out, err := a.printer(mode, false)
	if err != nil {
		return err
	}
	out.world(j.Plan.World)
	signals, stop := a.signals() // the job's business from here on
	defer stop()
	f := follower{
		gangs: b, ranks: b, spec: j.Spec, out: out, signals: signals, only: s.only, world: j.Plan.World,
		attached: true, runs: j.Started != nil, from: launcher.From{Lines: &o.tail}, heard: j.Plan.Generation,
	}
	f.first.Store(uint64(j.Plan.Generation))
	errs := a.err
	if s.input {
		f.in, f.inputAt = inForeground(a.in), s.at
		if o.rank != nil {
			f.inputOf = s.only
		}
		tty, err := terminalOf(a.in)
		switch {
		case err == nil && s.tty:
			defer tty.restore()
			f.terminal, f.keys = tty, o.keys.orDefault()
			if a.errTTY {
				errs = rawLines{errs}
			}
		case err == nil:
			f.keys = o.keys.orDefault()
		case s.tty:
			return fmt.Errorf("%w; --no-stdin only looks on", errNoTerminal)
		}
	}
	n := openNotes(errs)
	f.say, f.out.note = n.say, n.say
	code, err := f.run(ctx)
	n.Close()
	return exits(code, err)
}
