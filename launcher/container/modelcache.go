package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/login"
)

// cacheAt is where Hugging Face's libraries look for models in a container: HF_HOME, or
// what they derive from HOME (huggingface_hub, constants.py). Empty: nowhere that can be
// mounted.
func cacheAt(home, hfHome string) string {
	at := hfHome
	if at == "" && home != "/" {
		at = path.Join(home, ".cache/huggingface")
	}
	if !path.IsAbs(at) || strings.Contains(at, ":") {
		return ""
	}
	return path.Clean(at)
}

// ModelCache is the mount of the user's model cache on this node; nil: none. A cache that
// the job does not name is mounted if it exists. missing: the job names one that has to be
// made.
func ModelCache(u login.User, c *launcher.Container, hfHome string) (m *Mount, missing bool, err error) {
	at := cacheAt(u.Home, hfHome)
	source := c.ModelCache
	if source == "" {
		source = at
	}
	covered := Spec{Mounts: targets(c.Mounts)}.Above(at) != nil
	switch {
	case source == launcher.NoModelCache || at == "":
		return nil, false, nil
	case c.ModelCache == "" && (covered || mountedAt(c.Mounts, at)):
		return nil, false, nil // the user has mounted something there
	}
	found, err := mountOf(u, launcher.Mount{Source: source, Target: at})
	switch {
	case err == nil && found.File:
		err = errors.New("is not a folder")
	case errors.Is(err, errNotHere) && c.ModelCache != "":
		return &Mount{Source: source, Target: at}, true, nil
	}
	switch {
	case err != nil && c.ModelCache != "":
		return nil, false, fmt.Errorf("--model-cache %s: %w", source, err)
	case err != nil:
		return nil, false, nil //nolint:nilerr // it does not exist, or this user may not use it
	}
	return &found, false, nil
}

// targets are mounts of which only the target is known.
func targets(mounts []launcher.Mount) (out []Mount) {
	for _, m := range mounts {
		out = append(out, Mount{Source: m.Source, Target: m.Target})
	}
	return out
}

func mountedAt(mounts []launcher.Mount, at string) bool {
	for _, m := range mounts {
		if path.Clean(m.Target) == at {
			return true
		}
	}
	return false
}

// makeCache makes a folder for models that the user owns: an engine would make it root's.
func makeCache(u login.User, m *Mount) error {
	err := u.Do(func() error {
		if err := os.MkdirAll(m.Source, 0o755); err != nil {
			var at *fs.PathError
			if errors.As(err, &at) {
				return fmt.Errorf("make %s: %w", at.Path, u.Cause(err))
			}
			return err
		}
		return nil
	})
	if err == nil {
		var found Mount
		if found, err = mountOf(u, launcher.Mount{Source: filepath.Clean(m.Source), Target: m.Target}); err == nil {
			*m = found
		}
	}
	if err != nil {
		return fmt.Errorf("--model-cache %s: %w", m.Source, err)
	}
	return nil
}
