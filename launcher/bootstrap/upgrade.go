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

// Where a release is that is being replaced, and the one that replaces it.
const (
	previousPath = statePath + "/previous"
	nextPath     = "/usr/local/bin/.sparkrun.next"
	rollbackUnit = "sparkrun-rollback"
)

// standing is what an agent says of its cluster (sparkrun status --json).
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

// self is the host that was asked; nil: it does not see itself.
func (s standing) self() *peer {
	i := slices.IndexFunc(s.Nodes, func(n peer) bool { return n.Host == s.Self })
	if i < 0 {
		return nil
	}
	return &s.Nodes[i]
}

func (n peer) votes() bool { return n.Role == "leader" || n.Role == "voter" }

// spares says why the cluster cannot do without the agent that was asked, for as long as that starts anew. Where all
// voters are there no moment is better: a sole voter, or one of two, is missed for as long, and its cluster waits.
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

// lookAtMember asks a member's agent, where one runs, and with Upgrade which program it is: that need not be the one
// that lies there, as an upgrade may have been interrupted between the two.
func (h *host) lookAtMember(ctx context.Context) error {
	if h.facts.active {
		if st, err := h.ask(ctx); err == nil { // one that does not answer is seen in its turn
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
		nil); err == nil { // one that does not run is to be replaced
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
	if r := h.binary.Release; r != nil && h.anew() == newProgram {
		return h.suits(*r)
	}
	return nil
}

// ask is what its agent says of the cluster.
func (h *host) ask(ctx context.Context) (standing, error) {
	text, err := h.asRoot(ctx, lookTimeout, "sparkrun status --json", nil)
	if err != nil {
		return standing{}, fmt.Errorf("ask its agent for the cluster: %w", err)
	}
	return readStanding(text)
}

// otherRelease is that of a member, of which no package is the owner: replacing it is an upgrade.
func (h *host) otherRelease() bool {
	return h.facts.packaged == "" && h.facts.cluster != "" && h.facts.binary != "" && h.facts.binary != h.binary.SHA
}

const (
	newProgram = "for the program that is new"
	newInGroup = "for the new member of the group"
)

// anew says why a member's agent, which runs or is to run another program, is to be started anew; empty: it is not.
func (h *host) anew() string {
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

// upgraded: its agent runs, and is to run another release.
func (h *host) upgraded() bool { return h.restart == newProgram }

// takeTurns orders the members whose agents are to be started anew: those without a vote first, the leader last, else
// as they were named. An agent that does not run waits for nobody: the others may be waiting for it.
func takeTurns(hosts []*host) {
	var line []*host
	for _, h := range hosts {
		if why := h.anew(); h.result.Error == "" && h.facts.active && why != "" {
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

// takeTurn waits until the member before is ready again, and the cluster has a majority to spare.
func (h *host) takeTurn(ctx context.Context) error {
	patience := 15 * time.Second // a leader may be on its way
	if h.after != nil {
		select {
		case <-h.after.walked:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if first := h.after.stopped(); first != nil {
			return fmt.Errorf("%s, whose turn was before, failed: this one is as it was. Mend that one first", first.target)
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
			return fmt.Errorf("its agent is not started anew now: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// stopped is the one in the line up to here that failed by itself; nil: none.
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

// suits says why the next release must not come in the place of the one that a host has.
func (h *host) suits(next Release) error {
	if !h.cfg.Upgrade.Downgrade && h.has.Version != "" && (next.Protocol < h.has.Protocol || older(next.Version, h.has.Version)) {
		return fmt.Errorf("it has release %s (protocol %d), and %s (protocol %d) is older: an older one stops at "+
			"what a newer one has written in the record. --downgrade puts it there all the same",
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
	if h.anew() != newProgram {
		return ""
	}
	return fmt.Sprintf("keep the release that it has (%s) in %s", cmp.Or(h.has.Version, "not known"), previousPath)
}

// keepScript keeps the program that the agent is, which need not be the one that lies there, its unit, and from
// standard input what puts both back. Where no agent runs and the host is yet to go back from an upgrade that was
// broken off, what lies there has never run well: what is kept stays, and so does the timer until the next release is
// ready.
const keepScript = `d=` + previousPath + ` t=` + rollbackUnit + `.timer
p=$(systemctl show --property MainPID --value sparkrun)
if [ "${p:-0}" -gt 0 ]; then from=/proc/$p/exe; systemctl stop "$t" 2>/dev/null
elif systemctl is-active --quiet "$t" && [ -e "$d/sparkrun" ]; then exit 0
else from=` + binaryPath + `; fi
rm -rf "$d.new" && mkdir -m 700 "$d.new" && cp "$from" "$d.new/sparkrun" && chmod 755 "$d.new/sparkrun" && cat >"$d.new/rollback" || exit
[ ! -e ` + unitPath + ` ] || cp ` + unitPath + ` "$d.new/sparkrun.service" || exit
sync "$d.new"/* && rm -rf "$d" && mv "$d.new" "$d"
`

// rollbackScript is run by the host, or by us, or by a person there.
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

// armScript has the host go back by itself unless it is told in time that all is well: this program may end, and the
// network may, before that is known.
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

// begins: from here on a failure calls for the release before. An agent that did not run has nothing to go back to.
func (h *host) begins() {
	if h.upgraded() {
		h.undo = h.rollBack
	}
}

// replace gives the program its name, now that it has said which release it is.
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

// confirm ends what an upgrade has begun: its agent is the new program, and the host does not go back any more. It may
// be an earlier one that has begun it, and was broken off.
func (h *host) confirm(ctx context.Context) error {
	if !h.upgraded() && (h.cfg.Upgrade == nil || h.facts.cluster == "" || h.facts.packaged != "") {
		return nil
	}
	script := fmt.Sprintf(`p=$(systemctl show --property MainPID --value sparkrun)
s=$(sha256sum "/proc/$p/exe" | cut -d ' ' -f 1)
[ "$s" = %[1]s ] || { echo "its agent is not the program that was put there" >&2; exit 1; }
if systemctl is-active --quiet %[2]s.timer; then systemctl stop %[2]s.timer; fi`, h.binary.SHA, rollbackUnit)
	if _, err := h.asRoot(ctx, commandTimeout, script, nil); err != nil {
		return fmt.Errorf("confirm the new release: %w", err)
	}
	h.undo = nil
	return nil
}

// takeBack undoes what was done before a failure, and says what has come of it.
func (h *host) takeBack(ctx context.Context, why error) error {
	undo := h.undo
	h.undo = nil
	if ctx.Err() != nil {
		return fmt.Errorf("%w: if its agent was started anew by then, it goes back to release %s by itself within %s",
			why, h.has.Version, confirmTimeout)
	}
	if err := undo(ctx); err != nil {
		return fmt.Errorf("%w; and it could not be put back to release %s: %w; `sudo sh %s/rollback` there does "+
			"it, and if its agent was started anew the host does it within %s by itself",
			why, h.has.Version, err, previousPath, confirmTimeout)
	}
	h.result.RolledBack = true
	return fmt.Errorf("%w: release %s is back in its place, and ready", why, h.has.Version)
}

// rollBack uses a connection of its own: what has failed may have cost the other.
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
