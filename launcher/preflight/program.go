package preflight

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/login"
)

// program looks for what the ranks exec. In a container only the engine can find it.
func program(_ context.Context, c *Case) error {
	if c.Yet || c.Container != nil {
		return nil
	}
	name := c.First.Argv[0]
	_, err := c.find(name)
	switch {
	case err == nil:
		return nil
	case name == "ray" && errors.Is(err, errNotInPath):
		return fmt.Errorf("program \"ray\": %w (%s): install Ray on this node, or name its program with --ray PATH",
			errNotInPath, searchText(launcher.ValueOf(c.First.Env, "PATH")))
	}
	return fmt.Errorf("program %q: %w", name, err)
}

// find looks for a program of the host as the shim will. Where nothing can be seen of what may be it, the shim
// decides.
func (c *Case) find(program string) (path string, err error) {
	err = c.User.Do(func() (err error) {
		path, err = findProgram(c.User, program, c.Stage.Workdir, launcher.ValueOf(c.First.Env, "PATH"))
		return err
	})
	return path, err
}

var (
	errNotInPath = errors.New("not found in PATH")
	errNoProgram = errors.New("not found here: install it on this node, or name another")
)

// findProgram looks in the rank's PATH, or relative to its working directory.
func findProgram(u login.User, program, workdir, search string) (path string, err error) {
	if strings.Contains(program, "/") {
		path := program
		if !filepath.IsAbs(path) {
			path = filepath.Join(workdir, path)
		}
		err := runnable(u, path)
		switch {
		case u.Hidden(path, err):
			err = nil
		case errors.Is(err, errNoProgram) && !filepath.IsAbs(program): // it lies where --stage takes it from
			err = errors.New("not found here: have launch --stage bring it, or copy it to every node of the job")
		}
		return path, err
	}
	var unfit error // the first of that name that cannot run
	hidden := ""    // the first that may be there
	for _, d := range filepath.SplitList(search) {
		if !filepath.IsAbs(d) {
			d = filepath.Join(workdir, d)
		}
		path := filepath.Join(d, program)
		err := runnable(u, path)
		if err == nil {
			return path, nil
		}
		fi, serr := os.Stat(path)
		if serr == nil && !fi.IsDir() && unfit == nil {
			unfit = fmt.Errorf("%s: %w", path, err)
		}
		if hidden == "" && u.Hidden(path, serr) {
			hidden = path
		}
	}
	if hidden != "" {
		return hidden, nil
	}
	if unfit != nil {
		return "", unfit
	}
	return "", fmt.Errorf("%w (%s): install it on this node, or name it by its full path", errNotInPath,
		searchText(search))
}

// searchText is the beginning of a PATH, which may be pages long.
func searchText(path string) string {
	const shown = 3
	dirs := filepath.SplitList(path)
	if len(dirs) <= shown+1 {
		return path
	}
	return fmt.Sprintf("%s, and %d folders more", strings.Join(dirs[:shown], ":"), len(dirs)-shown)
}

func runnable(u login.User, path string) error {
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errNoProgram
	case err != nil:
		return u.Cause(err)
	case fi.IsDir():
		return errors.New("is a directory: name the file to run")
	case fi.Mode()&0o111 == 0:
		return errors.New("not executable: chmod +x it")
	}
	return u.May(path, unix.X_OK)
}
