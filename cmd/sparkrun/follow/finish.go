package follow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// goesOn says what happens to a job that launch leaves.
func (f *Follower) goesOn() string {
	switch {
	case f.Standalone:
		return "the job ends with it"
	case !f.accepted.Is():
		return fmt.Sprintf("`sparkrun ps` tells whether job %s was started", f.Spec.ID)
	}
	return fmt.Sprintf("job %[1]s goes on; `sparkrun logs -f %[1]s` follows it, `sparkrun stop %[1]s` "+
		"ends it", f.Spec.ID)
}

// OutputBroken is for when our output cannot be written, which says nothing about the
// job. It exits like a program that SIGPIPE killed, as in `yes | head`.
func (f *Follower) OutputBroken(err error, ended bool) int {
	if !ended {
		f.Say(fmt.Sprintf("%v: %s", err, f.goesOn()))
	}
	if errors.Is(err, syscall.EPIPE) {
		return app.ExitOf(syscall.SIGPIPE)
	}
	return launcher.ExitOwnFailure
}

// readerGone ends the job of the command that launched it when nobody reads its output any more, as in
// `launch ... | head`: in a shell the program would have ended so. A service goes on; so does every job when its
// output cannot be written for another reason.
func (f *Follower) readerGone(ctx context.Context, err error, ended bool) int {
	if !ended && errors.Is(err, syscall.EPIPE) && !f.Attached && !f.Standalone && f.Spec.Service == nil {
		if trouble := f.stop(ctx); trouble == nil {
			return app.ExitOf(syscall.SIGPIPE)
		}
	}
	return f.OutputBroken(err, ended)
}

// stop asks for the job's end, and does not wait for it.
func (f *Follower) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, app.Patience)
	defer cancel()
	var again app.Pause
	for {
		_, err := wire.Stop.Call(ctx, f.Agent, wire.StopRequest{Job: string(f.Spec.ID)})
		switch {
		case err == nil, errors.Is(err, rendezvous.ErrJobEnded):
			return nil
		case errors.Is(err, rendezvous.ErrNoJob) && !f.accepted.Is(): // not recorded yet
		case !app.Passing(err):
			return err
		}
		if again.Wait(ctx) != nil {
			return err
		}
	}
}

// finish prints what is left and derives the exit code from the outcome.
func (f *Follower) finish(ctx context.Context, sig os.Signal) int {
	o := *f.Outcome
	if f.troubled.Load() && f.started.Is() && !f.Detach {
		f.readAgain(ctx)
	}
	broken := f.Out.Flush()
	switch {
	case o.End == rendezvous.Completed && broken != nil:
		return f.OutputBroken(broken, true)
	case o.End == rendezvous.Completed:
		return 0
	case o.End == rendezvous.Stopped && sig != nil:
		f.Say("stopped: " + cmp.Or(o.Doubts(), "every rank has ended"))
		return app.ExitOf(sig)
	}
	f.Say(Sentence(o, f.Spec, f.World))
	if r := o.Root; r != nil && !f.Detach { // its output has just been shown
		bare := *r
		bare.Exit.Last = ""
		o.Root = &bare
	}
	for _, line := range Why(o, f.Spec) {
		f.Say(line)
	}
	return cmp.Or(o.ExitCode, launcher.ExitOwnFailure)
}

// readAgain fetches output that is missing because a node was away for a while. What has
// been printed is not printed again.
func (f *Follower) readAgain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, quietAfterEnd/2)
	defer cancel()
	r := OutputReader{Agent: f.Agent, Out: f.Out, Job: string(f.Spec.ID), Ranks: f.Only, launched: true,
		From: f.From, Outage: app.Outage{Say: f.Say}}
	if err := r.Run(ctx); err != nil && !errors.Is(err, ErrOutput) {
		f.Say(fmt.Sprintf("some output may be missing: `sparkrun logs %s` tries again", f.Spec.ID))
	}
}

// Sentence is the last line: which rank failed, on which host, and why.
func Sentence(o rendezvous.Outcome, spec launcher.Spec, world int) string {
	cause := o.Cause
	if cause == "" {
		cause = "no cause was recorded"
	}
	switch {
	case o.End == rendezvous.Stopped:
		return fmt.Sprintf("job %s was ended: %s", spec.ID, cause)
	case o.End == rendezvous.Rejected && !strings.Contains(cause, "no rank was started"):
		return cause + "; no rank was started"
	case o.End == rendezvous.Failed && world > 1 && spec.OnFailure == launcher.ContinueOnFailure &&
		o.ExitCode != launcher.ExitTimedOut:
		return cause + "; the other ranks were left to end by themselves"
	case o.End == rendezvous.Failed && world > 1:
		return cause + "; the job was ended"
	}
	return cause
}
