package oci_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/sparkrun/sparkrun/launcher/filesync/oci"
	"github.com/sparkrun/sparkrun/launcher/filesync/oci/ocitest"
)

// source is an image's in a registry of this test.
func source(t *testing.T, url, ref string, login oci.Login) *oci.Source {
	t.Helper()
	named, err := oci.ParseRef(strings.TrimPrefix(url, "http://") + "/" + ref)
	if err != nil {
		t.Fatal(err)
	}
	s, err := oci.Open(t.Context(), oci.Config{Ref: named, Insecure: true, Login: login, UserAgent: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func read(t *testing.T, s *oci.Source, b oci.Blob, off, n int64) []byte {
	t.Helper()
	body, err := s.OpenBlob(t.Context(), b, off, n)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, n))
	if err != nil || int64(len(text)) != n {
		t.Fatalf("%d bytes of %d: %v", len(text), n, err)
	}
	return text
}

// Of an image for several kinds of machines only the contents of those asked for are listed, and each is read in pieces.
func TestRegistry(t *testing.T) {
	r := ocitest.New()
	root, _ := r.Add("org/tiny", "1", []string{"amd64", "arm64", "riscv64"}, []int{50_000, 300}, nil)
	server := httptest.NewServer(r)
	defer server.Close()
	s := source(t, server.URL, "org/tiny:1", oci.Login{})
	im, err := s.Resolve(t.Context(), []string{"arm64"})
	if err != nil {
		t.Fatal(err)
	}
	if im.Root != root || len(im.Blobs) != 5 || len(im.Platforms) != 1 || im.Platforms[0].Arch != "arm64" ||
		len(im.Platforms[0].DiffIDs) != 2 {
		t.Errorf("resolved %+v, want root %s and 5 contents for arm64", im, root)
	}
	for _, b := range im.Blobs {
		half := b.Size / 2
		text := slices.Concat(read(t, s, b, 0, half), read(t, s, b, half, b.Size-half))
		if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != b.SHA256 {
			t.Errorf("%s (%s) read in two pieces has the sum %x", b.Digest(), b.Type, sum)
		}
	}
	if _, err := s.Resolve(t.Context(), []string{"s390x"}); !errors.Is(err, oci.ErrNoPlatform) {
		t.Errorf("a kind of machine that it lacks: %v", err)
	}
	if _, err := source(t, server.URL, "org/tiny:2", oci.Login{}).Resolve(t.Context(), nil); !errors.Is(err, oci.ErrNoImage) {
		t.Errorf("a tag that is not there: %v", err)
	}
	server.Close()
	if _, err := s.Resolve(t.Context(), nil); !errors.Is(err, oci.ErrOffline) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a registry that is away: %v", err)
	}
}

// A login goes to its registry, and to no host to which that sends on.
func TestLogin(t *testing.T) {
	r, given := ocitest.New(), atomic.Int64{}
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Header.Get("Authorization") != "" {
			t.Errorf("%s was told the login", q.Host)
		}
		given.Add(1)
		r.Store().ServeHTTP(w, q)
	}))
	defer store.Close()
	r.User, r.Password, r.Blobs = "eve", "secret", store.URL
	r.Add("tiny", "1", []string{"arm64"}, []int{1000}, nil)
	server := httptest.NewServer(r)
	defer server.Close()
	if _, err := source(t, server.URL, "tiny:1", oci.Login{}).Resolve(t.Context(), nil); !errors.Is(err, oci.ErrLogin) ||
		!strings.Contains(err.Error(), "docker login 127.0.0.1") {
		t.Errorf("without a login: %v", err)
	}
	s := source(t, server.URL, "tiny:1", oci.Login{Username: "eve", Password: "secret"})
	if _, err := s.Resolve(t.Context(), []string{"arm64"}); err != nil {
		t.Fatal(err)
	}
	if given.Load() == 0 {
		t.Error("no content came from the other host")
	}
}

