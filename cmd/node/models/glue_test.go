package models

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/launcher/filesync/relay"
)

type heldBlob struct{ *modelcache.Blob }

func (heldBlob) WriteAt([]byte, int64) (int, error) { return 0, errors.ErrUnsupported }
func (heldBlob) Keep(relay.Sum, []byte) error       { return errors.ErrUnsupported }

// A file goes from the outside through the caches of a chain, each of which hands it on; one that comes later has it
// from them. Both sides make the same sums.
func TestChainOfCaches(t *testing.T) {
	content := make([]byte, 5*relay.ChunkBytes+7)
	rand.NewChaCha8([32]byte{1}).Read(content)
	for _, n := range []int{0, 1, relay.ChunkBytes / 16, relay.ChunkBytes/16 + 1, relay.ChunkBytes} {
		if modelcache.SumOf(content[:n]) != relay.SumOf(content[:n]) {
			t.Errorf("the sums of %d bytes differ", n)
		}
	}
	sum := sha256.Sum256(content)
	file := modelcache.File{Path: "model.safetensors", Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:])}
	repo := modelcache.Repo{Type: "model", Name: "org/name"}
	var mu sync.Mutex
	const nodes = 4
	sources := make([]relay.Source, nodes)
	var urls []string
	for i := range nodes {
		s := httptest.NewServer(relay.Handler(func(*http.Request, string) (relay.Source, error) {
			mu.Lock()
			defer mu.Unlock()
			if sources[i] == nil {
				return nil, errors.New("none here")
			}
			return sources[i], nil
		}))
		defer s.Close()
		urls = append(urls, s.URL)
	}
	outside := 0
	fetch := func(i int) error {
		c, err := modelcache.Open(modelcache.Config{Dir: t.TempDir()})
		if err != nil {
			return err
		}
		part, err := c.Begin(repo, file)
		if err != nil {
			return err
		}
		sums, state, at := part.Kept()
		cfg := relay.Config{Size: file.Size, SHA256: file.SHA256, GitSHA1: file.GitOID, Part: part, Self: i,
			Kept: relay.Kept{Sums: sums, Hash: state, At: at}, Buffers: relay.NewBuffers(3),
			Outside: func(ctx context.Context, off, n int64) (io.ReadCloser, error) {
				mu.Lock()
				outside += int(n)
				mu.Unlock()
				return io.NopCloser(bytes.NewReader(content[off : off+n])), nil
			},
			Event: func(e relay.Event) { t.Logf("node%d: %+v", i, e) }}
		for j := range nodes {
			cfg.Chain = append(cfg.Chain, relay.Member{Name: urls[j], Source: relay.Remote{Client: http.DefaultClient, Base: urls[j], Key: "k"}})
		}
		f, err := relay.New(cfg)
		if err != nil {
			return err
		}
		mu.Lock()
		sources[i] = f
		mu.Unlock()
		if err := f.Run(t.Context()); err != nil {
			return err
		}
		if err := part.Finish(true); err != nil {
			return err
		}
		blob, err := c.OpenBlob(repo, file)
		if err != nil {
			return err
		}
		var kept relay.Kept
		for k := 0; ; k++ {
			s, ok := blob.Sum(k)
			if !ok {
				break
			}
			kept.Sums = append(kept.Sums, s)
		}
		held, err := relay.Hold(relay.Config{Size: file.Size, SHA256: file.SHA256, Part: heldBlob{blob}, Kept: kept})
		if err != nil {
			return err
		}
		mu.Lock()
		sources[i] = held
		mu.Unlock()
		got := make([]byte, len(content))
		if _, err := blob.ReadAt(got, 0); err != nil && err != io.EOF || !bytes.Equal(got, content) {
			t.Errorf("node%d: wrong bytes, %v", i, err)
		}
		return nil
	}
	var all sync.WaitGroup
	for i := range nodes - 1 {
		all.Go(func() {
			if err := fetch(i); err != nil {
				t.Errorf("node%d: %v", i, err)
			}
		})
	}
	all.Wait()
	if err := fetch(nodes - 1); err != nil {
		t.Error("last:", err)
	}
	if outside != len(content) {
		t.Errorf("%d of %d from outside", outside, len(content))
	}
}
