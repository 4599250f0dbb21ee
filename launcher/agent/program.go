package agent

import (
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

// enterable tells whether a user may work in a folder.
func enterable(u login.User, path string) error {
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("not found here: create it on every node, or choose another with --workdir")
	case err != nil:
		return u.Cause(err)
	case !fi.IsDir():
		return errors.New("is no directory: choose another with --workdir")
	}
	return u.May(path, unix.X_OK)
}

// readable tells whether a user may run a script.
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

// findProgram looks for a program as the shim will: by the rank's PATH, or
// relative to its working directory.
func findProgram(u login.User, program, workdir string, env []launcher.Setting) (path string, err error) {
	if strings.Contains(program, "/") {
		path := program
		if !filepath.IsAbs(path) {
			path = filepath.Join(workdir, path)
		}
		return path, runnable(u, path)
	}
	search := launcher.ValueOf(env, "PATH")
	var unfit error // the first of that name, which would not run
	for _, d := range filepath.SplitList(search) {
		if !filepath.IsAbs(d) {
			d = filepath.Join(workdir, d)
		}
		path := filepath.Join(d, program)
		err := runnable(u, path)
		if err == nil {
			return path, nil
		}
		if fi, serr := os.Stat(path); serr == nil && !fi.IsDir() && unfit == nil {
			unfit = fmt.Errorf("%s: %w", path, err)
		}
	}
	if unfit != nil {
		return "", unfit
	}
	return "", fmt.Errorf("%w (%s): install it on this node, or name it by its full path", errNotInPath, search)
}

var errNotInPath = errors.New("not found in PATH")

func runnable(u login.User, path string) error {
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("not found here: install it on this node, or name another")
	case err != nil:
		return u.Cause(err)
	case fi.IsDir():
		return errors.New("is a directory: name the file to run")
	case fi.Mode()&0o111 == 0:
		return errors.New("not executable: chmod +x it")
	}
	return u.May(path, unix.X_OK)
}
