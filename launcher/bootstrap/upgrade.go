package bootstrap

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// Where the program and the files of an upgrade are.
const (
	previousPath = statePath + "/previous"
	nextPath     = "/usr/local/bin/.sparkrun.next"
	rollbackUnit = "sparkrun-rollback"
)

// standing is what an agent says about its cluster (sparkrun status --json).
type standing struct {
	Cluster, Leader, Self, Problem string
	Nodes                          []peer
}

type peer struct {
	Host, State, Why, Role, Version string
	Protocol                        int
	NoVote                          string `json:"no_vote"`
}

func readStanding(text string) (standing, error) {
	var st standing
	if err := json.Unmarshal([]byte(text), &st); err != nil {
		return st, fmt.Errorf("read sparkrun status --json: %w", err)
	}
	for _, s := range []*string{&st.Cluster, &st.Leader, &st.Self, &st.Problem} {
		*s = plain.Line(*s)
	}
	for i := range st.Nodes {
		n := &st.Nodes[i]
		for _, s := range []*string{&n.Host, &n.State, &n.Why, &n.Role, &n.Version, &n.NoVote} {
			*s = plain.Line(*s)
		}
	}
	return st, nil
}

// self is the host that was asked; nil: it is not in its own list.
func (s standing) self() *peer {
	i := slices.IndexFunc(s.Nodes, func(n peer) bool { return n.Host == s.Self })
	if i < 0 {
		return nil
	}
	return &s.Nodes[i]
}

func (n peer) votes() bool { return n.Role == "leader" || n.Role == "voter" }

// spares says why the cluster cannot do without the agent that was asked, for as long as it
// restarts. Where all voters are there no moment is better: with one or two voters the
// cluster waits as long as the restart takes.
func (s standing) spares() error {
	if s.Leader == "" {
		return fmt.Errorf("its cluster has no leader: %s", cmp.Or(s.Problem, "`sparkrun status` there says more"))
	}
	if n := s.self(); n == nil || !n.votes() {
		return nil
	}
	voters, up := 0, 0
	var gone []string
	for _, n := range s.Nodes {
		if !n.votes() {
			continue
		}
		voters++
		switch {
		case n.State != "ready" && n.State != "drained":
			gone = append(gone, n.Host+" is "+n.State)
		case n.NoVote != "":
			gone = append(gone, n.Host+" takes no part in the vote")
		default:
			up++
		}
	}
	if len(gone) == 0 || up-1 > voters/2 {
		return nil
	}
	return fmt.Errorf("%s: without %s, too, the cluster has no majority (%d of %d voters)", strings.Join(gone, ", "),
		s.Self, up-1, voters)
}

// lookAtMember asks a member's agent, if one runs, and with Upgrade also which program it
// runs: this need not be the installed file, as an upgrade may have been interrupted
// between the two.
func (h *host) lookAtMember(ctx context.Context) error {
	if h.facts.active {
		if st, err := h.ask(ctx); err == nil { // one that does not answer is checked when its turn comes
			h.standing = st
			if n := st.self(); n != nil {
				h.result.Release, h.has = n.Version, Release{n.Version, n.Protocol}
			}
		}
	}
	if h.cfg.Upgrade == nil || h.facts.packaged != "" || h.facts.binary == "" {
		return nil
	}
	there := Release{}
	if text, err := h.asRoot(ctx, lookTimeout, binaryPath+" version --json",
		nil); err == nil { // a program that does not run is to be replaced
		if there, err = readRelease(text); err != nil {
			return err
		}
	}
	if h.facts.binary == h.binary.SHA {
		h.next = there
	}
	if !h.facts.active {
		h.has, h.result.Release = there, there.Version
		return nil
	}
	text, err := h.asRoot(ctx, lookTimeout,
		`sha256sum "/proc/$(systemctl show --property MainPID --value sparkrun)/exe" | cut -d ' ' -f 1`, nil)
	if err != nil {
		return fmt.Errorf("look which program its agent is: %w", err)
	}
	h.facts.running = plain.Line(strings.TrimSpace(text))
	if r := h.binary.Release; r != nil && h.restartReason() == newProgram {
		return h.suits(*r)
	}
	return nil
}

// ask reads what the host's agent says about the cluster.
func (h *host) ask(ctx context.Context) (standing, error) {
	text, err := h.asRoot(ctx, lookTimeout, "sparkrun status --json", nil)
	if err != nil {
		return standing{}, fmt.Errorf("ask its agent for the cluster: %w", err)
	}
	return readStanding(text)
}

// otherRelease reports whether a member, without a package, has another release: replacing
// it is an upgrade.
func (h *host) otherRelease() bool {
	return h.facts.packaged == "" && h.facts.cluster != "" && h.facts.binary != "" && h.facts.binary != h.binary.SHA
}

const (
	newProgram = "for the program that is new"
	newInGroup = "for the new member of the group"
)

