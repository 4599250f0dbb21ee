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

// run runs a program for real. It gets a bare environment: nothing of the agent's may change what it prints.
func run(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = []string{"PATH=" + systemPath, "LC_ALL=C", "HOME=/nonexistent"}
	cmd.WaitDelay = 200 * time.Millisecond // what it started may hold its output
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

// try runs a program for as long as patience lasts.
func (r *Reader) try(ctx context.Context, name string, args ...string) ([]byte, error) {
	return r.tryFor(ctx, r.cfg.Patience, name, args...)
}

func (r *Reader) tryFor(ctx context.Context, patience time.Duration, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := r.cfg.Run(ctx, name, args...)
	if ctx.Err() != nil {
		err = fmt.Errorf("%s %s gave no answer within %s", name, args[0], patience)
	}
	return out, err
}

// docker asks the engine. Its client is looked for first: asking costs a process.
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
	// On a busy machine it counts containers and images for seconds.
	out, err := r.tryFor(ctx, 3*r.cfg.Patience, "docker", "info", "--format", "{{json .}}")
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

// firewall reads the packet filter; nil where neither program can.
func (r *Reader) firewall(ctx context.Context) *Firewall {
	if out, err := r.try(ctx, "nft", "-j", "list", "ruleset"); err == nil {
		if f, err := parseNft(out, r.cfg.Ports); err == nil {
			return &f
		}
	}
	if out, err := r.try(ctx, "iptables", "-S"); err == nil {
		f := parseIptables(string(out), r.cfg.Ports)
		return &f
	}
	return nil
}

// synchronised asks the kernel whether something keeps its clock.
func synchronised() (bool, error) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0, err
}
