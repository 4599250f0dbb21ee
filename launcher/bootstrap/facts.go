package bootstrap

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// Where things are on a host.
const (
	binaryPath = "/usr/local/bin/sparkrun"
	unitPath   = "/etc/systemd/system/sparkrun.service"
	statePath  = "/var/lib/sparkrun"
	memberPath = statePath + "/node.json"
	groupName  = "sparkrun"
	// packagedUnits are the units that a package installs; what a package has installed is
	// not changed.
	packagedUnits = "/usr/lib/systemd/system/sparkrun.service /lib/systemd/system/sparkrun.service"
)

// prologue makes each script independent of the login's profile and locale.
const prologue = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C; export PATH LC_ALL; " +
	"unset CDPATH; "

// factsScript reads all facts that the login can read, as lines of "key value". It changes
// nothing.
const factsScript = prologue + `
say() { printf '%s %s\n' "$1" "$2"; }
say now "$(date +%s.%N)"
say kernel "$(uname -s)"
say machine "$(uname -m)"
say host "$(uname -n)"
say os "$(. /etc/os-release 2>/dev/null && printf %s "$PRETTY_NAME")"
say uid "$(id -u)"
say user "$(id -un)"
[ ! -d /run/systemd/system ] || say systemd "$(systemctl --version | head -n 1)"
say active "$(systemctl is-active sparkrun 2>/dev/null)"
say enabled "$(systemctl is-enabled sparkrun 2>/dev/null)"
say binary "$(sha256sum /usr/local/bin/sparkrun 2>/dev/null | cut -d ' ' -f 1)"
say unit "$(sha256sum /etc/systemd/system/sparkrun.service 2>/dev/null | cut -d ' ' -f 1)"
for f in ` + packagedUnits + `; do [ ! -e $f ] || say packaged $f; done
[ ! -e /var/lib/sparkrun ] || say state yes
say group "$(getent group sparkrun | cut -d : -f 4)"
getent group sparkrun >/dev/null && say groupthere yes
for d in /usr/local/bin /etc/systemd/system /var/lib; do
	say free "$d $(df -Pk $d 2>/dev/null | tail -n 1 | (read -r _ _ _ free _ && echo "$free"))"
done
for f in tcp tcp6; do [ ! -r /proc/net/$f ] || while read -r _ local _ state _; do [ "$state" != 0A ] || say tcp "${local##*:}"; done </proc/net/$f; done
for f in udp udp6; do [ ! -r /proc/net/$f ] || while read -r _ local _ state _; do [ "$state" != 07 ] || say udp "${local##*:}"; done </proc/net/$f; done
if command -v sudo >/dev/null; then
	say sudo yes
	if sudo -n -k true 2>/dev/null; then say nopasswd yes; fi
fi
say end yes
`

// facts are what a host is, before anything is changed there.
type facts struct {
	kernel, machine, host, os string
	user                      string
	root, systemd             bool
	active, enabled           bool
	binary, unit              string // SHA-256; empty: none
	packaged                  string // the unit's path
	state                     bool   // it has been a node, or is one
	group                     bool
	members                   []string
	free                      map[string]int64 // bytes
	tcp, udp                  []int            // ports in use
	sudo, nopasswd            bool
	skew                      time.Duration // ahead of this machine; 0 if within the round trip
	cluster                   string        // by lookAsRoot; empty: it is in none
	running                   string        // by lookAsRoot: SHA-256 of the program that the agent runs; empty: not known
}

