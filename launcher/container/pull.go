package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/login"
)

// tellPull is the time between two progress reports of a pull.
const tellPull = 5 * time.Second

// BringImage pulls the job's image, where the job wants that.
func (h *Host) BringImage(ctx context.Context, as launcher.Assignment, tell func(string)) error {
	c := as.Spec.MainStage().Container
	if c == nil || c.Pull == launcher.PullNever || isID(c.Image) {
		return nil
	}
	who, err := login.Lookup(ctx, as.Spec.User)
	if err != nil {
		return err
	}
	if err := h.allow(ctx, who, c.Image, nil, Args{}); err != nil {
		return err
	}
	if c.Pull != launcher.PullAlways {
		// The engine's other properties are asked for later, with the rest: that takes as
		// long as this question.
		there, err := h.hasImage(ctx, c.Image)
		if err != nil || there {
			return err
		}
	}
	e, _, err := h.open(ctx)
	if err != nil {
		return err
	}
	auth, err := registryAuth(who, c.Image)
	if err != nil {
		h.cfg.Logger.Warn("read registry credentials", "job", as.Job, "error", err)
	}
	tell("pulls " + c.Image)
	last := time.Now()
	err = e.Pull(ctx, c.Image, auth, func(p Progress) {
		if now := time.Now(); now.Sub(last) >= tellPull {
			last = now
			tell(fmt.Sprintf("pulls %s: %s of %s", c.Image, launcher.Size(p.Done), launcher.Size(p.Total)))
		}
	})
	switch {
	case err == nil || ctx.Err() != nil || errors.Is(err, ErrNoEngine):
		return err
	case errors.Is(err, ErrNotForUs) && strings.Contains(c.Image, "/"):
		return fmt.Errorf("%w: does the name exist, and may %s have it (`docker login` on this machine)?", err, who.Name)
	case strings.Contains(err.Error(), "no space left"):
		return err
	case !strings.Contains(c.Image, "/"): // Docker Hub's own, or one that was to be built
		return fmt.Errorf("%w: it names no registry: build it on each machine (a recipe's with the recipe's "+
			"project), or name another with --image", err)
	}
	return fmt.Errorf("%w: is the registry up, and does this machine reach it?", err)
}

func (h *Host) hasImage(ctx context.Context, ref string) (bool, error) {
	if h.cfg.Engine == nil {
		return false, nil // the caller that needs an engine reports that
	}
	asked, cancel := context.WithTimeoutCause(ctx, engineWait, errSilent(h.cfg.Engine.Socket, engineWait))
	defer cancel()
	e, err := Open(asked, h.cfg.Engine.Socket)
	if err != nil {
		return false, cause(asked, err)
	}
	switch _, err = e.Image(asked, ref); {
	case errors.Is(err, ErrNoImage):
		return false, nil
	case err != nil:
		return false, cause(asked, err)
	}
	return true, nil
}

// isID reports whether an image is named by its engine's ID.
func isID(image string) bool { return strings.HasPrefix(image, "sha256:") }

// maxDockerConfig is how much of it is read, in bytes.
const maxDockerConfig = 1 << 20

// registryAuth reads the user's credentials for an image's registry on this node, with the
// user's rights.
func registryAuth(u login.User, image string) (auth string, err error) {
	err = u.Do(func() error {
		// The file is the user's: neither a pipe nor an endless file may hold up the agent.
		f, err := os.OpenFile(filepath.Join(u.Home, ".docker", "config.json"), os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil //nolint:nilerr // the user has none
		}
		defer f.Close()
		if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
			return err
		}
		b, err := io.ReadAll(io.LimitReader(f, maxDockerConfig))
		if err != nil {
			return err
		}
		auth, err = Auth(b, image)
		return err
	})
	return auth, err
}
