package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

var (
	errInterrupted = errors.New("interrupted before the cluster answered")
	errCutShort    = fmt.Errorf("%w: the story broke off", wire.ErrRetry)
)

// story follows the job from one leader to the next until it has ended. Before
// the job is recorded it asks by Launch, which starts it once however often it
// is asked; afterwards by Watch, which never starts anything.
func (f *follower) story(ctx context.Context) error {
	seen := sieve{}
	trouble := outage{say: f.say}
	var again pause
	asked := false // some try may have reached a leader
	for {
		ask := func(fn func(rendezvous.Progress) error) error {
			if f.accepted.is() {
				return f.gangs.Watch(ctx, wire.JobRequest{Job: string(f.spec.ID)}, fn)
			}
			return f.gangs.Launch(ctx, wire.LaunchRequest{Spec: f.spec}, fn)
		}
		err := ask(func(p rendezvous.Progress) error {
			trouble.over()
			again.reset()
			return f.hear(p, seen)
		})
		switch {
		case errors.Is(err, errOutput):
			return err
		case f.outcome != nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			err = errCutShort
		}
		if !passing(err) {
			return err
		}
		unsaid := errors.Is(err, node.ErrNoAgent) || errors.Is(err, wire.ErrNoLeader)
		asked = asked || !unsaid
		trouble.failed(f.why(err))
		if f.accepted.is() {
			// The leader that comes may tell only what it saw itself.
			f.started.set()
			f.troubled.Store(true)
			select {
			case f.lost <- struct{}{}:
			default:
			}
		} else if err := f.patience(err, asked, &trouble); err != nil {
			return err
		}
		if err := again.wait(ctx); err != nil {
			return err
		}
	}
}

// patience tells when to give up on a job that is not known to be recorded.
func (f *follower) patience(err error, asked bool, trouble *outage) error {
	over := trouble.lasted() >= patience ||
		errors.Is(err, wire.ErrNoLeader) && trouble.lasted() >= leaderlessWait
	if !asked {
		over = over || errors.Is(err, node.ErrNoAgent) || f.interrupted.Load() || trouble.lasted() >= leaderlessWait
	}
	switch {
	case f.interrupted.Load() && !asked:
		return fmt.Errorf("%w: nothing was started", errInterrupted)
	case f.interrupted.Load():
		return fmt.Errorf("%w: `sparkrun ps` will show job %[2]s if it was started, `sparkrun stop %[2]s` ends it", errInterrupted, f.spec.ID)
	case over && asked:
		return fmt.Errorf("launch job %s: %w; whether it was started is not known: `sparkrun ps` will tell", f.spec.ID, err)
	case over:
		return err
	}
	return nil
}

// why says what is waited for; nothing where the error will say it in a moment.
func (f *follower) why(err error) string {
	var what string
	switch {
	case errors.Is(err, wire.ErrNoLeader) && !f.accepted.is():
		return ""
	case errors.Is(err, node.ErrNoAgent):
		what = "the agent on this machine does not answer; waiting for it"
	case errors.Is(err, wire.ErrNoLeader):
		what = err.Error()
	case f.leader != "":
		what = f.leader + " (leader) does not answer; waiting for a new leader"
	default:
		what = "the leader does not answer; waiting for a new one"
	}
	if f.accepted.is() {
		what += "; the job goes on meanwhile"
	}
	return what
}

// hear takes one step of the story.
func (f *follower) hear(p rendezvous.Progress, seen sieve) error {
	f.accepted.set()
	if p.Plan != nil {
		f.world, f.stage = p.Plan.World, p.Plan.Stage
		f.head = p.Plan.Head.String()
		f.out.world(p.Plan.World)
	}
	if seen.fresh(p) {
		switch p.Step {
		case rendezvous.StepWaiting, rendezvous.StepAgain, rendezvous.StepStuck, rendezvous.StepStage, rendezvous.StepServes:
			f.say(p.Text)
		case rendezvous.StepPreparing:
			f.say(p.Host + " " + p.Text)
		case rendezvous.StepRunning:
			for _, hint := range rayHints(f.spec, f.head, p) {
				f.say(hint)
			}
		case rendezvous.StepPrepared:
			if p.Text != "" {
				f.say("warning: " + p.Host + ": " + p.Text)
			}
		}
		if p.OnlyOn != "" {
			f.say(aloneText(p.OnlyOn))
			f.onlyOn.Store(&p.OnlyOn)
		}
		if err := f.out.event(p); err != nil {
			return err
		}
		for _, finding := range p.Findings {
			f.say("warning: " + rendezvous.Describe(finding))
		}
		// A pulled cable must not make a job ten times slower in silence. A ring
		// meets on management too, and has its RDMA devices.
		if p.Plan != nil && p.Plan.Network == string(envgen.NetworkManagement) && len(p.Plan.Nodes) > 1 && len(p.Plan.Nodes[0].Entry.Paths) == 0 {
			f.say(p.Plan.Why)
		}
	}
	if p.Plan != nil {
		f.machines, f.begun = len(p.Plan.Nodes), map[string]bool{}
	}
	switch p.Step {
	case rendezvous.StepStarted, rendezvous.StepExited:
		f.begins(p.Generation)
		// Of a service StepRunning comes once it answers, which takes as long as a model does.
		if p.Step == rendezvous.StepStarted && f.stage != launcher.StageBefore && f.spec.Service != nil {
			if f.begun[p.Host] = true; len(f.begun) >= f.machines {
				f.running.set()
			}
		}
	case rendezvous.StepServes:
		if p.Service != nil && p.Service.State == launcher.ServiceReady {
			f.running.set()
			f.serves.set()
		}
	case rendezvous.StepRunning:
		f.begins(p.Generation)
		if f.stage != launcher.StageBefore {
			f.running.set()
			f.reading.set()
		}
	case rendezvous.StepWaiting:
		if p.Generation == 0 { // it stands in line, and will start without us
			f.running.set()
		}
	case rendezvous.StepNodeDown:
		f.troubled.Store(true)
	case rendezvous.StepEnded:
		f.outcome = p.Outcome
	}
	return nil
}

// begins has the output of a generation read, once.
func (f *follower) begins(gen launcher.Generation) {
	switch {
	case gen <= f.heard && f.started.is():
		return
	case f.heard == 0:
		f.first.Store(uint64(gen))
	default:
		select {
		case <-f.later: // superseded
		default:
		}
		f.later <- gen
	}
	f.heard = gen
	f.started.set()
}

// sieve keeps back what was told before: a new leader tells a job's story from
// its beginning.
type sieve map[string]rendezvous.Step

func (s sieve) fresh(p rendezvous.Progress) bool {
	key := fmt.Sprint(p.Generation, " ", p.Step)
	switch p.Step {
	case rendezvous.StepWaiting, rendezvous.StepAgain, rendezvous.StepStuck, rendezvous.StepStage, rendezvous.StepServes:
		key += " " + p.Text
	case rendezvous.StepPreparing:
		key += " " + p.Host + " " + p.Text
	case rendezvous.StepPrepared, rendezvous.StepRefused, rendezvous.StepStarted:
		key += " " + p.Host
	case rendezvous.StepExited:
		key += fmt.Sprintf(" %d", p.Rank)
	case rendezvous.StepNodeDown, rendezvous.StepNodeUp:
		key = "node " + p.Host // these two take turns
	}
	if s[key] == p.Step {
		return false
	}
	s[key] = p.Step
	return true
}