// parseFacts reads the output of factsScript, which ran between two moments of this
// machine.
func parseFacts(text string, before, after time.Time) (facts, error) {
	f := facts{free: map[string]int64{}}
	ended := false
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		value = plain.Line(value)
		switch key {
		case "now":
			s, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return f, fmt.Errorf("read its clock: %q is no time", value)
			}
			f.skew = skew(time.Unix(0, int64(s*1e9)), before, after)
		case "kernel":
			f.kernel = value
		case "machine":
			f.machine = value
		case "host":
			f.host = value
		case "os":
			f.os = value
		case "uid":
			f.root = value == "0"
		case "user":
			f.user = value
		case "systemd":
			f.systemd = true
		case "active":
			f.active = value == "active"
		case "enabled":
			f.enabled = value == "enabled"
		case "binary":
			f.binary = value
		case "unit":
			f.unit = value
		case "packaged":
			f.packaged = value
		case "group":
			f.members = strings.FieldsFunc(value, func(r rune) bool { return r == ',' })
		case "state":
			f.state = true
		case "groupthere":
			f.group = true
		case "free":
			dir, kib, _ := strings.Cut(value, " ")
			if n, err := strconv.ParseInt(kib, 10, 64); err == nil {
				f.free[dir] = n << 10
			}
		case "tcp", "udp":
			n, err := strconv.ParseUint(value, 16, 16)
			if err != nil {
				continue
			}
			if key == "tcp" {
				f.tcp = append(f.tcp, int(n))
			} else {
				f.udp = append(f.udp, int(n))
			}
		case "sudo":
			f.sudo = true
		case "nopasswd":
			f.nopasswd = true
		case "end":
			ended = true
		}
	}
	if !ended {
		return f, fmt.Errorf("look at the host: its shell did not run the look to its end: %q",
			plain.Line(strings.TrimSpace(text[:min(len(text), 200)])))
	}
	return f, nil
}

// skew is how far a clock is outside of the interval in which it was read.
func skew(there, before, after time.Time) time.Duration {
	switch {
	case there.Before(before):
		return there.Sub(before)
	case there.After(after):
		return there.Sub(after)
	}
	return 0
}

// minRoom is what a host needs besides the program, in bytes: the record and some output.
const minRoom = 256 << 20

// evaluate returns why a host cannot become a node. A running agent there uses the agent's
// ports itself.
func (f facts) evaluate(b Binary, upgrade bool, ports []int, now time.Time) error {
	switch {
	case f.kernel != "Linux":
		return fmt.Errorf("it runs %s: want Linux", f.kernel)
	case !f.systemd:
		return fmt.Errorf("systemd is not its init system (%s): sparkrun agent must be kept running by hand there", f.os)
	case !f.root && !f.sudo:
		return fmt.Errorf("%s is not root there, and there is no sudo: log in as root@, or install sudo", f.user)
	case f.skew.Abs() > maxSkew:
		ahead := "ahead of"
		if f.skew < 0 {
			ahead = "behind"
		}
		return fmt.Errorf("its clock is %s %s this machine's (%s here): set the wrong one of them (`timedatectl` "+
			"shows, `timedatectl set-ntp true` keeps it right)",
			f.skew.Abs().Round(time.Second), ahead, now.UTC().Format(time.RFC3339))
	}
	if !f.active {
		for _, p := range ports {
			for proto, used := range map[string][]int{"TCP": f.tcp, "UDP": f.udp} {
				if slices.Contains(used, p) {
					return fmt.Errorf("%s port %d is taken there, and the agent needs it: `ss -lnp 'sport = :%d'` "+
						"shows by whom", proto, p, p)
				}
			}
		}
	}
	needs := map[string]int64{"/usr/local/bin": b.Size + 1<<20, "/etc/systemd/system": 64 << 10, "/var/lib": minRoom}
	switch {
	case f.binary == b.SHA, f.active && !upgrade: // what is there already fits
		needs["/usr/local/bin"], needs["/var/lib"] = 0, 0
	case f.active: // the old release is kept
		needs["/var/lib"] = b.Size + 1<<20
	}
	for _, dir := range []string{"/usr/local/bin", "/etc/systemd/system", "/var/lib"} {
		if free, known := f.free[dir]; known && free < needs[dir] {
			return fmt.Errorf("its disk is full: %s has %d MiB free, and %d are needed", dir, free>>20, needs[dir]>>20)
		}
	}
	return nil
}

// launches reports whether the login may use the agent's socket by its group.
func (f facts) launches() bool { return f.root || slices.Contains(f.members, f.user) }
