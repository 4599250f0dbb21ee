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
	// systemdRuntime exists where systemd is PID 1 (sd_booted(3)).
	systemdRuntime = "/run/systemd/system"
	// systemdSocket is systemd's own D-Bus endpoint: it is there without a bus
	// daemon, and root's alone.
	systemdSocket = "/run/systemd/private"
	// scopeSlice is what an administrator limits all jobs together by.
	scopeSlice = "sparkrun.slice"
	// scopeWait bounds the wait for systemd. It answers in milliseconds; one
	// that doesn't must keep no job from starting.
	scopeWait = 5 * time.Second
)

// enterScope moves this process into a transient scope of its own, which
// outlives a restart of the unit that the agent runs in: a unit with sub-groups
// of its own fails `systemctl restart` (219/CGROUP). Delegate hands the group
// below the scope to us; systemd removes the scope once it is empty.
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

// dialPeer connects to a D-Bus peer, with whom there is no hello as with a bus.
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

// home finds the ranks a cgroup: below a scope of their own where systemd
// keeps the tree, else one that is made beside it. An error means none.
func home(name string, warn func(string, error)) (*cgroup, error) {
	_, err := os.Stat(systemdRuntime)
	if err != nil || os.Geteuid() != 0 {
		return makeCgroup(cgroupRoot, name)
	}
	scope := "sparkrun-" + name + ".scope"
	if err := enterScope(context.Background(), systemdSocket, scope); err != nil {
		warn("no scope, a cgroup is made beside systemd's", err)
		return makeCgroup(cgroupRoot, name)
	}
	mount, v2, err := cgroupMount(cgroupRoot)
	if err != nil {
		return nil, err
	}
	if own := ownCgroup(v2); strings.HasSuffix(own, "/"+scope) {
		return newCgroup(mount, filepath.Join(mount, own, "ranks"))
	}
	return makeCgroup(cgroupRoot, name) // systemd keeps another hierarchy than the one that can kill
}
