package agent

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
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/login"
)

// tellPull is between two words on how far a pull has come.
const tellPull = 5 * time.Second

// bringImage asks a registry where the job wants it to be asked.
func (a *Agent) bringImage(ctx context.Context, as launcher.Assignment) error {
	c := as.Spec.MainStage().Container
	if c == nil || c.Pull == launcher.PullNever || isID(c.Image) {
		return nil
	}
	who, err := login.Lookup(ctx, as.Spec.User)
	if err != nil {
		return err
	}
	if err := a.allowBox(ctx, who, c.Image, nil, container.Args{}); err != nil {
		return err
	}
	if c.Pull != launcher.PullAlways {
		// What the engine is besides is asked of it with the rest: that takes it as long as all of this.
		there, err := a.hasImage(ctx, c.Image)
		if err != nil || there {
			return err
		}
	}
	e, _, err := a.engine(ctx)
	if err != nil {
		return err
	}
	defer e.Close()
	auth, err := registryAuth(who, c.Image)
	if err != nil {
		a.cfg.Logger.Warn("read registry credentials", "job", as.Job, "error", err)
	}
	a.tellPreparing(as.Key, "pulls "+c.Image)
	last := time.Now()
	err = e.Pull(ctx, c.Image, auth, func(p container.Progress) {
		if now := time.Now(); now.Sub(last) >= tellPull {
			last = now
			a.tellPreparing(as.Key, fmt.Sprintf("pulls %s: %s of %s", c.Image, launcher.Size(p.Done), launcher.Size(p.Total)))
		}
	})
	switch {
	case err == nil || ctx.Err() != nil || errors.Is(err, container.ErrNoEngine):
		return err
	case errors.Is(err, container.ErrNotForUs) && strings.Contains(c.Image, "/"):
		return fmt.Errorf("%w: does the name exist, and may %s have it (`docker login` on this machine)?", err, who.Name)
	case strings.Contains(err.Error(), "no space left"):
		return err
	case !strings.Contains(c.Image, "/"): // Docker Hub's own, or one that was to be built
		return fmt.Errorf("%w: it names no registry: build it on each machine (a recipe's with the recipe's project), or name another with --image", err)
	}
	return fmt.Errorf("%w: is the registry up, and does this machine reach it?", err)
}

func (a *Agent) hasImage(ctx context.Context, ref string) (bool, error) {
	if a.cfg.Containers == nil {
		return false, nil // which is told by who needs one
	}
	asked, cancel := context.WithTimeoutCause(ctx, engineWait, errSilent(a.cfg.Containers.Socket, engineWait))
	defer cancel()
	e, err := container.Open(asked, a.cfg.Containers.Socket)
	if err != nil {
		return false, causeOf(asked, err)
	}
	defer e.Close()
	_, err = e.Image(asked, ref)
	if errors.Is(err, container.ErrNoImage) {
		return false, nil
	}
	return err == nil, causeOf(asked, err)
}

// isID tells whether an image is named by its engine's number for it.
func isID(image string) bool { return strings.HasPrefix(image, "sha256:") }

// maxDockerConfig is as much as is read of it, in bytes.
const maxDockerConfig = 1 << 20

// registryAuth reads what the user has for an image's registry on this node, with the user's rights.
func registryAuth(u login.User, image string) (auth string, err error) {
	err = u.Do(func() error {
		// It is the user's: neither a pipe nor a file without end is to hold up the agent.
		f, err := os.OpenFile(filepath.Join(u.Home, ".docker", "config.json"), os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil //nolint:nilerr // none that the user has
		}
		defer f.Close()
		if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
			return err
		}
		b, err := io.ReadAll(io.LimitReader(f, maxDockerConfig))
		if err != nil {
			return err
		}
		auth, err = container.Auth(b, image)
		return err
	})
	return auth, err
}

func (a *Agent) tellPreparing(k launcher.Key, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.emit(launcher.Event{Key: k, Kind: launcher.Preparing, Text: text})
}
