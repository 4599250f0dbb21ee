package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/login"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

const (
	again      = time.Second     // between two attempts to reach a shim
	attachWait = 2 * time.Second // a shim that does not answer delays Open no longer than this
	reapWait   = 10 * time.Second
)

// reattachAll finds the attempts of the previous agent process. What it cannot read it logs
// and leaves as it is: ranks may run there.
func (a *Agent) reattachAll() error {
	dirs, err := os.ReadDir(a.jobsDir())
	if err != nil {
		return err
	}
	var all sync.WaitGroup // at once, so that a stopped shim delays only its own attempt
	for _, d := range dirs {
		all.Go(func() {
			if err := a.reattach(d.Name()); err != nil {
				a.cfg.Logger.Error("re-attach", "dir", d.Name(), "error", err)
			}
		})
	}
	all.Wait()
	a.endStrays(dirs)
	return nil
}

// endStrays ends the shims whose folders were removed: nobody could find, stop or read
// their ranks any more.
func (a *Agent) endStrays(dirs []os.DirEntry) {
	strays := shim.Living(a.jobsDir())
	for _, d := range dirs {
		delete(strays, d.Name())
	}
	for name := range strays {
		a.cfg.Logger.Error("end a shim whose folder was removed", "dir", a.jobsDir(), "job", name)
		shim.SignalShim(filepath.Join(a.jobsDir(), name), syscall.SIGTERM)
	}
}

// reattach takes over one attempt. The journal is read from its file, so that the ledger is
// complete when Open returns, whatever state the shim is in.
func (a *Agent) reattach(name string) error {
	key, err := parseKey(name)
	if err != nil {
		return fmt.Errorf("%w: left alone", err)
	}
	t := newAttempt(a, key, nil)
	var as launcher.Assignment
	switch err := readJSON(filepath.Join(t.dir, "assignment.json"), &as); {
	case err != nil:
		a.cfg.Logger.Error("read assignment", "job", key.Job, "error", err)
	case as.Key != key:
		a.cfg.Logger.Error("read assignment", "job", key.Job, "error", "it belongs to "+as.Key.String())
	default:
		t.assign(&as)
		if who, err := login.Lookup(a.ctx, as.Spec.User); err == nil {
			a.mu.Lock()
			a.users[key] = who
			a.mu.Unlock()
		}
	}
	ctx, cancel := context.WithTimeout(a.ctx, attachWait)
	defer cancel()
	var attachErr error
	t.shim, attachErr = shim.Attach(ctx, t.dir)
	gone := errors.Is(attachErr, shim.ErrGone)
	told, err := shim.Replay(t.dir) // after the attach: if the shim is gone, this is all of it
	if err != nil {
		a.cfg.Logger.Error("replay journal", "job", key.Job, "error", err)
	}
	t.found = true
	switch {
	case gone && err == nil && len(told) == 0:
		// To be prepared again, or forgotten. The folder stays: a shim that the previous
		// agent process forked as it died may still come up in it, and the next one spawned
		// there finds it. In a new folder there would be two.
		return a.readmit(t)
	case gone && err == nil && !mayHaveRun(told):
		t.removeDirs() // it never got a start, and exited
		return nil
	case attachErr != nil && !gone: // else attend does that
		a.cfg.Logger.Error("attach to shim", "job", key.Job, "error", attachErr)
	}
	t.kept = true
	t.replaying = true
	for _, ev := range told {
		t.note(t.explained(ctx, ev))
	}
	t.replaying = false
	t.entry.Phase = max(t.entry.Phase, launcher.PhasePrepared)
	t.entry.Suspended = shim.Suspended(told) // no event says that; the kernel knows
	if t.entry.Phase != launcher.PhaseEnded {
		if err := a.restoreFilter(key); err != nil {
			a.cfg.Logger.Error("read packet filter", "job", key.Job, "error", err)
		}
	}
	if t.seen, err = readSeen(t.dir); err != nil {
		a.cfg.Logger.Error("read what was seen of the service", "job", key.Job, "error", err)
	}
	if c, err := container.ReadPrepared(t.dir); err == nil {
		t.entry.Image = c.ImageSeen()
	}
	t.entry.Port = readPort(t.dir)
	if t.entry.Ports, err = readOwn(t.dir); err != nil {
		a.cfg.Logger.Error("read ports", "job", key.Job, "error", err)
	}
	if t.assignment != nil && t.entry.Phase != launcher.PhaseEnded {
		// If another process took it meanwhile nothing can be done: the port was already
		// announced.
		if t.hold, err = holdAgain(*t.assignment, ports{port: t.entry.Port, own: t.entry.Ports}, t.hasBegun); err != nil {
			a.cfg.Logger.Warn("hold port again", "job", t.key.Job, "error", err)
		}
	}
	return a.readmit(t)
}

