package preflight

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher/login"
)

// scripts looks for the files that a stage's command names; for a container, for those
// outside of the image.
func scripts(_ context.Context, c *Case) error {
	if c.Yet || len(c.Stage.Files) == 0 {
		return nil
	}
	return c.User.Do(func() error {
		for _, name := range c.Stage.Files {
			file := name
			if !filepath.IsAbs(file) {
				file = filepath.Join(c.workdir(), file)
			}
			shown := file
			if c.Container != nil {
				if file = c.Container.OnHost(file); file == "" {
					continue
				}
			}
			if err := readable(c.User, file); err != nil {
				return fmt.Errorf("script %s: %w", shown, err)
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

func readable(u login.User, path string) error {
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("not found here: copy it to every node, or have launch --stage bring it")
	case err != nil:
		return u.Cause(err)
	case fi.IsDir():
		return errors.New("is a directory: name the file to run")
	}
	return u.May(path, unix.R_OK)
}
