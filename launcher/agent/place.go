package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/login"
)

// placesAreThere looks, with the user's eyes, for the place of each mount that lies below another: an engine
// would make one that is missing as root, in a folder of the host.
func placesAreThere(u login.User, s container.Spec) error {
	return u.Do(func() error {
		for _, to := range s.Places() {
			above := s.Above(to.At)
			if above == nil {
				continue
			}
			rest, err := filepath.Rel(above.Target, to.At)
			if err == nil {
				err = placeIn(u, above.Source, rest, to.File)
			}
			if err != nil {
				return fmt.Errorf("mount at %s: it lies in %s, where %s is mounted: %s in there: %w", to.At, above.Target, above.Source, rest, err)
			}
		}
		return nil
	})
}

func placeIn(u login.User, source, rest string, file bool) error {
	dir, err := unix.Open(source, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return u.Cause(err)
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, rest, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
		return errors.New("not found here: create it on every node, or choose another place")
	case errors.Is(err, unix.ELOOP):
		return errors.New("is, or lies behind, a link: choose the place to which that leads")
	case err != nil:
		return u.Cause(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return u.Cause(err)
	}
	if folder := st.Mode&unix.S_IFMT == unix.S_IFDIR; folder == file {
		return errors.New("is a folder where a file is to be, or the reverse: choose another place")
	}
	return nil
}

// identify notes what the mounts are whose sources are ours to make, once these are there: an engine
// follows a path as root, and the folders are the user's by then.
func identify(mounts []container.Mount, who login.User) error {
	for i, m := range mounts {
		if m.Ino != 0 {
			continue // by login.mount
		}
		var st unix.Stat_t
		switch err := unix.Lstat(m.Source, &st); {
		case err != nil:
			return fmt.Errorf("look at %s: %w", m.Source, err)
		case st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != who.UID && st.Uid != uint32(os.Geteuid()):
			return fmt.Errorf("look at %s: it is not the folder that was laid out for %s: launch again", m.Source, who.Name)
		}
		mounts[i].Dev, mounts[i].Ino = st.Dev, st.Ino
	}
	return nil
}
