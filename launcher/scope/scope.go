// Package scope has systemd keep a job's processes in a unit of their own, which outlives a restart of the agent's:
// a unit with groups of its own below it fails `systemctl restart` (219/CGROUP). It must not know what runs there.
package scope

import (
	"context"
	"fmt"
	"os"
	"strconv"
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
	// slice is where an administrator can limit all jobs together.
	slice = "sparkrun.slice"
	// wait bounds the wait for systemd. It answers in milliseconds; a systemd that
	// does not must not keep jobs from starting.
	wait = 5 * time.Second
)

// Managed tells whether systemd manages this machine's units and does as we ask.
func Managed() bool {
	_, err := os.Stat(systemdRuntime)
	return err == nil && os.Geteuid() == 0
}

// Enter moves a process into a transient scope of that name. Delegate gives us the group below it; systemd removes
// the scope once it is empty.
//
// A connection that is kept would hear of every unit of the machine.
func Enter(ctx context.Context, name string, pid int) error {
	return enter(ctx, systemdSocket, name, pid)
}

func enter(ctx context.Context, socket, name string, pid int) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	conn, err := systemd.NewConnection(func() (*dbus.Conn, error) { return dialPeer(ctx, socket) })
	if err != nil {
		return fmt.Errorf("enter scope %s: %w", name, err)
	}
	defer conn.Close()
	done := make(chan string, 1)
	_, err = conn.StartTransientUnitContext(ctx, name, "fail", []systemd.Property{
		systemd.PropDescription("Ranks of a sparkrun job"),
		systemd.PropSlice(slice),
		systemd.PropPids(uint32(pid)),
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
