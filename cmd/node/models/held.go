package models

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/launcher/filesync/relay"
)

// keyOf names a content between members: who has it has it, whichever order it came by.
func keyOf(r modelcache.Repo, f modelcache.File) string {
	return strings.Join([]string{r.Type, r.Name, f.ETag(), strconv.FormatInt(f.Size, 10)}, ":")
}

func parseKey(key string) (modelcache.Repo, modelcache.File, error) {
	parts := strings.Split(key, ":")
	if len(parts) != 4 {
		return modelcache.Repo{}, modelcache.File{}, fmt.Errorf("read file %q: want TYPE:NAME:SUM:SIZE", key)
	}
	f := modelcache.File{Path: "content", SHA256: parts[2]}
	if len(parts[2]) == 40 {
		f.SHA256, f.GitOID = "", parts[2]
	}
	var err error
	f.Size, err = strconv.ParseInt(parts[3], 10, 64)
	return modelcache.Repo{Type: parts[0], Name: parts[1]}, f, err
}

// Handler gives members the files that are here, and those that arrive.
func (m *Models) Handler() http.Handler {
	return relay.Handler(func(_ *http.Request, key string) (relay.Source, error) { return m.find(key) })
}

func (m *Models) find(key string) (relay.Source, error) {
	if s := m.open(key); s != nil {
		return s, nil
	}
	repo, file, err := parseKey(key)
	if err != nil {
		return nil, err
	}
	blob, err := m.cacheOf(repo).OpenBlob(repo, file)
	if err != nil {
		return nil, err
	}
	h := &heldFile{repo: repo, blob: blob, used: time.Now()}
	h.Held, err = relay.Hold(relay.Config{Size: file.Size, SHA256: file.SHA256, GitSHA1: file.GitOID,
		Part: blobPart{blob}, Kept: keptOf(blob)})
	if err != nil {
		blob.Close()
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if other := m.held[key]; other != nil { // opened by another meanwhile
		blob.Close()
		return other, nil
	}
	for len(m.held) >= heldOpen {
		m.letGoOldest()
	}
	m.held[key] = h
	h.idle = time.AfterFunc(heldFor, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.held[key] == h {
			m.letGo(key)
		}
	})
	return h, nil
}

// open gives what is open of a content: the file that arrives, else the whole one; nil: neither is.
func (m *Models) open(key string) relay.Source {
	m.mu.Lock()
	defer m.mu.Unlock()
	if strings.HasPrefix(key, modelcache.Image) {
		m.imagesAt = time.Now()
	}
	if f := m.under[key]; f != nil {
		return f
	}
	if h := m.held[key]; h != nil {
		h.idle.Reset(heldFor)
		h.used = time.Now()
		return h
	}
	return nil
}

// heldFile is a whole file that somebody reads. Whoever reads it at the moment it is let go asks again.
type heldFile struct {
	*relay.Held
	repo modelcache.Repo
	blob *modelcache.Blob
	idle *time.Timer
	used time.Time
}

// letGo and letGoOldest are called under mu.
func (m *Models) letGo(key string) {
	h := m.held[key]
	h.idle.Stop()
	h.blob.Close()
	delete(m.held, key)
}

func (m *Models) letGoOldest() {
	oldest := ""
	for key, h := range m.held {
		if oldest == "" || h.used.Before(m.held[oldest].used) {
			oldest = key
		}
	}
	m.letGo(oldest)
}

func keptOf(b *modelcache.Blob) (k relay.Kept) {
	for i := 0; ; i++ {
		sum, ok := b.Sum(i)
		if !ok {
			return k
		}
		k.Sums = append(k.Sums, sum)
	}
}

// blobPart is a whole file as relay knows parts: it is only read.
type blobPart struct{ *modelcache.Blob }

func (blobPart) WriteAt([]byte, int64) (int, error) { return 0, errReadOnly }
func (blobPart) Keep(relay.Sum, []byte) error       { return errReadOnly }

var errReadOnly = fmt.Errorf("write a whole file: %w", http.ErrNotSupported)
