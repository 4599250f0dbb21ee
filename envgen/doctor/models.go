package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/envgen"
)

// HubCache is where Hugging Face's libraries keep a user's models.
type HubCache struct {
	Dir string `json:"dir"`
	// Files are those looked at, folders too; Roots belong to root, and root alone may write to them.
	Files int `json:"files"`
	Roots int `json:"roots,omitempty"`
	// Closed is why the agent, which is root, could not look at all of them.
	Closed string `json:"closed,omitempty"`
}

// ModelStore is a folder with models, and how fast one of its files was read past the page cache.
type ModelStore struct {
	Dir string `json:"dir"`
	// Network is the file system where it is one of a network, such as nfs.
	Network string        `json:"network,omitempty"`
	Repo    string        `json:"repo"` // TYPE--ORG--NAME, whose file it was
	Read    uint64        `json:"read"` // bytes
	Took    time.Duration `json:"took"`
	// Own: it is the user's, not the machine's.
	Own bool `json:"own,omitempty"`
}

// Bps is the rate, in bytes a second.
func (s ModelStore) Bps() float64 { return float64(s.Read) / s.Took.Seconds() }

const (
	hubFolder = ".cache/huggingface" // in a home (huggingface_hub/constants.py)
	// What is looked at of a user's cache, and of its time.
	mostLooked = 50_000
	// A file is read in blocks of this size until one of these is reached. Smaller files say nothing.
	storeBlock   = 4 << 20
	storeBytes   = 64 << 20
	storePatient = 300 * time.Millisecond
)

// models looks at where models lie; a storage that does not answer holds up nothing.
func (r *Reader) models(ctx context.Context, user, home string, f *Facts) {
	type seen struct {
		cache  *HubCache
		stores []ModelStore
	}
	found := make(chan seen, 1)
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Patience)
	defer cancel()
	go func() {
		var s seen
		if home != "" && user != "root" {
			s.cache = r.hubCache(ctx, user, filepath.Join(home, hubFolder))
		}
		for _, dir := range []string{r.cfg.Models, filepath.Join(home, hubFolder, "hub")} {
			if !filepath.IsAbs(dir) {
				continue
			}
			if store, ok := measure(ctx, r.at(dir)); ok {
				store.Dir, store.Own = dir, dir != r.cfg.Models
				s.stores = append(s.stores, store)
			}
		}
		found <- s
	}()
	select {
	case s := <-found:
		f.HubCache, f.Models = s.cache, s.stores
	case <-time.After(2 * r.cfg.Patience):
		f.trouble(fmt.Errorf("look at models: no answer within %s from the storage of %s or of %s's home", 2*r.cfg.Patience,
			or(r.cfg.Models, "models"), or(user, "nobody")))
	}
}

// hubCache counts what is root's. Nothing is followed out of the folder.
func (r *Reader) hubCache(ctx context.Context, user, dir string) *HubCache {
	// Where links lead is said: whoever is to change owners must not be led astray.
	if real, err := filepath.EvalSymlinks(r.at(dir)); err == nil {
		if rel, err := filepath.Rel(r.cfg.Root, real); err == nil && filepath.IsLocal(rel) {
			dir = "/" + rel
		}
	}
	c := &HubCache{Dir: dir}
	root, err := os.OpenRoot(r.at(dir))
	if errors.Is(err, fs.ErrPermission) {
		c.Closed = err.Error()
		return c
	}
	if err != nil {
		return nil
	}
	defer root.Close()
	_ = fs.WalkDir(root.FS(), ".", func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrPermission) {
			c.Closed = err.Error()
			return nil
		}
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return nil //nolint:nilerr // gone meanwhile
		}
		if c.Files >= mostLooked || ctx.Err() != nil {
			return fs.SkipAll
		}
		c.Files++
		if st, err := d.Info(); err == nil {
			if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Uid == 0 && st.Mode().Perm()&0o022 == 0 {
				c.Roots++
			}
		}
		return nil
	})
	return c
}

