package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/readiness"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// asking is a step whose readiness probes run, beside the loop.
type asking struct {
	stop  context.CancelFunc
	again chan struct{} // capacity 1: report what is known once more
	done  chan struct{} // closed when no probe runs any more
}

// obeyProbe runs the probes of a step until they pass.
func (t *attempt) obeyProbe(ctx context.Context, beside *sync.WaitGroup, ask launcher.AskReady) {
	// A node that is only prepared may be asked to probe the ranks of others, which run.
	if t.assignment == nil || t.entry.Phase != launcher.PhasePrepared && t.entry.Phase != launcher.PhaseStarted ||
		t.ending || ask.Step < 0 || ask.Step >= len(t.assignment.Spec.Steps()) {
		return
	}
	if old := t.asked[ask.Step]; old != nil {
		select {
		case <-old.done:
		default:
			select {
			case old.again <- struct{}{}:
			default:
			}
			return
		}
	}
	ctx, stop := context.WithCancel(ctx)
	now := &asking{stop: stop, again: make(chan struct{}, 1), done: make(chan struct{})}
	t.asked[ask.Step] = now
	as := t.a.atStage(*t.assignment)
	beside.Go(func() {
		defer close(now.done)
		defer stop()
		own, err := readOwn(t.dir)
		if err != nil {
			t.a.cfg.Logger.Error("read ports", "job", as.Job, "error", err)
		}
		at := ports{port: readPort(t.dir), own: own, head: ask.HeadPorts}.found()
		p := &readiness.Prober{Assignment: as, Ask: ask, LogDir: t.a.logDir(as.Key), Again: now.again,
			Placement: func(local int) launcher.Placement {
				_, _, placement := as.Local(local)
				at.fill(&placement)
				return placement
			},
			Tell: func(ev launcher.Event) { t.change(&ev, nil) },
			Exec: func(ctx context.Context, local int, argv []string,
				out func(launcher.Stream, []byte) error) (launcher.Exit, error) {
				e := shim.Exec{Session: fmt.Sprintf("probe-%d-%d", ask.Step, local), Rank: as.FirstRank + local, Argv: argv}
				return t.a.Exec(ctx, as.Key, e, func() error { return nil }, out)
			},
		}
		p.Run(ctx)
	})
}

func (t *attempt) askNoMore() {
	for _, a := range t.asked {
		a.stop()
	}
	if t.unwatch != nil {
		t.unwatch()
	}
}

// watch starts watching a service, once, on rank 0's node.
func (t *attempt) watch(ctx context.Context, beside *sync.WaitGroup) {
	as := t.assignment
	if as == nil || as.Spec.Service == nil || as.NodeRank != 0 || t.unwatch != nil || t.ending ||
		t.entry.Phase != launcher.PhaseStarted {
		return
	}
	ctx, t.unwatch = context.WithCancel(ctx)
	w, before := &readiness.Watcher{Assignment: *as, Servers: t.a.cfg.Servers, Tell: t.served,
		Memory: func() *int64 { return t.a.measured(as.Key) }}, t.seen
	beside.Go(func() {
		own, err := readOwn(t.dir)
		if err == nil {
			w.Port, err = servicePort(*as, ports{port: readPort(t.dir), own: own, head: own})
		}
		if err != nil {
			t.a.cfg.Logger.Error("find the service's port", "job", as.Job, "error", err)
			return
		}
		w.Run(ctx, before)
	})
}

// readSeen gives what a previous agent process has seen of a service; nil: nothing.
func readSeen(dir string) (*launcher.ServiceSeen, error) {
	var seen launcher.ServiceSeen
	err := readJSON(servicePath(dir), &seen)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return nil, err
	}
	return &seen, nil
}

func servicePath(dir string) string { return filepath.Join(dir, "service.json") }

// served reports what was seen of the service, and keeps it in the ledger for later
// leaders. If the state has turned, it is written to disk for a later agent process too.
func (t *attempt) served(seen launcher.ServiceSeen, turned bool) {
	if turned {
		if err := writeJSON(servicePath(t.dir), seen); err != nil {
			t.a.cfg.Logger.Error("keep what was seen of the service", "job", t.key.Job, "error", err)
		}
	}
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	t.entryMu.Lock()
	t.seen = &seen
	t.entryMu.Unlock()
	t.a.emit(launcher.Event{Key: t.key, Kind: launcher.Served, Service: &seen})
}

// servicePort is the address at which the service answers on this node.
func servicePort(as launcher.Assignment, at ports) (string, error) {
	_, _, placement := as.Local(0)
	at.fill(&placement)
	return placement.Resolve(as.Spec.Service.Port)
}

// servicePublished is the service's port in the packet filter's form; none if this is not
// rank 0's node, or the port is not known.
func servicePublished(as launcher.Assignment, at ports) []launcher.Ports {
	if as.Spec.Service == nil || as.NodeRank != 0 {
		return nil
	}
	text, err := servicePort(as, at)
	port, nerr := strconv.ParseUint(text, 10, 16)
	if err != nil || nerr != nil {
		return nil
	}
	return []launcher.Ports{{First: uint16(port), Last: uint16(port)}}
}
