package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
)

const (
	// engineWait bounds what an engine takes to say what it is: less than a job's start time-out, which would
	// not say what was waited for.
	engineWait = 45 * time.Second
	// engineBoot is how long after a boot an engine may come up later than this agent.
	engineBoot = time.Minute
)

// engine connects to the node's, and refuses one that ranks cannot run on.
func (a *Agent) engine(ctx context.Context) (*container.Engine, container.Facts, error) {
	if a.cfg.Containers == nil {
		return nil, container.Facts{}, errors.New("this node starts no containers: leave --image out")
	}
	return openEngine(ctx, a.cfg.Containers.Socket, engineWait)
}

func openEngine(ctx context.Context, socket string, wait time.Duration) (*container.Engine, container.Facts, error) {
	asked, cancel := context.WithTimeoutCause(ctx, wait, errSilent(socket, wait))
	defer cancel()
	e, err := container.Open(asked, socket)
	if err != nil {
		return nil, container.Facts{}, causeOf(asked, err)
	}
	f, err := e.Facts(asked)
	switch {
	case err != nil:
		err = causeOf(asked, err)
	case f.Rootless:
		err = fmt.Errorf("the engine at %s is a rootless one, in which ranks would not be their user: have Docker run by root", socket)
	case f.UsernsRemap:
		err = fmt.Errorf("the engine at %s maps users (userns-remap), so that ranks would not be their user: take that out of /etc/docker/daemon.json", socket)
	}
	if err != nil {
		e.Close()
		return nil, f, err
	}
	return e, f, nil
}

func errSilent(socket string, wait time.Duration) error {
	return fmt.Errorf("the engine at %s is there and gives no answer within %s: `journalctl -u docker` may say why, systemctl restart docker ends that", socket, wait)
}

// causeOf is why a context ended, where that is why something failed.
func causeOf(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// awaitEngine waits for an engine that comes up with the machine, where that has had containers before: a worker
// that takes part again after a boot, or a service that begins with the machine, would be refused for good.
func (a *Agent) awaitEngine(ctx context.Context, as launcher.Assignment) {
	if as.Spec.MainStage().Container == nil || a.cfg.Containers == nil || !a.hasHadBoxes() {
		return
	}
	for told := false; time.Since(a.booted) < engineBoot; told = true {
		e, err := container.Open(ctx, a.cfg.Containers.Socket)
		if err == nil {
			e.Close()
		}
		if !errors.Is(err, container.ErrNoEngine) {
			return
		}
		if !told {
			a.tellPreparing(as.Key, "waits for its container engine, as the machine has just been booted")
		}
		if !pause(ctx, again) {
			return
		}
	}
}
