// Package filesync decides how a set of files is described when it is sent: a manifest
// names each file by its content (SHA-256). It reads one from a user's folders, keeps the
// files on a node and lays them out for a job there. Nothing in a manifest can lead out of
// the folder that it is laid out in.
//
// It must not know of networks: who sends a manifest and its contents, and to whom, is
// decided elsewhere.
package filesync

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/sparkrun/sparkrun/launcher"
)

// Limits of one job. A manifest is sent as one message.
const (
	MaxEntries       = 10_000
	MaxManifestBytes = 2 << 20
	ChunkBytes       = 1 << 20 // of content in one message
)

// Entry is one file, folder or symbolic link.
type Entry struct {
	Path string      `json:"path"` // slashes; relative, and inside
	Mode fs.FileMode `json:"mode"` // type and permissions, no other bits
	Size int64       `json:"size,omitempty"`
	Sum  string      `json:"sum,omitempty"`  // of a regular file's content: SHA-256, lower-case hex
	Link string      `json:"link,omitempty"` // a symbolic link's target
}

// Manifest is a tree of files: sorted by path, each folder with an entry of its own.
type Manifest []Entry

// Bytes is the size of all contents together.
func (m Manifest) Bytes() (sum int64) {
	for _, e := range m {
		sum += e.Size
	}
	return sum
}

// Sum is the hash of the manifest.
func (m Manifest) Sum() string {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // strings and numbers can always be encoded
	}
	return sumOf(b)
}

func sumOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Validate returns an error for the first entry that could not be laid out, or would lead
// out of the folder. The manifest may come from anybody.
func (m Manifest) Validate() error {
	if len(m) > MaxEntries {
		return fmt.Errorf("%d files and folders: %w: %d can be staged: put them in an archive, or on shared storage",
			len(m), launcher.ErrInvalid, MaxEntries)
	}
	dirs, total, text := map[string]bool{".": true}, int64(0), 0
	for i, e := range m {
		if err := e.validate(); err != nil {
			return fmt.Errorf("%q: %w: %w", e.Path, launcher.ErrInvalid, err)
		}
		switch {
		case i > 0 && m[i-1].Path >= e.Path:
			return fmt.Errorf("%q: %w: it is there twice, or out of order", e.Path, launcher.ErrInvalid)
		case !dirs[path.Dir(e.Path)]:
			return fmt.Errorf("%q: %w: its folder is not in the manifest", e.Path, launcher.ErrInvalid)
		case e.Mode.IsDir():
			dirs[e.Path] = true
		}
		if total += e.Size; total > launcher.MaxStagedBytes {
			return fmt.Errorf("%q: %w: with it there are more than %d GiB: models and data sets belong on storage "+
				"that all machines share", e.Path, launcher.ErrInvalid, launcher.MaxStagedBytes>>30)
		}
		text += len(e.Path) + len(e.Link) + 160 // the rest of an entry in JSON, at most
	}
	if text > MaxManifestBytes {
		return fmt.Errorf("%w: the names of %d files and folders are too long together: put them in an archive",
			launcher.ErrInvalid, len(m))
	}
	return nil
}

func (e Entry) validate() error {
	if e.Path == "." || !filepath.IsLocal(e.Path) || path.Clean(e.Path) != e.Path || strings.Contains(e.Path, "\x00") {
		return fmt.Errorf("the path leads out of the folder, or is not a clean one")
	}
	kind := e.Mode.Type()
	switch {
	case !utf8.ValidString(e.Path) || !utf8.ValidString(e.Link):
		return fmt.Errorf("the name %q, or what it links to, is not UTF-8: rename it, or put it in an archive", e.Path)
	case kind == 0 && e.Size > launcher.MaxStagedBytes:
		return fmt.Errorf("a file of %d bytes: more than %d GiB: models and data sets belong on storage that all "+
			"machines share", e.Size, launcher.MaxStagedBytes>>30)
	case e.Mode&^(fs.ModeType|fs.ModePerm) != 0:
		return fmt.Errorf("mode %s: want permissions only", e.Mode)
	case kind == 0 && (!isSum(e.Sum) || e.Size < 0 || e.Link != ""):
		return fmt.Errorf("a file of %d bytes with the sum %q: want a SHA-256", e.Size, e.Sum)
	case kind != 0 && (e.Size != 0 || e.Sum != ""):
		return fmt.Errorf("only regular files have content")
	case kind == fs.ModeSymlink:
		return staysInside(e.Path, e.Link)
	case kind != 0 && kind != fs.ModeDir || kind == fs.ModeDir && e.Link != "":
		return fmt.Errorf("it is neither a file, a folder nor a symbolic link (%s)", e.Mode)
	}
	return nil
}

// staysInside lets a link lead up only at its beginning, and no further than the top. The
// folders above a link are real ones, so that these steps lead where they seem to; after
// them every name leads down, or is such a link itself. A ".." after the name of a link
// would start from that link's target.
func staysInside(at, link string) error {
	if path.IsAbs(link) || link == "" || strings.Contains(link, "\x00") {
		return fmt.Errorf("it is a link to %q: only relative links that stay inside can be staged", link)
	}
	depth, down := strings.Count(at, "/"), false
	for _, name := range strings.Split(link, "/") {
		switch name {
		case "", ".":
		case "..":
			if depth--; down || depth < 0 {
				return fmt.Errorf("it is a link to %q: only links that stay inside can be staged", link)
			}
		default:
			down = true
		}
	}
	return nil
}

func isSum(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == sha256.Size && strings.ToLower(s) == s
}

// PathOf gives a file that has the content with that sum.
func (m Manifest) PathOf(sum string) string {
	for _, e := range m {
		if e.Sum == sum {
			return e.Path
		}
	}
	return sum
}
