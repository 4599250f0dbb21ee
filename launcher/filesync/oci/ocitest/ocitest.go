// Package ocitest is a stand-in for a registry, for tests: the half that pulls, with images that it makes itself of
// random bytes. It counts what it sends, and may ask for a login.
package ocitest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Registry answers. Its fields are set before it does.
type Registry struct {
	User, Password string // a login that it asks for; empty: none
	Rate           int64  // of all that it sends, in bytes a second; 0: any
	Blobs          string // a URL to which it sends on who asks for a content; empty: it gives it itself

	Sent atomic.Int64 // bytes of contents and manifests

	mu    sync.Mutex
	blobs map[string]blob   // by digest
	tags  map[string]string // NAME:TAG -> digest
	free  time.Time         // when the rate lets the next bytes go
}

type blob struct {
	text []byte
	kind string
}

// New is an empty one.
func New() *Registry { return &Registry{blobs: map[string]blob{}, tags: map[string]string{}} }

func (r *Registry) put(kind string, text []byte) ocispec.Descriptor {
	r.mu.Lock()
	defer r.mu.Unlock()
	sum := sha256.Sum256(text)
	d := "sha256:" + hex.EncodeToString(sum[:])
	r.blobs[d] = blob{text, kind}
	return ocispec.Descriptor{MediaType: kind, Digest: digest.Digest(d), Size: int64(len(text))}
}

// Add makes an image NAME:TAG with a layer of each of these sizes, for each of these kinds of machine: an index where
// they are more than one. Each layer has a file /layerN of random bytes; first, if any, is the first layer's tar.
func (r *Registry) Add(name, tag string, arches []string, sizes []int, first []byte) (digest string, bytes int64) {
	var index ocispec.Index
	index.SchemaVersion, index.MediaType = 2, ocispec.MediaTypeImageIndex
	for _, arch := range arches {
		var m ocispec.Manifest
		m.SchemaVersion, m.MediaType = 2, ocispec.MediaTypeImageManifest
		var c ocispec.Image
		c.OS, c.Architecture, c.RootFS.Type = "linux", arch, "layers"
		now := time.Now().UTC()
		c.Created, c.Config.Env = &now, []string{"PATH=/bin", "SHAPE=standin"}
		tars := [][]byte{}
		if first != nil {
			tars = append(tars, first)
		}
		for i, size := range sizes {
			tars = append(tars, layer(fmt.Sprintf("layer%d", i), size))
		}
		for _, t := range tars {
			sum := sha256.Sum256(t)
			c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, digestOf(sum))
			m.Layers = append(m.Layers, r.put(ocispec.MediaTypeImageLayerGzip, zipped(t)))
		}
		m.Config = r.put(ocispec.MediaTypeImageConfig, text(c))
		d := r.put(ocispec.MediaTypeImageManifest, text(m))
		d.Platform = &ocispec.Platform{OS: "linux", Architecture: arch}
		index.Manifests = append(index.Manifests, d)
		if arch == arches[0] {
			bytes = d.Size + m.Config.Size
			for _, l := range m.Layers {
				bytes += l.Size
			}
		}
	}
	root := index.Manifests[0]
	if len(arches) > 1 {
		root = r.put(ocispec.MediaTypeImageIndex, text(index))
		bytes += root.Size
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tags[name+":"+tag] = root.Digest.String()
	return root.Digest.String(), bytes
}

func digestOf(sum [32]byte) digest.Digest {
	return digest.Digest("sha256:" + hex.EncodeToString(sum[:]))
}

func text(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func layer(name string, size int) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(size)})
	var seed [32]byte
	_, _ = rand.Read(seed[:])
	_, _ = io.CopyN(w, mathrand.NewChaCha8(seed), int64(size))
	_ = w.Close()
	return b.Bytes()
}

func zipped(t []byte) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.NoCompression)
	_, _ = w.Write(t)
	_ = w.Close()
	return b.Bytes()
}

// ServeHTTP answers.
func (r *Registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if q.URL.Path == "/_standin/sent" {
		fmt.Fprint(w, r.Sent.Load())
		return
	}
	if user, password, _ := q.BasicAuth(); r.User != "" && (user != r.User || password != r.Password) {
		w.Header().Set("WWW-Authenticate", `Basic realm="standin"`)
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
		return
	}
	if q.URL.Path == "/v2/" {
		return
	}
	r.give(w, q, r.Blobs)
}

// Store gives contents to anybody, as the host does to which a registry sends on.
func (r *Registry) Store() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { r.give(w, q, "") })
}

func (r *Registry) give(w http.ResponseWriter, q *http.Request, elsewhere string) {
	path := strings.TrimPrefix(q.URL.Path, "/v2/")
	name, what, is := strings.Cut(path, "/manifests/")
	if !is {
		name, what, _ = strings.Cut(path, "/blobs/")
	}
	r.mu.Lock()
	if d := r.tags[name+":"+what]; d != "" {
		what = d
	}
	b, ok := r.blobs[what]
	r.mu.Unlock()
	switch {
	case !ok:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`)
		return
	case !is && elsewhere != "":
		http.Redirect(w, q, elsewhere+q.URL.Path, http.StatusTemporaryRedirect)
		return
	}
	w.Header().Set("Docker-Content-Digest", what)
	w.Header().Set("Content-Type", b.kind)
	http.ServeContent(counted{w, r}, q, "", time.Time{}, bytes.NewReader(b.text))
}

type counted struct {
	http.ResponseWriter
	r *Registry
}

func (c counted) Write(p []byte) (int, error) {
	c.r.wait(len(p))
	n, err := c.ResponseWriter.Write(p)
	c.r.Sent.Add(int64(n))
	return n, err
}

// wait holds to the rate.
func (r *Registry) wait(n int) {
	if r.Rate == 0 {
		return
	}
	r.mu.Lock()
	now := time.Now()
	if r.free.Before(now) {
		r.free = now
	}
	r.free = r.free.Add(time.Duration(int64(n) * int64(time.Second) / r.Rate))
	until := r.free
	r.mu.Unlock()
	time.Sleep(time.Until(until))
}
