package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// entry leads to where the host can be changed.
var entry = []step{
	{"connect", true, always("log in"), nil, (*host).connect},
	{"look", true, always("look at it"), nil, (*host).look},
	{"sudo", true, (*host).sudoToDo, always("root logs in"), (*host).becomeRoot},
}

// departure comes between the two for a host that is to leave its cluster: not before it is
// known that the rest can be done.
var departure = []step{{"out", false, always("take it out of its cluster"), nil, (*host).takeOut}}

// removal makes a host bare again. By then it must be in no cluster: leaving one revokes
// its certificate, which is not done here.
var removal = []step{
	{"member", true, always("see that it is in no cluster"), nil, (*host).lookNoMember},
	{"remove", false, (*host).removeToDo, always("there is nothing"), (*host).remove},
}

// outPatience is how long an agent that was removed from its cluster may take to stop.
const outPatience = 30 * time.Second

// Down removes from the hosts what Up has brought: unit, program, group, and all files of
// the agent, output of jobs included. Of Config it uses Targets, SSH, ClusterOf, Out,
// DryRun and Tell. A host that is in a cluster, or on which ranks run, is refused; the
// others go on.
func Down(ctx context.Context, cfg Config) ([]Result, error) {
	hosts, end, err := start(cfg)
	if err != nil {
		return nil, err
	}
	defer end()
	steps := slices.Concat(entry, removal)
	if cfg.Out != nil {
		steps = slices.Concat(entry, departure, removal)
	}
	each(hosts, func(h *host) { h.walk(ctx, steps) })
	return results(hosts), nil
}

var errPackaged = errors.New("a package has installed sparkrun there: `sudo apt purge sparkrun` removes it")

// takeOut returns when the host's agent has given up its membership.
func (h *host) takeOut(ctx context.Context) error {
	if h.facts.packaged != "" {
		return errPackaged
	}
	if err := h.cfg.Out(ctx, h.facts.host); err != nil {
		return err
	}
	wait := "while [ -e " + memberPath + " ]; do sleep 0.2; done"
	if _, err := h.asRoot(ctx, outPatience, wait, nil); err != nil {
		return fmt.Errorf("its cluster has removed it, and its agent keeps %s: run `sudo sparkrun leave --force` "+
			"there, then `sparkrun down %s`: %w", memberPath, h.target, err)
	}
	return nil
}

func (h *host) lookNoMember(ctx context.Context) error {
	if err := h.lookAsRoot(ctx); err != nil {
		return err
	}
	switch {
	case h.facts.cluster != "":
		return fmt.Errorf("it is in cluster %s: take it out first (`sparkrun node remove` on a member, or `sudo "+
			"sparkrun leave` there)", h.facts.cluster)
	case h.facts.packaged != "":
		return errPackaged
	}
	units, err := h.asRoot(ctx, lookTimeout, "systemctl list-units --plain --no-legend 'sparkrun-*.scope'", nil)
	if err != nil {
		return fmt.Errorf("look for ranks: %w", err)
	}
	if units != "" {
		unit, _, _ := strings.Cut(units, " ")
		return fmt.Errorf("ranks run there (%s): stop their job first", plain.Line(unit))
	}
	return nil
}

func (h *host) removeToDo() string {
	if h.facts.binary == "" && h.facts.unit == "" && !h.facts.state && !h.facts.group {
		return ""
	}
	return "remove agent, program, group and " + statePath
}

// remove begins with what uses the rest; after a failure it can be run again.
func (h *host) remove(ctx context.Context) error {
	script := "systemctl stop " + rollbackUnit + ".timer 2>/dev/null; if [ -e " + unitPath + " ]; then systemctl " +
		"disable --now sparkrun || exit; fi; " +
		"rm -f " + unitPath + " && systemctl daemon-reload && rm -rf " + statePath + " /run/sparkrun && rm " +
		"-f " + binaryPath + " " + nextPath + " || exit; " +
		"! getent group " + groupName + " >/dev/null || groupdel " + groupName
	if _, err := h.asRoot(ctx, commandTimeout, script, nil); err != nil {
		return fmt.Errorf("remove sparkrun: %w", err)
	}
	return nil
}
