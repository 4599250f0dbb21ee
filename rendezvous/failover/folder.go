package failover

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher/durable"
	"github.com/sparkrun/sparkrun/rendezvous/consensus"
)

// A raft folder is put in place or away by one rename. A mount point, with a disk of its
// own, cannot be renamed or removed: its content is copied and removed. As long as
// movingFile is in it, the rest of it is an incomplete record and worthless.
const movingFile = "moving"

func moving(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, movingFile))
	return err == nil
}

// putAside moves a folder to the place of another; a missing or empty one does not
// replace what was kept there.
func putAside(dir, to string) error {
	names, err := os.ReadDir(dir)
	if len(names) == 0 {
		return ignoreMissing(err)
	}
	if err := putWhole(dir, to); err != nil {
		return fmt.Errorf("put the old record aside: %w", err)
	}
	return durable.SyncDir(filepath.Dir(dir))
}

func putWhole(dir, to string) error {
	if moving(dir) { // a crash came in between: the copy is complete
		return discard(dir)
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.Rename(dir, to); !errors.Is(err, syscall.EBUSY) {
		return err
	}
	if err := copyFolder(to, dir); err != nil {
		return err
	}
	if err := writeWhole(filepath.Join(dir, movingFile), nil); err != nil {
		return err
	}
	return discard(dir)
}

// takePlace moves a folder to the place of a raft folder that was discarded.
func takePlace(from, dir string) error {
	if err := os.Rename(from, dir); !errors.Is(err, os.ErrExist) { // if it exists, it is a mount point
		return errors.Join(err, durable.SyncDir(filepath.Dir(dir)))
	}
	mark := filepath.Join(dir, movingFile)
	if err := writeWhole(mark, nil); err != nil {
		return err
	}
	if err := copyFolder(dir, from); err != nil {
		return err
	}
	if err := os.Remove(mark); err != nil {
		return err
	}
	return errors.Join(durable.SyncDir(dir), os.RemoveAll(from))
}

// discard removes a folder, or all that is in a mount point, movingFile last.
func discard(dir string) error {
	names, err := os.ReadDir(dir)
	if err != nil {
		return ignoreMissing(err)
	}
	for _, e := range names {
		if e.Name() != movingFile {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	if err = errors.Join(err, durable.SyncDir(dir)); err != nil {
		return err
	}
	if err := ignoreMissing(os.Remove(filepath.Join(dir, movingFile))); err != nil {
		return err
	}
	if err := os.Remove(dir); !errors.Is(err, syscall.EBUSY) {
		return err
	}
	return durable.SyncDir(dir)
}

// copyFolder copies the content of a folder, durably. Only root can read the copy and its
// files: os.CopyFS keeps no modes.
func copyFolder(to, from string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	if err := os.Chmod(to, 0o700); err != nil { // a mount point may be open to all
		return err
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return err
	}
	d, err := os.Open(to)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}

// isMountPoint tells whether a folder is the root of a mount, including a bind mount.
// Kernels before 5.8 do not say.
func isMountPoint(dir string) bool {
	var st unix.Statx_t
	return unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, 0, &st) == nil &&
		st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// writeWhole replaces a file atomically and durably, and makes its folder.
func writeWhole(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := durable.Write(path, content, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// wayOut adds to an error about an unreadable record what can be done.
func (f *Failover) wayOut(err error) error {
	if _, damaged := errors.AsType[*consensus.CorruptError](err); !damaged {
		return err
	}
	dir := f.path(raftFolder)
	aside := fmt.Sprintf("sudo mv %[1]s %[1]s.damaged", dir)
	if isMountPoint(dir) { // the shell that expands * has to be root's
		aside = fmt.Sprintf("sudo sh -c 'mkdir -m 700 %[1]s.damaged && mv %[1]s/* %[1]s.damaged'", dir)
	}
	return fmt.Errorf("%w: `%s` and start the agent: if the other voters are up, the cluster takes this machine in "+
		"anew; if they are not, `sudo sparkrun takeover` on a machine with a copy of the record, or `sudo sparkrun raft "+
		"restore FILE` from a snapshot", err, aside)
}

// Remove deletes what Enrol and the incarnations since have left in the folders STATE and RUN.
func Remove(state, run string) error {
	err := discard(filepath.Join(state, raftFolder))
	for _, name := range []string{oldFolder, newFolder, broughtFile, restoreFile, stateFile} {
		err = errors.Join(err, os.RemoveAll(filepath.Join(state, name)))
	}
	return errors.Join(err, ignoreMissing(os.Remove(filepath.Join(run, livenessFile))))
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
