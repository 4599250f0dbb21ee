package bootstrap

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// step is one thing that is done to a host.
type step struct {
	name string
	// looks: it changes nothing, and also runs with DryRun.
	looks bool
	// todo says what there is to do; empty: nothing, for the reason that already gives.
	todo    func(*host) string
	already func(*host) string
	do      func(*host, context.Context) error
}

func always(words string) func(*host) string { return func(*host) string { return words } }

const stepCluster = "cluster"

// examination runs on all hosts before any is changed.
var examination = []step{
	{"connect", true, always("log in"), nil, (*host).connect},
	{"look", true, always("look at it"), nil, (*host).look},
	{"fit", true, always("see whether it is fit"), nil, (*host).fit},
	{"sudo", true, (*host).sudoToDo, always("root logs in"), (*host).becomeRoot},
	{"member", true, always("see whether it is in a cluster"), nil, (*host).lookAsRoot},
}

// installation makes a host a node. What is there already stays.
var installation = []step{
	{"turn", true, (*host).turnToDo, always("waits for nobody"), (*host).takeTurn},
	{"keep", false, (*host).keepToDo, always("there is nothing to keep"), (*host).keep},
	{"binary", false, (*host).binaryToDo, (*host).binaryIs, (*host).putBinary},
	{"unit", false, (*host).unitToDo, always("is there"), (*host).putUnit},
	{"group", false, (*host).groupToDo, always("may launch"), (*host).putGroup},
	{stepCluster, false, (*host).clusterToDo, (*host).clusterIs, (*host).become},
	{"containers", false, (*host).containersToDo, always("are not asked for"), (*host).allowContainers},
	{"start", false, (*host).startToDo, always("runs"), (*host).start},
	{"ready", false, always("wait until it is ready"), nil, (*host).awaitReady},
}

func (h *host) connect(ctx context.Context) error {
	t, err := parseTarget(h.target)
	if err != nil {
		return err
	}
	h.remote, err = h.dialer.dial(ctx, t)
	return err
}

func (h *host) look(ctx context.Context) error {
	before := time.Now()
	text, err := h.run(ctx, lookTimeout, "sh -s", strings.NewReader(factsScript))
	if err != nil {
		return fmt.Errorf("look at the host: %w", err)
	}
	h.facts, err = parseFacts(text, before, time.Now())
	h.result.Host = h.facts.host
	h.looked = err == nil && !h.facts.state
	return err
}

func (h *host) fit(context.Context) error {
	var err error
	// The system matters first: there is no program for another one.
	if h.facts.kernel == "Linux" {
		if h.binary, err = h.cfg.Binary(h.facts.machine); err != nil {
			return err
		}
	}
	return h.facts.evaluate(h.binary, h.cfg.Upgrade != nil && h.facts.packaged == "", h.cfg.Ports, time.Now())
}

func (h *host) sudoToDo() string {
	switch {
	case h.facts.root:
		return ""
	case h.facts.nopasswd:
		return "become root by sudo, without a password"
	}
	return "become root by sudo, with the password of " + h.facts.user
}

func (h *host) lookAsRoot(ctx context.Context) error {
	text, err := h.asRoot(ctx, lookTimeout, "[ ! -e "+memberPath+" ] || cat "+memberPath, nil)
	if err != nil {
		return fmt.Errorf("read %s: %w", memberPath, err)
	}
	if text != "" {
		if h.facts.cluster, err = h.cfg.ClusterOf([]byte(text)); err != nil {
			return err
		}
	}
	h.looked = true
	h.result.Cluster = h.facts.cluster
	if h.facts.cluster == "" {
		return nil
	}
	return h.lookAtMember(ctx)
}

func (h *host) binaryToDo() string {
	switch {
	case h.facts.packaged != "", h.facts.binary == h.binary.SHA, h.otherRelease() && h.cfg.Upgrade == nil:
		return ""
	case h.otherRelease():
		return fmt.Sprintf("copy %s (%d MB) to %s, in place of another release", h.binary.Path, h.binary.Size/1e6, binaryPath)
	}
	return fmt.Sprintf("copy %s (%d MB) to %s", h.binary.Path, h.binary.Size/1e6, binaryPath)
}

