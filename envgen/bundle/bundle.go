// Package bundle is the file format of a report: what every node of a cluster read of its hardware and knows of the
// others, in one archive that people can attach to a bug report and that sparkrun can replay. It decides the
// format, and which parts of a text are secret.
//
// It must not read or write anything but the stream it is given, must not know what the files mean, and must not
// trust an archive, which may come from anywhere: names, kinds, numbers and sizes are checked before anything is
// kept, and nothing is ever unpacked to a disk.
//
// The format is a gzip-compressed tar archive of regular files:
//
//	sparkrun-report/manifest.json     Manifest; first
//	sparkrun-report/cluster/PATH      what is known of the cluster as a whole
//	sparkrun-report/nodes/HOST/PATH   what one node gave
//
// There are no links, no devices and no other names. The same bundle always gives the same bytes.
package bundle

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"
)

// Format is the version of the archives that this package writes. It reads none that is
// newer.
const Format = 1

// Bounds of an archive. A Spark's part is about 400 files of 0.5 MB together.
const (
	// MaxFile is the largest file in bytes.
	MaxFile = 8 << 20
	// MaxTotal is the most that an archive may hold unpacked, in bytes, the archive's own headers included.
	MaxTotal = 256 << 20
	// MaxFiles is the most files.
	MaxFiles = 200_000
	// maxPath is the longest path of a file in bytes.
	maxPath = 1024
)

// ErrNoBundle is wrapped by the errors of Read: the stream is no report, or it breaks the rules.
var ErrNoBundle = errors.New("no report of sparkrun")

var errTooMuch = fmt.Errorf("more than %d MiB unpacked", MaxTotal>>20)

// Bundle is a report.
type Bundle struct {
	Manifest
	// Cluster are the files about the cluster as a whole, by path.
	Cluster map[string][]byte
	// Files are each node's files, by host, then path. A node of the manifest without any gave nothing.
	Files map[string]map[string][]byte
}

// Manifest says what a report is.
type Manifest struct {
	Format int `json:"format"`
	// Made is when, by the clock of the machine where the report was made.
	Made time.Time `json:"made"`
	// Sparkrun is the version that made it, Host where.
	Sparkrun string `json:"sparkrun"`
	Host     string `json:"host"`
	// Nodes are all members, by host.
	Nodes []Node `json:"nodes"`
	// Redacted says what was removed and what was not.
	Redacted string `json:"redacted"`
}

// Node is a member in a manifest.
type Node struct {
	Host string `json:"host"`
	ID   string `json:"id"`
	// Missing says why the node gave nothing, or not all; empty where nothing is missing.
	Missing string `json:"missing,omitempty"`
}

const (
	root         = "sparkrun-report/"
	manifestPath = root + "manifest.json"
	clusterPath  = root + "cluster/"
	nodesPath    = root + "nodes/"
)

// Write writes the report. It fails on names and sizes that Read would refuse.
func Write(w io.Writer, b Bundle) error {
	b.Format = Format
	slices.SortStableFunc(b.Nodes, func(x, y Node) int { return cmp.Compare(x.Host, y.Host) })
	manifest, err := json.MarshalIndent(b.Manifest, "", " ")
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	zw := gzip.NewWriter(w)
	tw := tar.NewWriter(zw)
	files, total := 0, 0
	add := func(name string, content []byte) error {
		if err := checkName(name); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
		// Besides its content, in blocks of 512 bytes, a file takes up to three blocks
		// for its name.
		files, total = files+1, total+len(content)+4*512
		if len(content) > MaxFile || files > MaxFiles || total > MaxTotal {
			return fmt.Errorf("write report: %s: it has more than %d MiB, or the report more than %d files or %d MiB",
				name, MaxFile>>20, MaxFiles, MaxTotal>>20)
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: 0o644,
			ModTime: b.Made.Truncate(time.Second), Format: tar.FormatPAX}
		if err := tw.WriteHeader(h); err != nil {
			return fmt.Errorf("write report: %s: %w", name, err)
		}
		_, err := tw.Write(content)
		return err
	}
	if err := add(manifestPath, append(manifest, '\n')); err != nil {
		return err
	}
	for _, p := range slices.Sorted(maps.Keys(b.Cluster)) {
		if err := add(clusterPath+p, b.Cluster[p]); err != nil {
			return err
		}
	}
	for _, n := range b.Nodes {
		part := b.Files[n.Host]
		for _, p := range slices.Sorted(maps.Keys(part)) {
			if err := add(nodesPath+n.Host+"/"+p, part[p]); err != nil {
				return err
			}
		}
	}
	if err := tw.Close(); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return zw.Close()
}

