package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/login"
)

// mounts are what the containers of an attempt see of the host, with the model cache last
// if there is one; missing: it has yet to be made. Sources are checked with the user's
// rights, and against the administrator's rules. What was found is noted, for an engine
// follows a path as root.
func (h *Host) mounts(ctx context.Context, at Attempt, args Args) (all []Mount, missing bool, err error) {
	c := at.Assignment.Spec.MainStage().Container
	allowed := func(m Mount) bool { return h.allow(ctx, at.User, c.Image, []Mount{m}, Args{}) == nil }
	found := make([]Mount, len(c.Mounts))
	for i, m := range c.Mounts {
		if found[i], err = mountOf(at.User, m); err != nil {
			return nil, false, fmt.Errorf("--mount %s: %w", m, err)
		}
	}
	cache, missing, err := ModelCache(at.User, c, at.HFHome)
	if err != nil {
		return nil, false, err
	}
	// A model cache that only the workload has named is left out if the rules refuse it.
	var asked []Mount
	for i, m := range c.Mounts {
		if !m.Make || allowed(found[i]) {
			asked = append(asked, found[i])
		}
	}
	all = slices.Concat(asked, at.Own)
	offered := c.ModelCache == "" || c.CacheOffered
	if cache != nil && !offered {
		asked = append(asked, *cache)
	}
	if err := h.allow(ctx, at.User, c.Image, asked, args); err != nil {
		return nil, false, err
	}
	if cache == nil || offered && !allowed(*cache) {
		return all, false, nil
	}
	return append(all, *cache), missing, nil
}

var errNotHere = errors.New("not found here: create it on every node, or leave it out")

func mountOf(u login.User, m launcher.Mount) (Mount, error) {
	out := Mount{Target: m.Target, ReadOnly: m.ReadOnly}
	err := u.Do(func() error {
		real, err := filepath.EvalSymlinks(m.Source)
		if errors.Is(err, fs.ErrNotExist) && m.Make { // a dry run: prepare would make it
			out.Source = m.Source
			return nil
		}
		if errors.Is(err, fs.ErrNotExist) {
			return errNotHere
		}
		if err != nil {
			return u.Cause(err)
		}
		fi, err := os.Stat(real)
		if err != nil {
			return u.Cause(err)
		}
		mode := uint32(unix.R_OK)
		if fi.IsDir() {
			mode |= unix.X_OK
		}
		if strings.Contains(real, ":") {
			return fmt.Errorf("it is %q, and docker's paths have no colon: give it another name", real)
		}
		at := fi.Sys().(*syscall.Stat_t)
		out.Source, out.File, out.Dev, out.Ino = real, !fi.IsDir(), at.Dev, at.Ino
		return u.May(real, mode)
	})
	return out, err
}

// MakeMounts makes the folders that a job's containers need even on a node that has none
// yet: caches of its user, made with that user's rights.
func MakeMounts(ctx context.Context, as launcher.Assignment) error {
	c := as.Spec.MainStage().Container
	if c == nil {
		return nil
	}
	for _, m := range c.Mounts {
		if !m.Make {
			continue
		}
		who, err := login.Lookup(ctx, as.Spec.User)
		if err == nil {
			err = who.Do(func() error { return os.MkdirAll(m.Source, 0o755) })
		}
		if err != nil {
			return fmt.Errorf("make folder for --mount %s: %w", m, err)
		}
	}
	return nil
}

// placesAreThere checks, with the user's rights, that the target of each mount below
// another one exists: an engine would make a missing one as root, in a folder of the host.
func placesAreThere(u login.User, s Spec) error {
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
				return fmt.Errorf("mount at %s: it lies in %s, where %s is mounted: %s in there: %w", to.At,
					above.Target, above.Source, rest, err)
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
	fd, err := unix.Openat2(dir, rest,
		&unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
		return errors.New("not found here: create it on every node, or choose another place")
	case errors.Is(err, unix.ELOOP):
		return errors.New("is a link, or lies behind one: choose the place that it leads to")
	case err != nil:
		return u.Cause(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return u.Cause(err)
	}
	if folder := st.Mode&unix.S_IFMT == unix.S_IFDIR; folder == file {
		return errors.New("is a folder and must be a file, or the reverse: choose another place")
	}
	return nil
}

// identify notes the device and inode of the sources that we make ourselves, once they
// exist: an engine follows a path as root, and the folders belong to the user by then.
func identify(mounts []Mount, who login.User) error {
	for i, m := range mounts {
		if m.Ino != 0 {
			continue // login.mount has noted it
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
