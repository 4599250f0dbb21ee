package models

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// unused refuses what a process of this machine uses, in a container or not: it has a content open or mapped, was given
// a folder of it, or was given its name and this cache, and may read it at any moment.
func (m *Models) unused(h modelcache.Held, commit string) error {
	dir, inodes := modelcache.SnapshotDir(m.cfg.Dir, h.Repo, commit), m.cache.Inodes(h.Repo, commit)
	named := commit == "" || slices.ContainsFunc(h.Commits, func(c modelcache.Commit) bool {
		return c.Commit == commit && len(c.Refs) > 0
	})
	for _, pid := range proc.Here.PIDs() {
		if pid == os.Getpid() { // it knows what it reads: read
			continue
		}
		how := ""
		for _, arg := range proc.Here.Args(pid) {
			switch _, value, _ := strings.Cut(arg, "="); {
			case strings.Contains(arg, dir):
				how = "was given its folder"
			case named && (arg == h.Repo.Name || value == h.Repo.Name):
				if cache, _ := proc.Here.Env(pid, "HF_HUB_CACHE"); cache == m.cfg.Dir {
					how = "was given its name"
				}
			}
		}
		if how == "" {
			if file := proc.Here.Uses(pid, inodes); file != "" {
				how = "reads " + file
			}
		}
		if how != "" {
			return fmt.Errorf("%w: %w: process %d, %s, %s: `sparkrun ps` shows jobs", wire.ErrConflict, modelcache.ErrInUse, pid,
				proc.Here.Name(pid), how)
		}
	}
	return nil
}