// An engine gets an image from the endpoint by its secret, in pieces, also where a content breaks off meanwhile.
func TestEndpoint(t *testing.T) {
	text := bytes.Repeat([]byte("0123456789"), 1000)
	sum := sha256.Sum256(text)
	b := oci.Blob{SHA256: hex.EncodeToString(sum[:]), Size: int64(len(text))}
	manifest := oci.Blob{SHA256: strings.Repeat("a", 64), Size: int64(len(text)), Type: ocispec.MediaTypeImageManifest}
	broken := 0
	e, err := oci.Serve(oci.Image{Root: manifest.Digest(), Blobs: []oci.Blob{manifest, b}},
		func(_ context.Context, _ oci.Blob, off, n int64) (io.ReadCloser, error) {
			if broken++; broken < 3 {
				n = min(n, 777) // and no more: as a file that is closed under its reader
			}
			return io.NopCloser(bytes.NewReader(text[off : off+n])), nil
		})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	host, path, _ := strings.Cut(e.Repository(), "/")
	get := func(what, bytes string) (*http.Response, string) {
		q, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+host+"/v2/"+what, nil)
		if bytes != "" {
			q.Header.Set("Range", "bytes="+bytes)
		}
		res, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res, string(body)
	}
	if res, body := get(path+"/blobs/"+b.Digest(), ""); res.StatusCode != http.StatusOK || body != string(text) {
		t.Errorf("whole: %s, %d bytes", res.Status, len(body))
	}
	if res, body := get(path+"/blobs/"+b.Digest(), "5-14"); res.StatusCode != http.StatusPartialContent ||
		body != "5678901234" {
		t.Errorf("a piece: %s %q", res.Status, body)
	}
	if res, _ := get(path+"/manifests/"+manifest.Digest(), ""); res.Header.Get("Content-Type") != manifest.Type {
		t.Errorf("the manifest's type: %v", res.Header)
	}
	for _, what := range []string{strings.Repeat("0", 32) + "/image/blobs/" + b.Digest(), path + "/blobs/" + manifest.Digest()} {
		if res, body := get(what, ""); res.StatusCode != http.StatusNotFound || len(body) > 100 {
			t.Errorf("%s: %s", what, res.Status)
		}
	}
}

// What an engine saves is taken apart; what one of before saves has no sums.
func TestUnpack(t *testing.T) {
	files := map[string][]byte{}
	put := func(kind string, v any) ocispec.Descriptor {
		text, ok := v.([]byte)
		if !ok {
			text, _ = json.Marshal(v)
		}
		d := digest.FromBytes(text)
		files["blobs/sha256/"+d.Encoded()] = text
		return ocispec.Descriptor{MediaType: kind, Digest: d, Size: int64(len(text))}
	}
	layer := put(ocispec.MediaTypeImageLayer, []byte("a layer"))
	var c ocispec.Image
	c.Architecture, c.RootFS.DiffIDs = "arm64", []digest.Digest{layer.Digest}
	config := put(ocispec.MediaTypeImageConfig, c)
	m := put(ocispec.MediaTypeImageManifest, ocispec.Manifest{Config: config, Layers: []ocispec.Descriptor{layer}})
	files["index.json"], _ = json.Marshal(ocispec.Index{Manifests: []ocispec.Descriptor{m}})
	kept := map[string][]byte{}
	unpack := func() (oci.Image, error) {
		var saved bytes.Buffer
		w := tar.NewWriter(&saved)
		for name, text := range files {
			_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))})
			_, _ = w.Write(text)
		}
		_ = w.Close()
		return oci.Unpack(t.Context(), &saved, []string{"arm64"}, func(b oci.Blob, in io.Reader) (err error) {
			kept[b.SHA256], err = io.ReadAll(in)
			return err
		}, func(b oci.Blob) ([]byte, error) { return kept[b.SHA256], nil })
	}
	im, err := unpack()
	if err != nil || im.Root != m.Digest.String() || len(im.Blobs) != 3 || im.Platforms[0].DiffIDs[0] != layer.Digest.String() {
		t.Errorf("unpacked %+v: %v", im, err)
	}
	delete(files, "index.json")
	if _, err := unpack(); !errors.Is(err, oci.ErrOldEngine) {
		t.Errorf("without an index: %v", err)
	}
}
