package models

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/launcher/login"
)

// ownCopy puts what has been fetched into the cache of whom it was fetched for, as that user.
func (m *Models) ownCopy(ctx context.Context, p *pull) (dir string, err error) {
	o := p.order
	lease, err := m.cache.Hold(o.Manifest.Repo)
	if err != nil {
		return "", err
	}
	defer lease.Drop()
	user, err := login.Lookup(ctx, o.For)
	if err != nil {
		return "", err
	}
	to := o.OwnDir
	if to == "" {
		to = filepath.Join(user.Home, ".cache/huggingface/hub") // huggingface_hub/constants.py
	}
	if !filepath.IsAbs(to) {
		return "", fmt.Errorf("user %s has no home, so no cache of his own", o.For)
	}
	p.note("it is here, and is put into " + to)
	err = user.Do(func() (err error) {
		dir, err = m.cache.CopyTo(ctx, modelcache.Config{Dir: to, Reserve: m.cfg.Reserve}, o.Manifest)
		return err
	})
	return dir, err
}