// restartReason says why a member's agent, which runs or will run another program, must be
// restarted; empty: it need not.
func (h *host) restartReason() string {
	runsAnother := h.facts.running != "" && h.facts.running != h.binary.SHA
	switch {
	case h.facts.cluster == "":
		return ""
	case h.cfg.Upgrade != nil && h.facts.packaged == "" && (h.otherRelease() || runsAnother):
		return newProgram
	case h.facts.active && h.groupToDo() != "":
		return newInGroup
	}
	return ""
}

// upgraded reports whether the agent runs and is to run another release.
func (h *host) upgraded() bool { return h.restart == newProgram }

// takeTurns orders the members whose agents are to be restarted: those without a vote
// first, the leader last, else as they were named. An agent that does not run waits for no
// other: the others may be waiting for it.
func takeTurns(hosts []*host) {
	var line []*host
	for _, h := range hosts {
		if why := h.restartReason(); h.result.Error == "" && h.facts.active && why != "" {
			h.restart = why
			line = append(line, h)
		}
	}
	slices.SortStableFunc(line, func(x, y *host) int { return cmp.Compare(x.weight(), y.weight()) })
	for i := 1; i < len(line); i++ {
		line[i].after = line[i-1]
	}
}

func (h *host) weight() int {
	switch n := h.standing.self(); {
	case n == nil || !n.votes():
		return 0
	case n.Role == "voter":
		return 1
	}
	return 2
}

func (h *host) turnToDo() string {
	switch {
	case h.restart == "":
		return ""
	case h.after == nil:
		return "see that the cluster can spare it for a moment"
	}
	return "wait for " + h.after.target + ", and see that the cluster can spare it for a moment"
}

