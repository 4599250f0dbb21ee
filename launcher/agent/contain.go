package agent

import (
	"fmt"
	"math/rand/v2"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/login"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// Paths in containers of what the agent lays out for their ranks.
const (
	insideSecrets = "/run/secrets"
	insideErrors  = "/run/sparkrun-errors"
)

// hostConfig configures the containers of this node.
func (a *Agent) hostConfig() container.HostConfig {
	c := container.HostConfig{
		Engine: a.cfg.Containers, Node: a.cfg.Node, Boot: a.cfg.Boot, Incarnation: fmt.Sprintf("%x", rand.Uint64()),
		StateDir: a.cfg.StateDir, MayLimit: shim.MayLimit, Held: a.held, Logger: a.cfg.Logger,
	}
	if a.cfg.Policy != nil {
		c.Contain = a.cfg.Policy.Contain
	}
	return c
}

// Sweep removes containers that were left here, until the agent closes. It is called once.
func (a *Agent) Sweep(ended container.Ended) { a.loops.Go(func() { a.containers.Sweep(a.ctx, ended) }) }

// held are the attempts in the ledger; true: the attempt has not ended.
func (a *Agent) held() map[launcher.Key]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[launcher.Key]bool{}
	for k, t := range a.attempts {
		all[k] = t.snapshot().Phase != launcher.PhaseEnded
	}
	return all
}

// contained describes the attempt whose containers are prepared.
func (a *Agent) contained(as launcher.Assignment, who login.User, hfHome string) container.Attempt {
	at := container.Attempt{Assignment: as, Dir: a.attemptDir(as.Key), User: who, HFHome: hfHome,
		OfImage: a.mountCompiled(as.Spec)}
	errors := errorDir(as.Key, as.Node)
	at.Own = append(at.Own, container.Mount{Source: errors, Target: insideErrors})
	if as.Spec.Stepped() {
		// The stages of a job share this folder: else each has a /tmp of its own. The path
		// is short, for the sockets in it.
		at.Own = append(at.Own, container.Mount{Source: errors, Target: launcher.SharedDir})
	}
	if len(as.Spec.Secrets) > 0 {
		at.Own = append(at.Own, container.Mount{Source: a.secretsDir(as.Key), Target: insideSecrets, ReadOnly: true})
	}
	if as.Spec.Staged != nil {
		at.Own = append(at.Own, container.Mount{Source: a.stageDir(as.Job), Target: a.stageDir(as.Job)})
	}
	return at
}

// putInContainers makes ranks run in containers.
func (a *Agent) putInContainers(c *container.Prepared, as launcher.Assignment, ranks []shim.Rank) {
	for i, r := range ranks {
		ranks[i].Container = &shim.Container{Socket: c.Socket, Spec: a.containers.Rank(c, as, r.Rank, r.CPUs)}
		ranks[i].Dir, ranks[i].RankOptions, ranks[i].CPUs = c.Workdir, launcher.RankOptions{}, nil
	}
}
