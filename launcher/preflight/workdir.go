package preflight

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher/login"
)

// workdir looks for the ranks' working directory with the rights of their user: in a home
// that is closed to others, or to root over NFS, only that user sees it. In an image it is
// not checked.
func workdir(_ context.Context, c *Case) error {
	if c.Yet {
		return nil
	}
	dir, shown := c.Stage.Workdir, c.Stage.Workdir
	if c.Container != nil {
		if dir = c.Container.OnHost(c.Container.Workdir); dir == "" {
			return nil
		}
		shown = c.Container.Workdir + ": " + dir
	}
	err := c.User.Do(func() error { return enterable(c.User, dir) })
	if errors.Is(err, errNoWorkdir) && c.Container == nil { // in an image the folder of --stage is not the working one
		err = errors.New("not found here: have launch --stage bring what the job needs, create it on every node, or " +
			"choose another with --workdir")
	}
	if err != nil {
		return fmt.Errorf("working directory %s: %w", shown, err)
	}
	return nil
}

var errNoWorkdir = errors.New("not found here: create it on every node, or choose another with --workdir")

func enterable(u login.User, path string) error {
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errNoWorkdir
	case u.Hidden(path, err): // the shim decides
		return nil
	case err != nil:
		return u.Cause(err)
	case !fi.IsDir():
		return errors.New("not a directory: choose another with --workdir")
	}
	return u.May(path, unix.X_OK)
}
