package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// removal makes a host bare again. It must be in no cluster by then: what takes it
// out revokes its certificate, and that is not done here.
var removal = []step{
	{"connect", true, always("log in"), "", (*host).connect},
	{"look", true, always("look at it"), "", (*host).look},
	{"sudo", true, (*host).sudoToDo, "root logs in", (*host).becomeRoot},
	{"member", true, always("see that it is in no cluster"), "", (*host).lookNoMember},
	{"remove", false, (*host).removeToDo, "there is nothing", (*host).remove},
}

// Down takes off the hosts what Up has brought: unit, program, group, and all that
// the agent has kept, output of jobs included. Of Config it uses Targets, SSH,
// ClusterOf, DryRun and Tell. A host that is in a cluster, or on which ranks run, is
// refused, and stops no other.
func Down(ctx context.Context, cfg Config) ([]Result, error) {
	hosts, end, err := start(cfg)
	if err != nil {
		return nil, err
	}
	defer end()
	each(hosts, func(h *host) { h.walk(ctx, removal) })
	return results(hosts), nil
}

func (h *host) lookNoMember(ctx context.Context) error {
	if err := h.lookAsRoot(ctx); err != nil {
		return err
	}
	switch {
	case h.facts.cluster != "":
		return fmt.Errorf("it is in cluster %s: take it out first (`sudo sparkrun leave` there)", h.facts.cluster)
	case h.facts.packaged != "":
		return errors.New("a package has installed sparkrun there: `sudo apt purge sparkrun` removes it")
	}
	units, err := h.asRoot(ctx, lookTimeout, "systemctl list-units --plain --no-legend 'sparkrun-*.scope'", nil)
	if err != nil {
		return fmt.Errorf("look for ranks: %w", err)
	}
	if units != "" {
		unit, _, _ := strings.Cut(units, " ")
		return fmt.Errorf("ranks run there (%s): stop their job first", printable(unit))
	}
	return nil
}

func (h *host) removeToDo() string {
	if h.facts.binary == "" && h.facts.unit == "" && !h.facts.state && !h.facts.group {
		return ""
	}
	return "remove agent, program, group and " + statePath
}

// remove begins with what keeps the rest in use; after a failure it can be run again.
func (h *host) remove(ctx context.Context) error {
	script := "if [ -e " + unitPath + " ]; then systemctl disable --now sparkrun || exit; fi; " +
		"rm -f " + unitPath + " && systemctl daemon-reload && rm -rf " + statePath + " /run/sparkrun && rm -f " + binaryPath + " || exit; " +
		"! getent group " + groupName + " >/dev/null || groupdel " + groupName
	if _, err := h.asRoot(ctx, commandTimeout, script, nil); err != nil {
		return fmt.Errorf("remove sparkrun: %w", err)
	}
	return nil
}
