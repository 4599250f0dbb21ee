// Package modeldir decides what a machine has of a model: a folder with its files, or its
// files in the cache of Hugging Face's libraries. The agent looks with the rights of a
// user, the command line with its own.
//
// It must not block: a model's path may be a pipe, a device or a disk image. It must not
// say what a model needs, which is for workloads.
package modeldir

import (
	"cmp"
	"encoding/json"
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

// How much is read of a model's files, in bytes. An index names the file of each tensor:
// with 256 experts and 60 layers it takes 10 MB.
const (
	maxConfig = 1 << 20
	maxIndex  = 32 << 20
	maxRef    = 256
)

// Cache is the folder of Hugging Face's cache by an environment
// (huggingface_hub/constants.py); it may be relative, or empty.
func Cache(getenv func(string) string) string {
	return cmp.Or(getenv("HF_HUB_CACHE"), path.Join(Home(getenv), "hub"))
}

// Home is where Hugging Face's libraries keep all that they fetch.
func Home(getenv func(string) string) string {
	cache := cmp.Or(getenv("XDG_CACHE_HOME"), path.Join(getenv("HOME"), ".cache"))
	return cmp.Or(getenv("HF_HOME"), path.Join(cache, "huggingface"))
}

// Snapshot is the folder of a model, NAME[@REVISION], in a cache (huggingface_hub/file_download.py); without a
// revision it is the main one's. Empty: it has none.
func Snapshot(cache, model string) string {
	name, rev, _ := strings.Cut(model, "@")
	rev = cmp.Or(rev, "main")
	if !fs.ValidPath(rev) {
		return ""
	}
	repo := filepath.Join(cache, "models--"+strings.ReplaceAll(name, "/", "--"))
	commit := rev
	if ref, err := readFile(filepath.Join(repo, "refs", rev), maxRef); err == nil {
		commit = strings.TrimSpace(string(ref))
	}
	dir := filepath.Join(repo, "snapshots", filepath.Base(commit))
	if _, err := os.Stat(filepath.Join(dir, "config.json")); err != nil {
		return ""
	}
	return dir
}

// Look reports what a folder has of a model. A file in a cache is a link to its blob, which
// exists once it is complete. An error is about its config.json, and wraps fs.ErrNotExist
// if it has none; what is known of the weights is returned all the same.
func Look(dir string) (c launcher.ModelCopy, err error) {
	c.Dir, c.Found = dir, true
	c.Config, err = readConfig(filepath.Join(dir, "config.json"))
	var index struct {
		Metadata struct {
			Size any `json:"total_size"`
		} `json:"metadata"`
		Files map[string]string `json:"weight_map"`
	}
	text, ierr := readFile(filepath.Join(dir, "model.safetensors.index.json"), maxIndex)
	if ierr != nil || json.Unmarshal(text, &index) != nil {
		index.Files = nil
	} else if size, ok := index.Metadata.Size.(float64); ok && size > 0 && size < maxModel {
		c.Whole = int64(size)
	}
	if len(index.Files) == 0 {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".safetensors") {
				c.Bytes += sizeOf(filepath.Join(dir, e.Name()))
			}
		}
		return c, err
	}
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
	return c, err
}

// maxModel is more than any model has, and the most that an index may claim: 1 PiB.
const maxModel = 1 << 50

// readConfig gives a model's config.json without the quantization, which may list each of
// its layers.
func readConfig(name string) ([]byte, error) {
	text, err := readFile(name, maxConfig)
	if err != nil {
		return nil, err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if all["model_type"] == nil && all["architectures"] == nil { // another file of that name may hold secrets
		return nil, fmt.Errorf("read %s: %w: it has no model_type, and no architectures", name, fs.ErrInvalid)
	}
	delete(all, "quantization_config")
	delete(all, "compression_config")
	if text, err = json.Marshal(all); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return text, nil
}

// sizeOf is 0 for a missing file.
func sizeOf(file string) int64 {
	fi, err := os.Stat(file)
	if err != nil || !fi.Mode().IsRegular() {
		return 0
	}
	return fi.Size()
}

// readFile reads a regular file, and nothing that could block, or that acts when it is
// opened; a file with more than most bytes is an error.
func readFile(name string, most int64) ([]byte, error) {
	fi, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	bad := func(fi fs.FileInfo) bool { return !fi.Mode().IsRegular() || fi.Size() > most }
	refused := fmt.Errorf("read %s: %w: want a file of at most %d bytes", name, fs.ErrInvalid, most)
	if bad(fi) {
		return nil, refused
	}
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0) // it may have been replaced since
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if fi, err = f.Stat(); err != nil {
		return nil, err
	}
	if bad(fi) {
		return nil, refused
	}
	return io.ReadAll(io.LimitReader(f, most))
}
