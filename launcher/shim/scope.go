package shim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

const (
	// systemdRuntime exists if systemd is PID 1 (sd_booted(3)).
	systemdRuntime = "/run/systemd/system"
	// systemdSocket is systemd's own D-Bus endpoint: it needs no bus daemon, and only root
	// may use it.
	systemdSocket = "/run/systemd/private"
	// scopeSlice is where an administrator can limit all jobs together.
	scopeSlice = "sparkrun.slice"
	// scopeWait bounds the wait for systemd. It answers in milliseconds; a systemd that
	// does not must not keep jobs from starting.
	scopeWait = 5 * time.Second
)

// enterScope moves this process into a transient scope of its own, which outlives a restart
// of the agent's unit: a unit with sub-groups of its own fails `systemctl restart`
// (219/CGROUP). Delegate gives us the group below the scope; systemd removes the scope once
// it is empty.
func enterScope(ctx context.Context, socket, name string) error {
	ctx, cancel := context.WithTimeout(ctx, scopeWait)
	defer cancel()
	conn, err := systemd.NewConnection(func() (*dbus.Conn, error) { return dialPeer(ctx, socket) })
	if err != nil {
		return fmt.Errorf("enter scope %s: %w", name, err)
	}
	defer conn.Close()
	done := make(chan string, 1)
	_, err = conn.StartTransientUnitContext(ctx, name, "fail", []systemd.Property{
		systemd.PropDescription("Ranks of a sparkrun job"),
		systemd.PropSlice(scopeSlice),
		systemd.PropPids(uint32(os.Getpid())),
		{Name: "Delegate", Value: dbus.MakeVariant(true)},
		{Name: "CollectMode", Value: dbus.MakeVariant("inactive-or-failed")},
	}, done)
	if err != nil {
		return fmt.Errorf("enter scope %s: %w", name, err)
	}
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("enter scope %s: systemd says %q: see journalctl -u %s", name, result, name)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("enter scope %s: %w", name, context.Cause(ctx))
	}
}

// dialPeer connects to a D-Bus peer, which takes no hello as a bus does.
func dialPeer(ctx context.Context, socket string) (*dbus.Conn, error) {
	conn, err := dbus.Dial("unix:path="+dbus.EscapeBusAddressValue(socket), dbus.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	if err := conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Geteuid()))}); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// ranksCgroup makes a cgroup for the ranks: below a scope of their own if systemd manages the
// tree, else beside systemd's. An error means none.
func ranksCgroup(name string, warn func(string, error)) (*cgroup, error) {
	_, err := os.Stat(systemdRuntime)
	if err != nil || os.Geteuid() != 0 {
		return makeCgroup(cgroupRoot, name)
	}
	scope := "sparkrun-" + name + ".scope"
	if err := enterScope(context.Background(), systemdSocket, scope); err != nil {
		warn("no scope: a cgroup is made beside systemd's", err)
		return makeCgroup(cgroupRoot, name)
	}
	mount, v2, err := cgroupMount(cgroupRoot)
	if err != nil {
		return nil, err
	}
	if own := ownCgroup(v2); strings.HasSuffix(own, "/"+scope) {
		return newCgroup(mount, filepath.Join(mount, own, "ranks"))
	}
	return makeCgroup(cgroupRoot, name) // systemd uses another hierarchy than the one that can kill
}