// Read reads a report. Its memory is bounded by MaxTotal, whatever sizes the stream claims.
func Read(r io.Reader) (Bundle, error) {
	b, err := read(r)
	if err != nil {
		return Bundle{}, fmt.Errorf("read report: %w: %w", ErrNoBundle, err)
	}
	return b, nil
}

func read(r io.Reader) (Bundle, error) {
	zr, err := gzip.NewReader(r)
	if err != nil {
		return Bundle{}, err
	}
	tr := tar.NewReader(&bounded{r: zr, left: MaxTotal})
	b := Bundle{Cluster: map[string][]byte{}, Files: map[string]map[string][]byte{}}
	seen := map[string]bool{}
	total := 0 // of what is kept: the holes of a sparse file are not in the stream
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Bundle{}, err
		}
		if h.Typeflag == tar.TypeDir {
			continue // a person may have repacked it
		}
		switch err := checkName(h.Name); {
		case h.Typeflag != tar.TypeReg:
			return Bundle{}, fmt.Errorf("%q is no regular file", h.Name)
		case err != nil:
			return Bundle{}, err
		case seen[h.Name]:
			return Bundle{}, fmt.Errorf("%q is there twice", h.Name)
		case h.Size > MaxFile:
			return Bundle{}, fmt.Errorf("%q has more than %d MiB", h.Name, MaxFile>>20)
		case len(seen) == MaxFiles:
			return Bundle{}, fmt.Errorf("more than %d files", MaxFiles)
		}
		seen[h.Name] = true
		var content bytes.Buffer
		if _, err := content.ReadFrom(io.LimitReader(tr, MaxFile)); err != nil {
			return Bundle{}, fmt.Errorf("%q: %w", h.Name, err)
		}
		if total += content.Len(); total > MaxTotal {
			return Bundle{}, errTooMuch
		}
		if err := b.put(h.Name, content.Bytes()); err != nil {
			return Bundle{}, err
		}
	}
	if !seen[manifestPath] {
		return Bundle{}, fmt.Errorf("%s is missing", manifestPath)
	}
	return b, b.check()
}

func (b *Bundle) put(name string, content []byte) error {
	if name == manifestPath {
		if err := json.Unmarshal(content, &b.Manifest); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
	if p, ok := strings.CutPrefix(name, clusterPath); ok {
		b.Cluster[p] = content
		return nil
	}
	host, p, ok := strings.Cut(strings.TrimPrefix(name, nodesPath), "/")
	if !ok || !strings.HasPrefix(name, nodesPath) {
		return fmt.Errorf("%q is no part of a report", name)
	}
	if b.Files[host] == nil {
		b.Files[host] = map[string][]byte{}
	}
	b.Files[host][p] = content
	return nil
}

// check compares the manifest with the files.
func (b Bundle) check() error {
	if b.Format < 1 || b.Format > Format {
		return fmt.Errorf("it has format %d, and this sparkrun reads 1 to %d: take a newer one", b.Format, Format)
	}
	known := map[string]bool{}
	for _, n := range b.Nodes {
		if n.Host == "" || known[n.Host] {
			return fmt.Errorf("the manifest names the node %q twice", n.Host)
		}
		known[n.Host] = true
	}
	for _, host := range slices.Sorted(maps.Keys(b.Files)) {
		if !known[host] {
			return fmt.Errorf("the manifest does not name the node %q", host)
		}
	}
	return nil
}

// checkName accepts clean relative paths of printable ASCII without a backslash, below the report's folder.
func checkName(name string) error {
	odd := strings.IndexFunc(name, func(r rune) bool { return r < ' ' || r > '~' || r == '\\' }) >= 0
	if odd || len(name) > maxPath || !fs.ValidPath(name) || !strings.HasPrefix(name, root) {
		return fmt.Errorf("%q is no name of a report's file", name)
	}
	return nil
}

// bounded fails after that many bytes: a few packed bytes may unpack to any number.
type bounded struct {
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooMuch
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
