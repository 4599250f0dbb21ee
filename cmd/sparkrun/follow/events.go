package follow

import (
	"context"
	"errors"
	"fmt"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

var (
	errInterrupted = errors.New("interrupted before the cluster answered")
	ErrCutShort    = fmt.Errorf("%w: the event log broke off", wire.ErrRetry)
)

// events follows the job from one leader to the next until it has ended. Before the job
// is recorded it calls Launch, which starts the job once however often it is called;
// afterwards Watch, which never starts anything.
func (f *Follower) events(ctx context.Context) error {
	seen := sieve{}
	trouble := app.Outage{Say: f.Say}
	var again app.Pause
	asked := false // an attempt may have reached a leader
	for {
		ask := func(fn func(rendezvous.Progress) error) error {
			if f.accepted.Is() {
				return wire.Watch.Call(ctx, f.Agent, wire.JobRequest{Job: string(f.Spec.ID)}, fn)
			}
			return wire.Launch.Call(ctx, f.Agent, wire.LaunchRequest{Spec: f.Spec}, fn)
		}
		err := ask(func(p rendezvous.Progress) error {
			trouble.Over()
			again.Reset()
			return f.handle(p, seen)
		})
		switch {
		case errors.Is(err, ErrOutput):
			return err
		case f.Outcome != nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			err = ErrCutShort
		}
		if !app.Passing(err) {
			return err
		}
		unsaid := errors.Is(err, node.ErrNoAgent) || errors.Is(err, wire.ErrNoLeader)
		asked = asked || !unsaid
		trouble.Failed(f.why(err))
		if f.accepted.Is() {
			// The next leader may report only what it saw itself.
			f.started.Set()
			f.troubled.Store(true)
			select {
			case f.lost <- struct{}{}:
			default:
			}
		} else if err := f.patience(err, asked, &trouble); err != nil {
			return err
		}
		if err := again.Wait(ctx); err != nil {
			return err
		}
	}
}

// patience tells whether to give up on a job that is not known to be recorded.
func (f *Follower) patience(err error, asked bool, trouble *app.Outage) error {
	over := trouble.Lasted() >= app.Patience ||
		errors.Is(err, wire.ErrNoLeader) && trouble.Lasted() >= LeaderlessWait
	if !asked {
		over = over || errors.Is(err, node.ErrNoAgent) || f.interrupted.Load() || trouble.Lasted() >= LeaderlessWait
	}
	switch {
	case f.interrupted.Load() && !asked:
		return fmt.Errorf("%w: nothing was started", errInterrupted)
	case f.interrupted.Load():
		return fmt.Errorf("%w: `sparkrun ps` will show job %[2]s if it was started, `sparkrun stop %[2]s` ends it",
			errInterrupted, f.Spec.ID)
	case over && asked:
		return fmt.Errorf("launch job %s: %w; whether it was started is not known: `sparkrun ps` will tell",
			f.Spec.ID, err)
	case over:
		return err
	}
	return nil
}

// why says what launch waits for; empty where the error itself will say it in a moment.
func (f *Follower) why(err error) string {
	var what string
	switch {
	case errors.Is(err, wire.ErrNoLeader) && !f.accepted.Is():
		return ""
	case errors.Is(err, node.ErrNoAgent):
		what = "the agent on this machine does not answer; waiting for it"
	case errors.Is(err, wire.ErrNoLeader):
		what = err.Error()
	case f.Leader != "":
		what = f.Leader + " (leader) does not answer; waiting for a new leader"
	default:
		what = "the leader does not answer; waiting for a new one"
	}
	if f.accepted.Is() {
		what += "; the job goes on meanwhile"
	}
	return what
}

// handle handles one event.
func (f *Follower) handle(p rendezvous.Progress, seen sieve) error {
	f.accepted.Set()
	if p.Plan != nil {
		f.World, f.stage = p.Plan.World, p.Plan.Stage
		f.head = p.Plan.Head.String()
		f.Out.World(p.Plan.World)
	}
	if seen.fresh(p) {
		if err := f.show(p); err != nil {
			return err
		}
	}
	if p.Plan != nil {
		f.machines, f.begun = len(p.Plan.Nodes), map[string]bool{}
	}
	switch p.Step {
	case rendezvous.StepStarted, rendezvous.StepExited:
		f.begins(p.Generation)
		// A service is running (StepRunning) only once it answers, which takes as long as
		// loading the model.
		if p.Step == rendezvous.StepStarted && f.stage != launcher.StageBefore && f.Spec.Service != nil {
			if f.begun[p.Host] = true; len(f.begun) >= f.machines {
				f.running.Set()
			}
		}
	case rendezvous.StepServes:
		if p.Service != nil && p.Service.State == launcher.ServiceReady {
			if try := tryIt(f.Spec, p.Service.Addr); try != "" && !f.serves.Is() {
				f.Say("try it: " + try)
			}
			f.running.Set()
			f.serves.Set()
		}
	case rendezvous.StepRunning:
		f.begins(p.Generation)
		if f.stage != launcher.StageBefore {
			f.running.Set()
			f.reading.Set()
		}
	case rendezvous.StepWaiting:
		if p.Generation == 0 { // it is queued, and will start without us
			f.running.Set()
			if f.Spec.OnDemand() != nil { // it starts once it is asked for
				f.serves.Set()
			}
		}
	case rendezvous.StepNodeDown:
		f.troubled.Store(true)
	case rendezvous.StepEnded:
		f.Outcome = p.Outcome
	}
	return nil
}

// show tells the user of one event.
func (f *Follower) show(p rendezvous.Progress) error {
	switch p.Step {
	case rendezvous.StepWaiting, rendezvous.StepAgain, rendezvous.StepStuck, rendezvous.StepLeft,
		rendezvous.StepStage, rendezvous.StepServes:
		f.Say(p.Text)
	case rendezvous.StepPreparing:
		f.Say(p.Host + " " + p.Text)
	case rendezvous.StepRunning:
		for _, hint := range rayHints(f.Spec, f.head, p) {
			f.Say(hint)
		}
	case rendezvous.StepPrepared:
		if p.Text != "" {
			f.Say("warning: " + p.Host + ": " + p.Text)
		}
	}
	if p.OnlyOn != "" {
		f.Say(app.AloneText(p.OnlyOn))
		f.OnlyOn.Store(&p.OnlyOn)
	}
	if err := f.Out.event(p); err != nil {
		return err
	}
	for _, finding := range p.Findings {
		f.Say("warning: " + rendezvous.Describe(finding))
	}
	// A pulled cable must not make a job ten times slower without a word. A ring also
	// meets over management, but has its RDMA devices.
	if p.Plan != nil && p.Plan.Network == string(envgen.NetworkManagement) && len(p.Plan.Nodes) > 1 &&
		len(p.Plan.Nodes[0].Entry.Paths) == 0 {
		f.Say(p.Plan.Why)
	}
	return nil
}

// begins starts reading the output of a generation, once.
func (f *Follower) begins(gen launcher.Generation) {
	switch {
	case gen <= f.Heard && f.started.Is():
		return
	case f.Heard == 0:
		f.First.Store(uint64(gen))
	default:
		select {
		case <-f.later: // superseded
		default:
		}
		f.later <- gen
	}
	f.Heard = gen
	f.started.Set()
}

// sieve drops events that were handled before: a new leader sends a job's event log from
// its beginning.
type sieve map[string]rendezvous.Step

func (s sieve) fresh(p rendezvous.Progress) bool {
	key := fmt.Sprint(p.Generation, " ", p.Step)
	switch p.Step {
	case rendezvous.StepWaiting, rendezvous.StepAgain, rendezvous.StepStuck, rendezvous.StepLeft,
		rendezvous.StepStage, rendezvous.StepServes:
		key += " " + p.Text
	case rendezvous.StepPreparing:
		key += " " + p.Host + " " + p.Text
	case rendezvous.StepPrepared, rendezvous.StepRefused, rendezvous.StepStarted:
		key += " " + p.Host
	case rendezvous.StepExited:
		if p.Rank != nil {
			key += fmt.Sprintf(" %d", *p.Rank)
		}
	case rendezvous.StepNodeDown, rendezvous.StepNodeUp:
		key = "node " + p.Host // these two steps alternate
	}
	if s[key] == p.Step {
		return false
	}
	s[key] = p.Step
	return true
}