// hasBegun reports whether the journal knows a rank of a step. A shim that was told to
// start, and has written nothing yet, releases its ports with the next Start.
func (t *attempt) hasBegun(step int) bool {
	if !t.assignment.Spec.Stepped() {
		return t.entry.Phase != launcher.PhasePrepared
	}
	return slices.ContainsFunc(t.entry.Ranks, func(r launcher.RankStatus) bool {
		of, _, _ := t.assignment.Local(r.Rank - t.assignment.FirstRank)
		return of == step
	})
}

func (a *Agent) readmit(t *attempt) error {
	a.cfg.Logger.Info("re-attached", "job", t.key.Job, "generation", t.key.Generation, "phase", t.entry.Phase.String())
	a.mu.Lock()
	defer a.mu.Unlock()
	a.add(t)
	return nil
}

func mayHaveRun(told []shim.Event) bool {
	return slices.ContainsFunc(told, func(ev shim.Event) bool { return ev.Kind == shim.Starting })
}

// parseKey reads the name of an attempt's folder, as Key.String writes it.
func parseKey(name string) (launcher.Key, error) {
	job, gen, _ := strings.Cut(name, ".")
	n, err := strconv.ParseUint(gen, 10, 64)
	k := launcher.Key{Job: launcher.JobID(job), Generation: launcher.Generation(n)}
	if err != nil || k.Job.Validate() != nil || n == 0 || k.String() != name {
		return launcher.Key{}, fmt.Errorf("folder %q: not the name of an attempt", name)
	}
	return k, nil
}

// attend passes on the events of the shim's journal from a number on, until the last one.
// When the connection breaks it finds the shim again; when the shim is dead it reaps what
// is left.
func (t *attempt) attend(ctx context.Context, client *shim.Client, from int) {
	for {
		var err error
		if client == nil {
			client, err = shim.Attach(ctx, t.dir)
		}
		if err == nil {
			err = client.Events(ctx, from, func(ev shim.Event) error {
				from = ev.Seq + 1
				return t.tell(ctx, ev)
			})
		}
		if err != nil && errors.Is(err, shim.ErrGone) && ctx.Err() == nil {
			t.a.cfg.Logger.Error("shim lost", "job", t.key.Job, "error", err)
			err = t.reapDead(ctx, from)
		}
		if errors.Is(err, shim.ErrStuck) {
			_ = t.tell(ctx, shim.Event{Kind: shim.Stuck, Rank: shim.AllRanks,
				Why: err.Error()}) // in no journal, hence without a number
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		t.a.cfg.Logger.Error("attend to shim", "job", t.key.Job, "error", err)
		if !pause(ctx, again) {
			return
		}
	}
}

func (t *attempt) tell(ctx context.Context, ev shim.Event) error {
	select {
	case t.news <- t.explained(ctx, ev):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reapDead ends what a dead shim left behind and passes its journal on to the end. As long as a
// process of the attempt is alive it fails and reports nothing: Ended is a promise that
// others build on.
func (t *attempt) reapDead(ctx context.Context, from int) error {
	reap, cancel := context.WithTimeout(ctx, reapWait)
	defer cancel()
	if err := shim.Reap(reap, t.dir); err != nil {
		return err
	}
	told, err := shim.Replay(t.dir)
	if err != nil {
		return err
	}
	if len(told) == 0 && from > 1 {
		return fmt.Errorf("journal in %s is gone: its ranks may still run", t.dir)
	}
	if len(told) == 0 { // it never got a start: Reap adds nothing then
		told = []shim.Event{{Seq: from, Time: time.Now(), Kind: shim.Ended, Rank: shim.AllRanks,
			Why: "its shim died before the start: see the kernel's log"}}
	}
	for _, ev := range told[min(max(from, 1)-1, len(told)):] {
		if err := t.tell(ctx, ev); err != nil {
			return err
		}
	}
	return nil
}

// pause waits, and reports whether to go on.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
