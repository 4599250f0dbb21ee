package preflight

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// files looks for the files that a stage's command names; for a container, for those
// outside of the image. Relative ones may have yet to be brought, which a dry run cannot see.
func files(_ context.Context, c *Case) error {
	if len(c.Stage.Files) == 0 {
		return nil
	}
	return c.User.Do(func() error {
		for _, name := range c.Stage.Files {
			file := name
			if !filepath.IsAbs(file) {
				if c.Yet {
					continue
				}
				file = filepath.Join(c.workdir(), file)
			}
			shown := file
			if c.Container != nil {
				if file = c.Container.OnHost(file); file == "" {
					continue
				}
			}
			if err := c.readable(name, file); err != nil {
				return fmt.Errorf("file %s: %w", shown, err)
			}
		}
		return nil
	})
}

// workdir is the ranks' working directory, in their container if they have one.
func (c *Case) workdir() string {
	if c.Container != nil {
		return c.Container.Workdir
	}
	return c.Stage.Workdir
}

// readable checks a file; name is how the command names it.
func (c *Case) readable(name, path string) error {
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && c.Stage.Where == launcher.OnHead:
		return errors.New("not found here: the job's first machine alone needs it: copy it to this one, or name one " +
			"that has it first in --on")
	case errors.Is(err, fs.ErrNotExist) && filepath.IsAbs(name): // which is never in the folder of --stage
		return errors.New("not found here: have launch --stage bring it, and name it without its folder, or copy " +
			"it to every node of the job")
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("not found here: have launch --stage bring it, or copy it to every node of the job")
	case c.User.Hidden(path, err): // the program decides
		return nil
	case err != nil:
		return c.User.Cause(err)
	case fi.IsDir():
		return errors.New("is a directory: name the file")
	}
	return c.User.May(path, unix.R_OK)
}
