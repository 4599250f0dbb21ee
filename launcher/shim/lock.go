package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// DIR/lock has two bytes. The kernel unlocks them when the shim dies, however it dies:
//
//	spawning  from before alive is tried until the socket listens
//	alive     for as long as the shim runs
//
// So a process that gets spawning and finds alive locked knows that the other shim listens.
//
// A shim's locks are its process's: the child of a fork that its death cut short still has
// the descriptor, and must not keep the lock. Such locks end with any close of the file, so
// a shim opens it once. All others, which may do so several times in one process, lock by
// open file description. The two kinds exclude each other (fcntl(2)).
const (
	spawning = 0
	alive    = 1
)

func openLock(dir string) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
}

// lockByte locks or unlocks one byte; cmd is F_SETLK or a variant of it.
func lockByte(f *os.File, cmd int, kind int16, at int64) error {
	for {
		err := unix.FcntlFlock(f.Fd(), cmd, &unix.Flock_t{Type: kind, Start: at, Len: 1})
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN || err == unix.EACCES:
			return errLocked
		case err != nil:
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		return nil
	}
}

var errLocked = errors.New("held by another process")

// awaitSpawn returns once no shim of dir is coming up. A wait for a lock cannot be
// cancelled, hence the goroutine; it ends once that shim is up.
func awaitSpawn(ctx context.Context, dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	if lockByte(f, unix.F_OFD_SETLK, unix.F_RDLCK, spawning) == nil {
		return f.Close()
	}
	done := make(chan error, 1)
	go func() {
		defer f.Close()
		done <- lockByte(f, unix.F_OFD_SETLKW, unix.F_RDLCK, spawning)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
