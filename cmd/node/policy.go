package node

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/policy"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// allows asks this node's policy about a user's ranks, as the file is now: a
// change of it needs no word to the agent. Ranks that run are left alone.
func (n *node) allows(ctx context.Context, user string) error {
	p, err := policy.Read(n.cfg.Paths.Policy)
	if err != nil {
		return err
	}
	var groups []string
	if p.NeedsGroups() {
		if groups, err = groupsOf(ctx, user); err != nil {
			return err
		}
	}
	return p.Launch(n.m.Host, user, groups)
}

// allowsSpec is what the agent asks in prepare. A no is written down here: that the
// leader's order was taken is all that its line tells.
func (n *node) allowsSpec(ctx context.Context, spec launcher.Spec) error {
	err := n.allows(ctx, spec.User)
	if err != nil && !passing(err) {
		n.audit.Add(audit.Line{What: "run ranks", Who: spec.User, On: string(spec.ID), Outcome: audit.Refused, Why: err.Error()})
	}
	return err
}

// mayLaunchFrom is asked where a launch is typed, before anything is placed.
func (n *node) mayLaunchFrom(ctx context.Context, c wire.Caller, user string) error {
	if c.Node != "" || c.Forwarded() {
		return nil // its own agent has been asked
	}
	if err := n.allows(ctx, user); err != nil {
		return fmt.Errorf("launch: %w: %w", wire.ErrDenied, err)
	}
	return nil
}

// groupsOf gives the names of a user's groups as the C library knows them: LDAP's
// and SSSD's are in no file.
func groupsOf(ctx context.Context, user string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "id", "-Gnz", "--", user).Output()
	if err != nil {
		return nil, fmt.Errorf("find the groups of %s: %w", user, err)
	}
	return strings.Split(strings.Trim(string(out), "\x00"), "\x00"), nil
}
