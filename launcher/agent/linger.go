package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/login"
)

// linger keeps logind from removing the shared memory and semaphores of users whose ranks
// run. With RemoveIPC=yes, its default, logind does that when the user's last session ends
// (logind.conf(5)), as after `launch -d` and a logout. It spares a user who lingers. It
// also spares system users, hence firstUser.
//
// dir has a file for each user for whom we turned lingering on; like lingering itself it
// survives reboots. The file is written before logind is asked, so that after any
// interruption a later pass can undo it.
type linger struct {
	dir string // empty: logind is left alone
	// set asks logind to turn lingering on or off; a field, for tests.
	set func(ctx context.Context, uid uint32, on bool) error
	// lingers reports whether a user lingers already: then we do not end it.
	lingers func(name string) bool

	mu sync.Mutex // one pass at a time
}

// firstUser is where ordinary users begin (SYS_UID_MAX in login.defs(5)).
const firstUser = 1000

func newLinger(dir string) *linger {
	if _, err := os.Stat("/run/systemd/system"); err != nil || os.Geteuid() != 0 {
		dir = "" // no logind, or not root
	}
	return &linger{dir: dir, set: setUserLinger, lingers: func(name string) bool {
		_, err := os.Stat(filepath.Join("/var/lib/systemd/linger", name))
		return err == nil
	}}
}

// settle turns lingering on for the users that wanted gives, by name and uid, and off again
// for those who are gone.
func (l *linger) settle(ctx context.Context, wanted func() map[string]uint32) error {
	if l.dir == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	ours := map[uint32]bool{}
	held, err := os.ReadDir(l.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("hold users' IPC: %w", err)
	}
	for _, f := range held {
		uid, err := strconv.ParseUint(f.Name(), 10, 32)
		if err == nil {
			ours[uint32(uid)] = true
		}
	}
	for name, uid := range wanted() {
		if uid >= firstUser && !ours[uid] && !l.lingers(name) {
			errs = append(errs, l.take(ctx, uid))
		}
		delete(ours, uid)
	}
	for uid := range ours {
		errs = append(errs, l.giveBack(ctx, uid))
	}
	return errors.Join(errs...)
}

func (l *linger) path(uid uint32) string { return filepath.Join(l.dir, strconv.Itoa(int(uid))) }

func (l *linger) take(ctx context.Context, uid uint32) error {
	err := os.MkdirAll(l.dir, 0o700)
	if err == nil {
		err = os.WriteFile(l.path(uid), nil, 0o600)
	}
	if err == nil {
		err = l.set(ctx, uid, true)
	}
	if err != nil {
		return fmt.Errorf("keep the shared memory of uid %d after a logout: %w: `loginctl enable-linger` does it "+
			"by hand", uid, err)
	}
	return nil
}

func (l *linger) giveBack(ctx context.Context, uid uint32) error {
	if err := l.set(ctx, uid, false); err != nil {
		return fmt.Errorf("end the lingering of uid %d: %w", uid, err)
	}
	return os.Remove(l.path(uid))
}

// setUserLinger is logind's SetUserLinger (org.freedesktop.login1(5)).
func setUserLinger(ctx context.Context, uid uint32, on bool) error {
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return err
	}
	defer conn.Close()
	const ask = false // no password prompt
	return conn.Object("org.freedesktop.login1", "/org/freedesktop/login1").
		CallWithContext(ctx, "org.freedesktop.login1.Manager.SetUserLinger", 0, uid, on, ask).Err
}

// lingerFor notes the user whom an attempt's ranks run as, and turns lingering on for them.
// It is called before the first rank runs.
func (a *Agent) lingerFor(ctx context.Context, k launcher.Key, who login.User) {
	a.mu.Lock()
	a.users[k] = who
	a.mu.Unlock()
	a.settleLinger(ctx)
}

func (a *Agent) settleLinger(ctx context.Context) {
	err := a.linger.settle(ctx, func() map[string]uint32 {
		a.mu.Lock()
		defer a.mu.Unlock()
		wanted := map[string]uint32{}
		for _, who := range a.users {
			wanted[who.Name] = who.UID
		}
		return wanted
	})
	if err != nil {
		a.cfg.Logger.Warn("hold users' IPC", "error", err)
	}
}
