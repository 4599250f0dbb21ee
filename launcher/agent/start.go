package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// obeyStart starts the ranks. The phase rises before the shim is called: from here on a
// rank may have been exec'd, whatever happens to this process.
func (t *attempt) obeyStart(ctx context.Context, s launcher.Start) {
	more := t.entry.Phase == launcher.PhaseStarted && t.assignment != nil && t.assignment.Spec.Stepped() &&
		!t.steps[s.Step]
	if t.entry.Phase != launcher.PhasePrepared && !more {
		return // started before, or ended
	}
	t.steps[s.Step] = true
	t.does("starts its ranks", true)
	keep := s.Port != t.entry.Port
	t.change(nil, func(e *launcher.LedgerEntry) {
		e.Phase, e.Port = launcher.PhaseStarted, s.Port
	})
	t.hold.letGo(s.Step)
	begun, as, plan, client := t.begun, t.assignment, t.plan, t.shim
	go func() { // its result goes to begun; if a disk hangs it is not waited for
		var err error
		if keep {
			err = writePort(t.dir, s.Port)
		}
		if err == nil {
			err = t.start(ctx, as, plan, client, s)
		}
		begun <- err
	}()
}

// start makes the shim exec the ranks. It runs beside the loop.
func (t *attempt) start(ctx context.Context, as *launcher.Assignment, plan *prepared, client *shim.Client,
	s launcher.Start) error {
	ranks, err := t.outfit(ctx, as, plan, s.Step, ports{port: s.Port, head: s.HeadPorts})
	if err != nil {
		return err
	}
	if client == nil {
		if client, err = shim.Attach(ctx, t.dir); err != nil {
			return err
		}
	}
	if err := t.firstLease(ctx, client, *as, s.Lease); err != nil {
		return err
	}
	if as.Spec.Stepped() {
		return client.StartMore(ctx, ranks)
	}
	return client.Start(ctx, ranks)
}

// outfit makes the ranks of a step as the shim is to exec them. It runs beside the loop.
func (t *attempt) outfit(ctx context.Context, as *launcher.Assignment, plan *prepared, step int,
	at ports) (ranks []shim.Rank, err error) {
	if as == nil {
		return nil, fmt.Errorf("the assignment in %s is unreadable: see the agent's log", t.dir)
	}
	if plan == nil { // prepared before a restart of the agent
		if plan, err = t.a.surroundings(ctx, *as); err != nil {
			return nil, err
		}
		if plan.container, err = container.ReadPrepared(t.dir); err != nil {
			return nil, err
		}
	}
	if contained := as.Spec.MainStage().Container != nil; contained != (plan.container != nil) {
		return nil, fmt.Errorf("what was prepared in %s does not fit its job: launch it again", t.dir)
	}
	if at.own, err = readOwn(t.dir); err != nil {
		return nil, err
	}
	ranks, err = ranksFor(t.a.atStage(*as), plan, step, at)
	if err != nil {
		return nil, err
	}
	secrets, err := t.a.secretEnv(*as, plan.who)
	if err != nil {
		return nil, err
	}
	for _, r := range ranks {
		withSecrets(r.Env, secrets)
	}
	if plan.container != nil {
		t.a.putInContainers(plan.container, *as, ranks)
	}
	return ranks, nil
}

func (t *attempt) startDone(ctx context.Context, err error) {
	if err == nil || t.ending || t.entry.Phase == launcher.PhaseEnded || ctx.Err() != nil {
		return // an attempt that is being ended has refused nothing
	}
	t.a.cfg.Logger.Error("start ranks", "job", t.key.Job, "error", err)
	t.refuse(fmt.Sprintf("start ranks: %v", err))
}

// obeyAgain starts a rank's next incarnation, once nothing of the last one is left. What
// prevents that is reported as that incarnation's exit.
func (t *attempt) obeyAgain(ctx context.Context, beside *sync.WaitGroup, again launcher.Again) {
	i, known := t.at[again.Rank]
	if t.entry.Phase != launcher.PhaseStarted || t.ending || t.assignment == nil || !known || !t.replaces(again.Rank) {
		return
	}
	if now := t.entry.Ranks[i]; now.Again >= again.Again || now.State != launcher.RankEnded {
		return // ordered before
	}
	t.a.cfg.Logger.Info("start rank again", "job", t.key.Job, "rank", again.Rank, "again", again.Again)
	as, plan, client := t.assignment, t.plan, t.shim
	beside.Go(func() {
		err := t.startAgain(ctx, as, plan, client, again)
		if err != nil && ctx.Err() == nil && !errors.Is(err, shim.ErrEnded) {
			_ = t.tell(ctx, shim.Event{Kind: shim.Exited, Rank: again.Rank, Again: again.Again, Time: time.Now(),
				Exit: &launcher.Exit{Error: fmt.Sprintf("start rank again: %v", err)}})
		}
	})
}

func (t *attempt) startAgain(ctx context.Context, as *launcher.Assignment, plan *prepared, client *shim.Client,
	again launcher.Again) error {
	step, _, _ := as.Local(again.Rank - as.FirstRank)
	ranks, err := t.outfit(ctx, as, plan, step, ports{port: again.Port, head: again.HeadPorts})
	if err != nil {
		return err
	}
	ranks = slices.DeleteFunc(ranks, func(r shim.Rank) bool { return r.Rank != again.Rank })
	for i := range ranks {
		ranks[i].Again = again.Again
		if c := ranks[i].Container; c != nil { // an engine uses a container name once, and we a folder
			c.Spec.Name += fmt.Sprintf("-again%d", again.Again)
			c.Spec.HandDir += fmt.Sprintf("-again%d", again.Again)
		}
	}
	if client == nil {
		if client, err = shim.Attach(ctx, t.dir); err != nil {
			return err
		}
	}
	return client.Again(ctx, ranks)
}

// replaces reports whether a rank may have another incarnation.
func (t *attempt) replaces(rank int) bool {
	if t.assignment == nil || t.assignment.Spec.MaxRestarts == 0 || !t.assignment.Spec.Stepped() {
		return false
	}
	_, st, _ := t.assignment.Local(rank - t.assignment.FirstRank)
	return st.Replace
}

// again is the number of a rank's present incarnation.
func (t *attempt) again(rank int) int {
	if i, known := t.at[rank]; known {
		return t.entry.Ranks[i].Again
	}
	return 0
}
