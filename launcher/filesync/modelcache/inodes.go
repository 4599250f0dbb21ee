package modelcache

import (
	"path"
	"syscall"
)

// Inodes are those of the contents of a commit (empty: of all) by their blobs' names.
func (c *Cache) Inodes(r Repo, commit string) map[string]uint64 {
	commits := []string{commit}
	if commit == "" {
		commits = c.commits(r)
	}
	out := map[string]uint64{}
	for _, commit := range commits {
		for _, f := range c.links(r, commit) {
			if st, err := c.root.Stat(path.Join(r.dir(), "blobs", f.ETag())); err == nil && f.ETag() != "" {
				if sys, ok := st.Sys().(*syscall.Stat_t); ok {
					out[f.ETag()] = sys.Ino
				}
			}
		}
	}
	return out
}