// measure reads the beginning of a large file of a cache.
func measure(ctx context.Context, dir string) (s ModelStore, ok bool) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return s, false
	}
	defer root.Close()
	repos, _ := fs.ReadDir(root.FS(), ".")
	for _, repo := range repos {
		if !strings.Contains(repo.Name(), "--") || ctx.Err() != nil {
			continue
		}
		blobs, _ := fs.ReadDir(root.FS(), path.Join(repo.Name(), "blobs"))
		for _, b := range blobs {
			st, err := b.Info()
			if err != nil || !st.Mode().IsRegular() || st.Size() < storeBytes {
				continue
			}
			f, err := root.OpenFile(path.Join(repo.Name(), "blobs", b.Name()),
				os.O_RDONLY|unix.O_DIRECT|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
			if err != nil { // a file system without direct reads
				return s, false
			}
			defer f.Close()
			s.Repo, s.Network = repo.Name(), network(f)
			s.Read, s.Took = readDirect(ctx, f)
			return s, s.Read > 0
		}
	}
	return s, false
}

// readDirect reads past the page cache: the buffer has to lie at a page.
func readDirect(ctx context.Context, f *os.File) (n uint64, took time.Duration) {
	buf := make([]byte, storeBlock+os.Getpagesize())
	if over := int(uintptr(unsafe.Pointer(&buf[0])) % uintptr(os.Getpagesize())); over > 0 {
		buf = buf[os.Getpagesize()-over:]
	}
	buf = buf[:storeBlock]
	began := time.Now()
	for n < storeBytes && took < storePatient && ctx.Err() == nil {
		k, err := f.ReadAt(buf, int64(n))
		n, took = n+uint64(k), time.Since(began)
		if err != nil {
			break
		}
	}
	return n, took
}

// network names the file system of a file, if it is one of a network (linux/magic.h, statfs(2)).
func network(f *os.File) string {
	var st unix.Statfs_t
	if unix.Fstatfs(int(f.Fd()), &st) != nil {
		return ""
	}
	return map[uint32]string{0x6969: "nfs", 0xff534d42: "cifs", 0xfe534d42: "smb", 0x00c36400: "ceph", 0x0bd00bd0: "lustre"}[uint32(st.Type)]
}

// leastStore is what a disk gives that is not felt when a model is loaded, in bytes a second: a SATA SSD does.
const (
	leastStore = 500e6
	bigModel   = 65e9 // of 120 billion parameters
)

func (ch *checker) models() {
	f, host := ch.node.Facts, ch.node.Host
	if c := f.HubCache; c != nil && c.Roots > 0 {
		ch.add(codeCacheOwner, envgen.SeverityWarning,
			fmt.Sprintf("root's files lie in %s's model cache on %s: downloads into their folders fail", f.User, host),
			fmt.Sprintf("%s: %d of %d files and folders are root's, as `docker run` leaves them", c.Dir, c.Roots, c.Files),
			fmt.Sprintf("sudo chown -R %s: %s", f.User, c.Dir))
	}
	if c := f.HubCache; c != nil && c.Closed != "" {
		ch.add(codeCacheOwner, envgen.SeverityInfo,
			fmt.Sprintf("whether root's files lie in %s's model cache on %s cannot be seen from the agent", f.User, host),
			c.Closed+": NFS takes its root for nobody (root_squash); what the command lists is to be given to "+f.User+
				" on the NFS server", fmt.Sprintf("sudo -u %s find %s ! -user %[1]s", f.User, c.Dir))
	}
	for _, s := range f.Models {
		if s.Bps() >= leastStore {
			continue
		}
		minutes := bigModel / s.Bps() / 60
		where := "the disk"
		if s.Network != "" {
			where = s.Network
		}
		remedy := "sudoedit /etc/sparkrun/policy.yaml # model_cache: a folder on a faster disk"
		if s.Own {
			kind, name, _ := strings.Cut(s.Repo, "s--")
			remedy = "sparkrun model pull " + strings.ReplaceAll(name, "--", "/") + " --on " + host
			if kind == "dataset" {
				remedy += " --type dataset"
			}
		}
		evidence := fmt.Sprintf("%s of a file of %s in %s, past the page cache", size(s.Read), s.Repo,
			s.Took.Round(time.Millisecond))
		if s.Network != "" {
			evidence += "; engines that map files wait longer still: 8:41 min in place of 1:28 were seen elsewhere"
		}
		ch.add(codeModelStorage, envgen.SeverityWarning,
			fmt.Sprintf("models in %s on %s come from %s at %s MB/s: one of 65 GB takes %s min to load", s.Dir, host, where,
				strconv.FormatFloat(s.Bps()/1e6, 'f', 0, 64), strconv.FormatFloat(minutes, 'f', 0, 64)), evidence, remedy)
	}
}