// takeTurn waits until the member before is ready again, and the cluster keeps a majority
// without this one.
func (h *host) takeTurn(ctx context.Context) error {
	patience := 15 * time.Second // a leader may be about to be elected
	if h.after != nil {
		select {
		case <-h.after.walked:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if first := h.after.stopped(); first != nil {
			return fmt.Errorf("%s, whose turn was before, failed: nothing was changed here. Repair that one first",
				first.target)
		}
		if !h.cfg.DryRun {
			patience = readyTimeout
		}
	}
	for end := time.Now().Add(patience); ; {
		st, err := h.ask(ctx)
		if err == nil {
			if err = st.spares(); err == nil {
				return nil
			}
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return fmt.Errorf("its agent is not restarted now: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// stopped is the first host in the line up to here that failed by itself; nil: none.
func (h *host) stopped() *host {
	if h.after != nil {
		if first := h.after.stopped(); first != nil {
			return first
		}
	}
	if h.result.Error == "" {
		return nil
	}
	return h
}

// readRelease reads what `sparkrun version --json` says.
func readRelease(text string) (Release, error) {
	var r Release
	if err := json.Unmarshal([]byte(text), &r); err != nil || r.Version == "" {
		return r, fmt.Errorf("read sparkrun version --json: %q", plain.Line(strings.TrimSpace(text[:min(len(text), 200)])))
	}
	r.Version = plain.Line(r.Version)
	return r, nil
}

// suits says why the next release must not replace the one that a host has.
func (h *host) suits(next Release) error {
	if !h.cfg.Upgrade.Downgrade && h.has.Version != "" &&
		(next.Protocol < h.has.Protocol || older(next.Version, h.has.Version)) {
		return fmt.Errorf("it has release %s (protocol %d), and %s (protocol %d) is older: an older one cannot read "+
			"what a newer one has written in the record. --downgrade installs it all the same",
			h.has.Version, h.has.Protocol, next.Version, next.Protocol)
	}
	for _, n := range h.standing.Nodes {
		if n.Version == "" || n.Host == h.standing.Self {
			continue
		}
		if err := h.cfg.Upgrade.Together(next.Protocol, n.Protocol); err != nil {
			return fmt.Errorf("release %s would not work together with %s, which has %s: %w", next.Version, n.Host,
				n.Version, err)
		}
	}
	return nil
}

func (h *host) keepToDo() string {
	if h.restartReason() != newProgram {
		return ""
	}
	return fmt.Sprintf("keep the release that it has (%s) in %s", cmp.Or(h.has.Version, "not known"), previousPath)
}

// keepScript keeps the program that the agent runs, which need not be the installed file,
// its unit, and from standard input the script that puts both back. If no agent runs and
// the host still has to roll back an interrupted upgrade, the installed program has never
// run well: then what was kept before stays, and so does the timer until the next release
// is ready.
const keepScript = `d=` + previousPath + ` t=` + rollbackUnit + `.timer
p=$(systemctl show --property MainPID --value sparkrun)
if [ "${p:-0}" -gt 0 ]; then from=/proc/$p/exe; systemctl stop "$t" 2>/dev/null
elif systemctl is-active --quiet "$t" && [ -e "$d/sparkrun" ]; then exit 0
else from=` + binaryPath + `; fi
rm -rf "$d.new" && mkdir -m 700 "$d.new" && cp "$from" "$d.new/sparkrun" && chmod 755 "$d.new/sparkrun" && cat >"$d.new/rollback" || exit
[ ! -e ` + unitPath + ` ] || cp ` + unitPath + ` "$d.new/sparkrun.service" || exit
sync "$d.new"/* && rm -rf "$d" && mv "$d.new" "$d"
`

// rollbackScript is run by the host's timer, by us, or by a person.
const rollbackScript = `#!/bin/sh
# Puts back the release of sparkrun that was here before the last upgrade. Ranks run on.
d=` + previousPath + ` b=` + binaryPath + ` u=` + unitPath + `
systemctl stop ` + rollbackUnit + `.timer 2>/dev/null
rm -f ` + nextPath + `
cp "$d/sparkrun" "$b.back" && chmod 755 "$b.back" && sync "$b.back" && mv "$b.back" "$b" || exit
if [ -e "$d/sparkrun.service" ] && ! cmp -s "$d/sparkrun.service" "$u"; then
	cp "$d/sparkrun.service" "$u.back" && mv "$u.back" "$u" && systemctl daemon-reload || exit
fi
p=$(systemctl show --property MainPID --value sparkrun)
if [ "${p:-0}" -gt 0 ] && cmp -s "/proc/$p/exe" "$b"; then exit; fi
systemctl reset-failed sparkrun 2>/dev/null
systemctl restart sparkrun
`

// armScript makes the host roll back by itself unless its timer is stopped in time: this
// program or the network may end before the upgrade is known to be good.
var armScript = fmt.Sprintf("{ systemctl stop %[1]s.timer 2>/dev/null; systemctl reset-failed %[1]s.service "+
	"2>/dev/null; "+
	"systemd-run --quiet --collect --unit=%[1]s --on-active=%[2]d sh %[3]s/rollback; }", rollbackUnit,
	int(confirmTimeout.Seconds()), previousPath)

func (h *host) keep(ctx context.Context) error {
	if _, err := h.asRoot(ctx, commandTimeout, keepScript, strings.NewReader(rollbackScript)); err != nil {
		return fmt.Errorf("keep its release in %s: %w", previousPath, err)
	}
	return nil
}

// begins marks that from here on a failure calls for the old release. An agent that did not
// run has nothing to go back to.
func (h *host) begins() {
	if h.upgraded() {
		h.undo = h.rollBack
	}
}

// replace gives the program its name, once its release is known.
func (h *host) replace(ctx context.Context) error {
	err := h.suits(h.next)
	script := "rm -f " + nextPath
	if err == nil {
		h.begins()
		script = "mv " + nextPath + " " + binaryPath
	}
	if _, mvErr := h.asRoot(ctx, commandTimeout, script, nil); mvErr != nil {
		return errors.Join(err, fmt.Errorf("put the program in place: %w", mvErr))
	}
	return err
}

// confirm completes an upgrade: the agent runs the new program, and the host no longer
// rolls back. An earlier, interrupted run may have begun the upgrade.
func (h *host) confirm(ctx context.Context) error {
	if !h.upgraded() && (h.cfg.Upgrade == nil || h.facts.cluster == "" || h.facts.packaged != "") {
		return nil
	}
	script := fmt.Sprintf(`p=$(systemctl show --property MainPID --value sparkrun)
s=$(sha256sum "/proc/$p/exe" | cut -d ' ' -f 1)
[ "$s" = %[1]s ] || { echo "its agent does not run the program that was installed" >&2; exit 1; }
if systemctl is-active --quiet %[2]s.timer; then systemctl stop %[2]s.timer; fi`, h.binary.SHA, rollbackUnit)
	if _, err := h.asRoot(ctx, commandTimeout, script, nil); err != nil {
		return fmt.Errorf("confirm the new release: %w", err)
	}
	h.undo = nil
	return nil
}

// takeBack undoes what was done before a failure, and adds the outcome to the error.
func (h *host) takeBack(ctx context.Context, why error) error {
	undo := h.undo
	h.undo = nil
	if ctx.Err() != nil {
		return fmt.Errorf("%w: if its agent was restarted by then, it goes back to release %s by itself within %s",
			why, h.has.Version, confirmTimeout)
	}
	if err := undo(ctx); err != nil {
		return fmt.Errorf("%w; and it could not be put back to release %s: %w; `sudo sh %s/rollback` there does "+
			"it, and if its agent was restarted the host does it by itself within %s",
			why, h.has.Version, err, previousPath, confirmTimeout)
	}
	h.result.RolledBack = true
	return fmt.Errorf("%w: release %s is back in its place, and ready", why, h.has.Version)
}

// rollBack opens a connection of its own: the failure may have broken the other one.
func (h *host) rollBack(ctx context.Context) error {
	h.tell("rollback", Begins, "put release "+h.has.Version+" back")
	start := time.Now()
	x := *h
	if err := x.connect(ctx); err != nil {
		return err
	}
	defer x.close()
	if _, err := x.asRoot(ctx, startTimeout, "sh "+previousPath+"/rollback", nil); err != nil {
		return err
	}
	x.restart, x.cfg.Upgrade = "", nil // no new release is waited for
	if err := x.awaitReady(ctx); err != nil {
		return err
	}
	h.result.Release = x.result.Release
	h.tell("rollback", Done, fmt.Sprintf("put release %s back (%.1f s)", h.has.Version, time.Since(start).Seconds()))
	return nil
}
