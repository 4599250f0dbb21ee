package doctor

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// run runs a program. Its environment is fixed, so that nothing in the agent's changes what it prints.
func run(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = []string{"PATH=" + systemPath, "LC_ALL=C", "HOME=/nonexistent"}
	cmd.WaitDelay = 200 * time.Millisecond // a child of it may hold its output
	out, err := cmd.Output()
	if len(out) > maxFile {
		return nil, fmt.Errorf("%s prints more than %d bytes", name, maxFile)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		first, _, _ := strings.Cut(strings.TrimSpace(string(exit.Stderr)), "\n")
		err = fmt.Errorf("%w: %s", err, first)
	}
	return out, err
}

// bounded runs a program for at most Patience.
func (r *Reader) bounded(ctx context.Context, name string, args ...string) ([]byte, error) {
	return r.boundedBy(ctx, r.cfg.Patience, name, args...)
}

func (r *Reader) boundedBy(ctx context.Context, patience time.Duration, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := r.cfg.Run(ctx, name, args...)
	if ctx.Err() != nil {
		err = fmt.Errorf("%s %s gave no answer within %s", name, args[0], patience)
	}
	return out, err
}

// docker asks the engine. It looks for the client first, since asking starts a process.
func (r *Reader) docker(ctx context.Context) Docker {
	var d Docker
	for _, path := range []string{"/usr/bin/docker", "/usr/local/bin/docker", "/bin/docker"} {
		if r.exists(path) {
			d.Installed = path
			break
		}
	}
	for _, pattern := range []string{"/etc/cdi/*", "/var/run/cdi/*"} {
		for _, path := range r.glob(pattern) {
			if kind := parseCDIKind(r.text(path)); kind != "" {
				d.CDI = append(d.CDI, kind)
			}
		}
	}
	if d.Installed == "" {
		return d
	}
	// On a busy machine this counts containers and images for seconds.
	out, err := r.boundedBy(ctx, 3*r.cfg.Patience, "docker", "info", "--format", "{{json .}}")
	version, trouble, runtimes, parseErr := parseDockerInfo(out)
	d.Version, d.Trouble, d.Runtimes = version, trouble, runtimes
	if err == nil {
		err = parseErr
	}
	if d.Version == "" && d.Trouble == "" && err != nil {
		d.Trouble = "docker info: " + err.Error()
	}
	return d
}

// firewall reads the packet filter; nil where neither program can read it.
func (r *Reader) firewall(ctx context.Context) *Firewall {
	if out, err := r.bounded(ctx, "nft", "-j", "list", "ruleset"); err == nil {
		if f, err := parseNft(out, r.cfg.Ports); err == nil {
			return &f
		}
	}
	if out, err := r.bounded(ctx, "iptables", "-S"); err == nil {
		f := parseIptables(string(out), r.cfg.Ports)
		return &f
	}
	return nil
}

// synchronised asks the kernel whether the clock is synchronised.
func synchronised() (bool, error) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0, err
}
