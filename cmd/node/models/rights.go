package models

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/launcher/login"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// rights are a user's to what is in the cache. The files' own rights decide.
type rights struct {
	m    *Models
	user *login.User // nil: of nobody in particular
	err  error       // the user is not known here
}

func (m *Models) rights(ctx context.Context, user string) *rights {
	r := &rights{m: m}
	if user != "" {
		u, err := login.Lookup(ctx, user)
		r.user, r.err = &u, err
	}
	return r
}

// denied tells whether the user may not read a repository that some may read.
func (r *rights) denied(h modelcache.Held) bool {
	if !h.Restricted && r.m.cfg.Readers == nil || r.user == nil {
		return false
	}
	return r.err != nil || !r.enters(modelcache.SnapshotDir(r.m.cfg.Dir, h.Repo, ""))
}

func (r *rights) enters(dir string) bool {
	return !errors.Is(r.user.Do(func() error {
		_, err := os.Stat(dir)
		return err
	}), fs.ErrPermission)
}

// admit gives whom a model is fetched for the right to read it here; try: it says whether it could.
func (m *Models) admit(ctx context.Context, o wire.ModelOrder, try bool) error {
	if o.Image != nil { // the engine's rules are those of images
		return nil
	}
	repo, who := o.Manifest.Repo, m.rights(ctx, o.For)
	switch {
	case who.user == nil && o.Restricted:
		return fmt.Errorf("pull %s: %w: it is for nobody", repo, launcher.ErrInvalid)
	case who.err != nil && (o.Restricted || m.cfg.Readers != nil):
		return fmt.Errorf("pull %s: %w", repo, who.err)
	case m.cfg.Readers != nil && who.user != nil && !who.enters(m.cfg.Dir+"/.locks"):
		return fmt.Errorf("pull %s: %w: rule model_readers of this machine's policy does not let %s read its models", repo,
			wire.ErrDenied, o.For)
	case !o.Restricted && try:
		return nil
	case !o.Restricted:
		return m.cache.Share(repo)
	}
	var err error
	if try {
		err = m.cache.CanRestrict()
	} else {
		err = m.cache.Restrict(repo, who.user.UID)
	}
	if errors.Is(err, modelcache.ErrNoACL) {
		err = fmt.Errorf("%w, by which %s alone could read it in %s: root may decide that every user does (sudo)", err, o.For,
			m.cfg.Dir)
	}
	return err
}