// binaryIs says why no program is copied.
func (h *host) binaryIs() string {
	switch {
	case h.facts.packaged != "":
		return "a package has installed it: apt upgrades it"
	case h.otherRelease():
		return "another release is there: --upgrade replaces it"
	}
	return "is there"
}

// putScript replaces a file by standard input, whole or not at all: $1 file, $2 mode, $3
// SHA-256, $4 the arguments with which it must run, if it is a program.
const putScript = `put() {
	d=$(dirname "$1") && t=$(mktemp "$d/.sparkrun.XXXXXX") || exit
	trap 'rm -f "$t"' EXIT
	cat >"$t" || exit
	s=$(sha256sum "$t" | cut -d ' ' -f 1)
	[ "$s" = "$3" ] || { echo "what has arrived is not what was sent: is the disk full, or was the connection " +
		"cut?" >&2; exit 1; }
	chown 0:0 "$t" && chmod "$2" "$t" && sync "$t" || exit
	[ -z "${4-}" ] || "$t" $4 || { echo "the program does not run there" >&2; exit 1; }
	mv "$t" "$1" || exit
	trap - EXIT
}
`

func (h *host) putBinary(ctx context.Context) error {
	f, err := os.Open(h.binary.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	// A member's new program has a temporary name until its release is known.
	path := binaryPath
	if h.otherRelease() {
		path = nextPath
	}
	said, err := h.asRoot(ctx, copyTimeout, putScript+fmt.Sprintf("put %s 755 %s 'version --json'", path, h.binary.SHA), f)
	if err != nil {
		return fmt.Errorf("copy the program to %s: %w", binaryPath, err)
	}
	if h.next, err = readRelease(said); err != nil {
		return err
	}
	if path == nextPath {
		if err := h.replace(ctx); err != nil {
			return err
		}
	}
	h.facts.binary = h.binary.SHA
	return nil
}

func (h *host) unitToDo() string {
	if h.facts.packaged != "" || h.facts.unit == sumOf(h.cfg.Unit) {
		return ""
	}
	return "write " + unitPath
}

func (h *host) putUnit(ctx context.Context) error {
	script := putScript + fmt.Sprintf("put %s 644 %s && systemctl daemon-reload", unitPath, sumOf(h.cfg.Unit))
	if _, err := h.asRoot(ctx, commandTimeout, script, strings.NewReader(h.cfg.Unit)); err != nil {
		return fmt.Errorf("write %s: %w", unitPath, err)
	}
	return nil
}

func sumOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func (h *host) groupToDo() string {
	switch {
	case h.facts.group && h.facts.launches():
		return ""
	case h.facts.root:
		return "make the group " + groupName
	}
	return fmt.Sprintf("make the group %s, and %s a member of it", groupName, h.facts.user)
}

// putGroup restarts a running agent, for an agent gives its socket to those who are in the
// group when it starts; ranks go on.
func (h *host) putGroup(ctx context.Context) error {
	script := "getent group " + groupName + " >/dev/null || groupadd --system " + groupName
	if !h.facts.root {
		script += "; gpasswd -a " + quote(h.facts.user) + " " + groupName + " >/dev/null"
	}
	if _, err := h.asRoot(ctx, commandTimeout, script, nil); err != nil {
		return fmt.Errorf("%s: %w", h.groupToDo(), err)
	}
	if h.facts.active {
		h.restart = cmp.Or(h.restart, newInGroup)
	}
	return nil
}

func (h *host) containersToDo() string {
	if !h.cfg.Containers || h.facts.root {
		return ""
	}
	return h.facts.user + " may run containers (as much as Docker's group gives)"
}

func (h *host) allowContainers(ctx context.Context) error {
	if _, err := h.asRoot(ctx, commandTimeout, "sparkrun init --containers "+quote(h.facts.user), nil); err != nil {
		return fmt.Errorf("allow containers: %w", err)
	}
	return nil
}

func (h *host) clusterToDo() string {
	switch {
	case h.facts.cluster != "":
		return ""
	case h.founds:
		return "found a cluster: sparkrun init"
	}
	return "sparkrun join, the token on standard input"
}

func (h *host) clusterIs() string { return "is a member of cluster " + h.facts.cluster }

func (h *host) become(ctx context.Context) error {
	if h.founds {
		if _, err := h.asRoot(ctx, commandTimeout, "sparkrun init", nil); err != nil {
			return fmt.Errorf("sparkrun init: %w", err)
		}
		return nil
	}
	i, err := h.invite(ctx)
	if err != nil {
		return err
	}
	if _, err := h.asRoot(ctx, commandTimeout, "sparkrun join "+quote(i.Addr)+" --no-start --token-file -",
		strings.NewReader(i.Token+"\n")); err != nil {
		return fmt.Errorf("sparkrun join %s: %w", i.Addr, err)
	}
	return nil
}

func (h *host) startToDo() string {
	switch {
	case h.restart != "":
		return "start the agent anew, " + h.restart
	case h.facts.active && h.facts.enabled:
		h.settle(nil)
		return ""
	case h.facts.active:
		return "have the agent start at boot"
	}
	return "start the agent, now and at each boot"
}

func (h *host) start(ctx context.Context) error {
	script := "systemctl enable --now sparkrun"
	if h.restart != "" {
		script = "systemctl enable sparkrun && systemctl restart sparkrun"
		if h.upgraded() {
			h.begins()
			script = armScript + " && " + script
		}
	}
	// systemctl's own message about a failure only says where to look.
	script += ` || { code=$?; journalctl -u sparkrun -n 3 -o cat --no-pager >&2; exit $code; }`
	if _, err := h.asRoot(ctx, startTimeout, script, nil); err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	h.settle(nil)
	return nil
}

// token makes this host create one.
func (h *host) token(ctx context.Context) (Invitation, error) {
	text, err := h.asRoot(ctx, commandTimeout, "sparkrun token create --json", nil)
	if err != nil {
		return Invitation{}, err
	}
	var t struct {
		Token string   `json:"token"`
		Join  []string `json:"join"`
	}
	if err := json.Unmarshal([]byte(text), &t); err != nil || t.Token == "" || len(t.Join) == 0 {
		return Invitation{}, errors.New("sparkrun token create --json gave no token and address")
	}
	return Invitation{Addr: t.Join[0], Token: t.Token}, nil
}

// awaitReady asks as the login user, not as root, to show that this user can now use
// the agent.
func (h *host) awaitReady(ctx context.Context) error {
	var last error
	for end := time.Now().Add(readyTimeout); time.Now().Before(end); {
		text, err := h.run(ctx, commandTimeout,
			"/usr/bin/env PATH=/usr/local/bin:/usr/bin:/bin sparkrun status --json", &bytes.Reader{})
		if err == nil {
			if err = h.readReady(text); err == nil {
				if err = h.confirm(ctx); err == nil {
					h.result.Ready = true
				}
				return err
			}
		}
		var said *commandError
		if last = err; ctx.Err() != nil || errors.As(err, &said) && strings.Contains(said.words, "in the group") {
			return fmt.Errorf("ask the agent as %s: %w", h.facts.user, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return fmt.Errorf("not ready within %s: %w", readyTimeout, last)
}

func (h *host) readReady(text string) error {
	st, err := readStanding(text)
	if err != nil {
		return err
	}
	h.result.Cluster = st.Cluster
	n := st.self()
	switch {
	case n == nil:
		return fmt.Errorf("it does not see itself in the cluster: %s", st.Problem)
	case n.State != "ready":
		return fmt.Errorf("%s is %s %s", n.Host, n.State, n.Why+st.Problem)
	}
	h.result.Host, h.result.Release = n.Host, n.Version
	if h.upgraded() && (n.Version != h.next.Version || n.Protocol != h.next.Protocol) {
		return fmt.Errorf("%s is a member with release %s, want %s", n.Host, n.Version, h.next.Version)
	}
	return nil
}
