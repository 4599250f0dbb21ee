package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// How much is read of a model's files, in bytes. An index names the file of each tensor: that of a
// model of 256 experts and 60 layers takes 10 MB.
const (
	maxConfig = 1 << 20
	maxIndex  = 32 << 20
	maxTold   = 64 << 10 // of a config.json, to others
)

// lookWait bounds a look at a model: its disk may be away.
const lookWait = 5 * time.Second

// modelCopy is what this node has of a model: a folder, or a name that Hugging Face's libraries look
// for in their cache. nil: it is not to be seen from outside of the image, or not in time.
func (a *Agent) modelCopy(ctx context.Context, p *prepared, model string, as launcher.Assignment, env []launcher.Setting) *launcher.ModelCopy {
	at := p.modelPlace(model, as.Spec.MainStage().Container, env)
	if !path.IsAbs(at) {
		return nil
	}
	done, err := a.looks(as.Spec.User, maxLooks)
	if err != nil {
		return nil
	}
	found := make(chan *launcher.ModelCopy, 1)
	go func() { // ends with its reads; nobody waits longer than lookWait
		defer done()
		found <- p.who.modelAt(at, model)
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

func (u login) modelAt(at, model string) *launcher.ModelCopy {
	c := &launcher.ModelCopy{Dir: at}
	err := u.do(func() error {
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
	c.Config = readConfig(filepath.Join(dir, "config.json"))
	var index struct {
		Metadata struct {
			Size float64 `json:"total_size"`
		} `json:"metadata"`
		Files map[string]string `json:"weight_map"`
	}
	text, err := readFile(filepath.Join(dir, "model.safetensors.index.json"), maxIndex)
	if err != nil || json.Unmarshal(text, &index) != nil || len(index.Files) == 0 {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".safetensors") {
				c.Bytes += sizeOf(filepath.Join(dir, e.Name()))
			}
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

// readConfig gives a model's config.json without what says how it is quantized, which may name each of its
// layers; nil: there is none, or it is no model's.
func readConfig(name string) []byte {
	text, err := readFile(name, maxConfig)
	var all map[string]json.RawMessage
	if err != nil || json.Unmarshal(text, &all) != nil || all["model_type"] == nil && all["architectures"] == nil {
		return nil
	}
	delete(all, "quantization_config")
	delete(all, "compression_config")
	text, err = json.Marshal(all)
	if err != nil || len(text) > maxTold {
		return nil
	}
	return text
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

// freeAbove is what the file system takes that has, or would have, a folder; nil: not known.
func freeAbove(dir string) *int64 {
	for {
		if st, err := statfs(dir); err == nil {
			return &st.free
		}
		up := filepath.Dir(dir)
		if up == dir {
			return nil
		}
		dir = up
	}
}
