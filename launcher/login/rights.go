package login

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Do calls f with the user's rights to files, as the ranks will have them. The kernel keeps
// these for each thread (credentials(7)), so f runs in a thread of its own, which ends with
// its goroutine because it is never unlocked.
func (u User) Do(f func() error) error {
	if !u.Switches {
		return f()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := u.take()
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// take gives this thread the user's rights to files. Raw system calls: those of package
// syscall change every thread.
func (u User) take() error {
	var groups unsafe.Pointer
	if len(u.Groups) > 0 {
		groups = unsafe.Pointer(&u.Groups[0])
	}
	if _, _, no := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(u.Groups)), uintptr(groups), 0); no != 0 {
		return fmt.Errorf("take the groups of user %s: %w", u.Name, no)
	}
	if _, err := unix.SetfsgidRetGid(int(u.GID)); err != nil {
		return fmt.Errorf("take the group of user %s: %w", u.Name, err)
	}
	if _, err := unix.SetfsuidRetUid(int(u.UID)); err != nil {
		return fmt.Errorf("take the uid of user %s: %w", u.Name, err)
	}
	return nil
}

// Own makes the user the owner of a path.
func (u User) Own(path string) error {
	if !u.Switches {
		return nil
	}
	return os.Lchown(path, int(u.UID), int(u.GID))
}

// HasAlone reports whether a folder belongs to the user, and is closed to others.
func (u User) HasAlone(dir string) bool {
	var st unix.Stat_t
	return unix.Lstat(dir, &st) == nil && st.Mode == unix.S_IFDIR|0o700 && st.Uid == u.UID
}

// May asks the kernel for rights to a file (unix.R_OK and so on), so that ACLs and noexec
// mounts count too.
func (u User) May(path string, mode uint32) error {
	if err := unix.Faccessat(unix.AT_FDCWD, path, mode, unix.AT_EACCESS); err != nil {
		return u.Cause(err)
	}
	return nil
}

// Hidden reports whether a path is closed to root as well as to the user as Do has it: what is in a FUSE mount of the
// user's, only a process that is the user's alone can see.
func (u User) Hidden(path string, err error) bool {
	if !u.Switches || !errors.Is(err, unix.EACCES) {
		return false
	}
	asRoot := make(chan error)
	go func() { // in a thread that has root's rights: Do's own is locked to its goroutine
		_, err := os.Stat(path)
		asRoot <- err
	}()
	return errors.Is(<-asRoot, unix.EACCES)
}

// Cause is the reason without the path, which the caller names.
func (u User) Cause(err error) error {
	var no unix.Errno
	switch {
	case !errors.As(err, &no):
		return err
	case no == unix.EACCES:
		return fmt.Errorf("%w for user %s: give them access, or choose another place", no, u.Name)
	}
	return no
}
