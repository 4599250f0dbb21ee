package agent

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// How much is read of a model's files, in bytes. An index names the file of each tensor: that of a
// model of 256 experts and 60 layers takes 10 MB.
const (
	maxConfig = 1 << 20
	maxIndex  = 64 << 20
)

// modelCopy is what this node has of a model: a folder, or a name that Hugging Face's libraries look
// for in their cache. nil: it is not to be seen from outside of the image.
func (p *prepared) modelCopy(model string, st launcher.Stage, env []launcher.Setting) *launcher.ModelCopy {
	at := p.modelPlace(model, st.Container, env)
	if at == "" {
		return nil
	}
	c := &launcher.ModelCopy{Dir: at}
	err := p.who.do(func() error {
		c.Free = freeAbove(at)
		dir := at
		if !path.IsAbs(model) {
			if dir = snapshotOf(at, model); dir == "" {
				return nil
			}
		}
		fi, err := os.Stat(dir)
		if err != nil {
			return err
		}
		c.Dir, c.Found = dir, true
		if fi.IsDir() {
			lookAtModel(dir, c)
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil // the server will say what it may not
	}
	return c
}

// modelPlace is the node's folder with the model, or with the cache; empty: it is the image's, or nowhere.
func (p *prepared) modelPlace(model string, c *launcher.Container, env []launcher.Setting) string {
	named := !path.IsAbs(model)
	switch {
	case c == nil && named:
		return cmp.Or(valueOf(env, "HF_HUB_CACHE"), path.Join(hfHome(env), "hub"))
	case c == nil:
		return path.Clean(model)
	case named && valueOf(env, "HF_HUB_CACHE") != "":
		return ""
	case named:
		m, _, err := p.who.modelCache(c, valueOf(env, "HF_HOME"))
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

// hfHome is where Hugging Face's libraries keep what they fetch (huggingface_hub/constants.py).
func hfHome(env []launcher.Setting) string {
	cache := cmp.Or(valueOf(env, "XDG_CACHE_HOME"), path.Join(valueOf(env, "HOME"), ".cache"))
	return cmp.Or(valueOf(env, "HF_HOME"), path.Join(cache, "huggingface"))
}

// snapshotOf is the folder of a model's main revision in a cache of Hugging Face
// (huggingface_hub/file_download.py); empty: it has none.
func snapshotOf(hub, model string) string {
	repo := filepath.Join(hub, "models--"+strings.ReplaceAll(model, "/", "--"))
	ref, err := readFile(filepath.Join(repo, "refs", "main"), 256)
	if err != nil {
		return ""
	}
	dir := filepath.Join(repo, "snapshots", filepath.Base(strings.TrimSpace(string(ref))))
	if _, err := os.Stat(filepath.Join(dir, "config.json")); err != nil {
		return ""
	}
	return dir
}

// lookAtModel fills in what a folder has. A file of a cache is a link to its blob, which is there
// once it is whole.
func lookAtModel(dir string, c *launcher.ModelCopy) {
	c.Config, _ = readFile(filepath.Join(dir, "config.json"), maxConfig)
	var index struct {
		Metadata struct {
			Size float64 `json:"total_size"`
		} `json:"metadata"`
		Files map[string]string `json:"weight_map"`
	}
	text, err := readFile(filepath.Join(dir, "model.safetensors.index.json"), maxIndex)
	if err != nil || json.Unmarshal(text, &index) != nil || len(index.Files) == 0 {
		found, _ := filepath.Glob(filepath.Join(dir, "*.safetensors"))
		for _, file := range found {
			c.Bytes += sizeOf(file)
		}
		return
	}
	c.Whole = int64(index.Metadata.Size)
	seen := map[string]bool{}
	for _, file := range index.Files {
		if seen[file] {
			continue
		}
		seen[file] = true
		n := sizeOf(filepath.Join(dir, filepath.Base(file)))
		if c.Bytes += n; n == 0 {
			c.Lacks++
		}
	}
}

// sizeOf is 0 of what is not there.
func sizeOf(file string) int64 {
	fi, err := os.Stat(file)
	if err != nil || !fi.Mode().IsRegular() {
		return 0
	}
	return fi.Size()
}

// readFile reads a file, and nothing that could be waited for; one with more bytes is an error.
func readFile(name string, most int64) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !fi.Mode().IsRegular() || fi.Size() > most:
		return nil, fmt.Errorf("%s: %w: a file of %d bytes at most is read", name, fs.ErrInvalid, most)
	}
	return io.ReadAll(io.LimitReader(f, most))
}

// freeAbove is what the file system takes that has, or would have, a folder; 0: not known.
func freeAbove(dir string) int64 {
	for {
		if st, err := statfs(dir); err == nil {
			return st.free
		}
		up := filepath.Dir(dir)
		if up == dir {
			return 0
		}
		dir = up
	}
}
