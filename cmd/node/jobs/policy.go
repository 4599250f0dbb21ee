package jobs

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/policy"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Policy is what this node's administrator allows users. The file is read at each
// question, so that a change needs no restart of the agent. Ranks that run are left
// alone.
type Policy struct {
	Path  string
	Host  string
	Audit *audit.Log
}

func (a Policy) allows(ctx context.Context, user string) error {
	p, groups, err := a.read(ctx, user)
	if err != nil {
		return err
	}
	return p.Launch(a.Host, user, groups)
}

// read gives the policy, and the user's groups where the policy needs them.
func (a Policy) read(ctx context.Context, user string) (p policy.Policy, groups []string, err error) {
	if p, err = policy.Read(a.Path); err == nil && p.NeedsGroups() {
		groups, err = groupsOf(ctx, user)
	}
	return p, groups, err
}

// Run is asked before ranks are prepared here. A refusal goes to the audit log, whose
// other line says only that the leader's order was taken.
func (a Policy) Run(ctx context.Context, spec launcher.Spec) error {
	err := a.allows(ctx, spec.User)
	if err != nil && !errors.Is(err, context.Canceled) {
		a.Audit.Add(audit.Line{
			What: "run ranks", Who: spec.User, On: string(spec.ID), Outcome: audit.Refused, Why: err.Error(),
		})
	}
	return err
}

// Launch is asked on the node where a launch is typed, before anything is placed.
func (a Policy) Launch(ctx context.Context, c wire.Caller, user string) error {
	if c.Node != "" || c.Forwarded() {
		return nil // its own agent has been asked
	}
	if err := a.allows(ctx, user); err != nil {
		return fmt.Errorf("launch: %w: %w", wire.ErrDenied, err)
	}
	return nil
}

// Contain is asked about what a user requests of this node's container engine.
func (a Policy) Contain(ctx context.Context, w container.Wish) error {
	p, groups, err := a.read(ctx, w.User)
	if err != nil {
		return err
	}
	if err := p.Containers(a.Host, w.User, groups); err != nil {
		return err
	}
	if err := p.Image(a.Host, w.Image); err != nil {
		return err
	}
	for _, m := range w.Mounts {
		if err := p.Mount(a.Host, m); err != nil {
			return err
		}
	}
	if len(w.Elevates) == 0 {
		return nil
	}
	return p.Elevate(a.Host, w.User, groups, w.Elevates)
}

// groupsOf gives the names of a user's groups as the C library knows them: those of LDAP
// and SSSD are in no file.
func groupsOf(ctx context.Context, user string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "id", "-Gnz", "--", user).Output()
	if err != nil {
		return nil, fmt.Errorf("find the groups of %s: %w", user, err)
	}
	return strings.Split(strings.Trim(string(out), "\x00"), "\x00"), nil
}
