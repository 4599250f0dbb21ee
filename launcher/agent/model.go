package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/login"
	"github.com/sparkrun/sparkrun/launcher/modeldir"
	"github.com/sparkrun/sparkrun/launcher/preflight"
)

// maxTold bounds what is sent of a config.json, in bytes.
const maxTold = 64 << 10

// lookWait bounds the search for a model: its disk may not answer.
const lookWait = 5 * time.Second

// modelCopy is what this node has of a model: a folder, or a name that Hugging Face's
// libraries look for in their cache. nil: it cannot be seen from outside of the image, or
// not in time.
func (a *Agent) modelCopy(ctx context.Context, p *prepared, model string, as launcher.Assignment,
	env []launcher.Setting) *launcher.ModelCopy {
	at := p.modelPlace(model, as.Spec.MainStage().Container, env)
	if !path.IsAbs(at) {
		return nil
	}
	done, err := a.looks(as.Spec.User, maxLooks)
	if err != nil {
		return nil
	}
	found := make(chan *launcher.ModelCopy, 1)
	go func() { // ends when its reads do; it is waited for no longer than lookWait
		defer done()
		found <- modelAt(p.who, at, model)
	}()
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	select {
	case c := <-found:
		return c
	case <-ctx.Done():
		return nil
	}
}

func modelAt(u login.User, at, model string) *launcher.ModelCopy {
	c := &launcher.ModelCopy{Dir: at}
	err := u.Do(func() error {
		c.Free = preflight.FreeAbove(at)
		dir := at
		if !path.IsAbs(model) {
			if dir = modeldir.Snapshot(at, model); dir == "" {
				return nil
			}
		}
		fi, err := os.Stat(dir)
		if err != nil {
			return err
		}
		c.Dir, c.Found = dir, true
		if fi.IsDir() {
			free := c.Free
			*c, _ = modeldir.Look(dir) // the server itself reports a bad config.json
			if c.Free = free; len(c.Config) > maxTold {
				c.Config = nil
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil // the server itself reports what it may not read
	}
	return c
}

// modelPlace is the node's folder with the model, or with the cache; empty: it is in the
// image, or nowhere.
func (p *prepared) modelPlace(model string, c *launcher.Container, env []launcher.Setting) string {
	named := !path.IsAbs(model)
	switch {
	case c == nil && named:
		return modeldir.Cache(func(name string) string { return launcher.ValueOf(env, name) })
	case c == nil:
		return path.Clean(model)
	case named && launcher.ValueOf(env, "HF_HUB_CACHE") != "":
		return ""
	case named:
		m, _, err := container.ModelCache(p.who, c, launcher.ValueOf(env, "HF_HOME"))
		if err != nil || m == nil {
			return ""
		}
		return path.Join(m.Source, "hub")
	}
	var over launcher.Mount
	rest := ""
	for _, m := range c.Mounts {
		below, in := strings.CutPrefix(path.Clean(model)+"/", strings.TrimSuffix(path.Clean(m.Target), "/")+"/")
		if in && len(m.Target) > len(over.Target) {
			over, rest = m, below
		}
	}
	if over.Source == "" {
		return ""
	}
	return path.Join(over.Source, rest)
}
