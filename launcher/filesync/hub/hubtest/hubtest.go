// Package hubtest is a stand-in for Hugging Face's Hub, for tests: its API, and a second listener in
// place of the host that has the files, to which LFS files are sent on by signed URLs. It decides
// nothing; faults are made to order. It must not be linked into the program.
package hubtest

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Content is what a file has.
type Content struct {
	Size   int64
	Reader io.ReaderAt
	// SHA256 is worked out if it is empty. For a huge sparse file it may be made up.
	SHA256 string
	LFS    bool // or over 1 MiB, or .safetensors
}

// Text is a small file.
func Text(s string) Content { return Content{Size: int64(len(s)), Reader: strings.NewReader(s)} }

// Sparse is a file of zeros, with each text at its offset. Its sum is made up if it is over 1 GiB.
func Sparse(size int64, at map[int64]string) Content {
	c := Content{Size: size, Reader: sparse(at), LFS: true}
	if size > 1<<30 {
		c.SHA256 = strings.Repeat("5a", 32)
	}
	return c
}

type sparse map[int64]string

func (s sparse) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	for at, text := range s {
		if from, to := max(at, off), min(at+int64(len(text)), off+int64(len(p))); from < to {
			copy(p[from-off:to-off], text[from-at:to-at])
		}
	}
	return len(p), nil
}

// Made is a file of random bytes that takes no disk: a block of them, from another place on for each number, again and
// again. No two chunks of a file are alike.
func Made(size int64, number int) Content { return Content{Size: size, Reader: made(number)} }

type made int64

var block = sync.OnceValue(func() []byte {
	b := make([]byte, 1<<20+4099)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b)
	return b
})

func (m made) ReadAt(p []byte, off int64) (n int, _ error) {
	for b := block(); n < len(p); {
		n += copy(p[n:], b[(int64(m)*12289+off+int64(n))%int64(len(b)):])
	}
	return n, nil
}

// Repo is a repository of one commit.
type Repo struct {
	Name    string
	Type    string // "model" if empty
	Gated   bool   // its files are for those who have one of the server's tokens
	Private bool
	Refs    []string // besides main
	Files   map[string]Content
	Commit  string // worked out if empty
	entries map[string]entry
}

type entry struct {
	Content
	oid string // git's, of the pointer for LFS
}

// Fault is done to the answers about a path: of the file's bytes, or of the API where API is set.
type Fault struct {
	Path   string        `json:"path"` // a part of the URL's path, or the file's; empty: every one
	API    bool          `json:"api"`
	Times  int           `json:"times"`  // how often; 0: always
	After  int64         `json:"after"`  // bytes of the answer that are sent first
	Cut    bool          `json:"cut"`    // the connection
	Drop   bool          `json:"drop"`   // the connection, before an answer
	Flip   bool          `json:"flip"`   // wrong bytes from there on
	Stall  time.Duration `json:"stall"`  // nothing for so long
	Status int           `json:"status"` // in place of the answer
	Wait   string        `json:"wait"`   // Retry-After
	Grow   int64         `json:"grow"`   // the length is told as so much more
	Whole  bool          `json:"whole"`  // Range is ignored
	Away   string        `json:"away"`   // sent on to there
}

// Server is the stand-in. Set its fields before it is asked.
type Server struct {
	Endpoint, CDN string   // its two origins
	Tokens        []string // which may read what is gated or private
	// Expire is how many bytes a signed URL gives: then the connection is cut, and it is answered with
	// 403. 0: it stays good.
	Expire int64
	Page   int // files in a page of the listing; 0: 1000
	// Rate is a limit in bytes a second for each answer; 0: none.
	Rate int64

	mu     sync.Mutex
	repos  map[string]*Repo
	faults []*Fault
	spent  map[string]int64 // of each signature
	leaks  []string
	asked  []string
	sent   atomic.Int64
	done   chan struct{}
	srv    []*http.Server
	wg     sync.WaitGroup
}

// Start listens at two addresses; empty ones: ports of the loopback.
func Start(listen, cdn string) (*Server, error) {
	s := &Server{repos: map[string]*Repo{}, spent: map[string]int64{}, done: make(chan struct{})}
	for i, addr := range []string{listen, cdn} {
		if addr == "" {
			addr = "127.0.0.1:0"
		}
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			s.Close()
			return nil, err
		}
		handler, origin := s.endpoint, &s.Endpoint
		if i == 1 {
			handler, origin = s.cdn, &s.CDN
		}
		*origin = "http://" + ln.Addr().String()
		srv := &http.Server{Handler: http.HandlerFunc(handler), ReadHeaderTimeout: time.Minute}
		s.srv = append(s.srv, srv)
		s.wg.Go(func() { _ = srv.Serve(ln) }) // until Close
	}
	return s, nil
}

// Close ends it, and what is under way.
func (s *Server) Close() error {
	close(s.done)
	for _, srv := range s.srv {
		srv.Close()
	}
	s.wg.Wait()
	return nil
}

// Add takes a repository, or another commit of it, and gives the commit.
func (s *Server) Add(r Repo) (string, error) {
	if r.Type == "" {
		r.Type = "model"
	}
	r.entries = map[string]entry{}
	names := sha1.New()
	for _, p := range sorted(r.Files) {
		c := r.Files[p]
		c.LFS = c.LFS || c.Size > 1<<20 || strings.HasSuffix(p, ".safetensors")
		e := entry{Content: c}
		all := func(h io.Writer) error {
			_, err := io.Copy(h, io.NewSectionReader(c.Reader, 0, c.Size))
			return err
		}
		if git := sha1.New(); c.LFS {
			if e.SHA256 == "" {
				h := sha256.New()
				if err := all(h); err != nil {
					return "", err
				}
				e.SHA256 = hex.EncodeToString(h.Sum(nil))
			}
			pointer := fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", e.SHA256, c.Size)
			fmt.Fprintf(git, "blob %d\x00%s", len(pointer), pointer)
			e.oid = hex.EncodeToString(git.Sum(nil))
		} else {
			fmt.Fprintf(git, "blob %d\x00", c.Size)
			if err := all(git); err != nil {
				return "", err
			}
			e.oid = hex.EncodeToString(git.Sum(nil))
		}
		fmt.Fprintf(names, "%s %s\n", e.oid, p)
		r.entries[p] = e
	}
	if r.Commit == "" {
		r.Commit = hex.EncodeToString(names.Sum(nil))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.repos[r.Type+"s/"+r.Name] = &r
	return r.Commit, nil
}

// AddDir takes a folder's files as a repository.
func (s *Server) AddDir(r Repo, dir string) (string, error) {
	r.Files = map[string]Content{}
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := os.Open(p) // open until the end of the program
		if err != nil {
			return err
		}
		st, err := f.Stat()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		r.Files[filepath.ToSlash(rel)] = Content{Size: st.Size(), Reader: f}
		return err
	})
	if err != nil {
		return "", err
	}
	return s.Add(r)
}

// Fault orders one.
func (s *Server) Fault(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &f)
}

// Heal takes back all faults.
func (s *Server) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// Sent is how many bytes of files have been sent.
func (s *Server) Sent() int64 { return s.sent.Load() }

// Asked lists the requests so far: method, path, Range.
func (s *Server) Asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// Leaks lists requests that brought a token to the second origin.
func (s *Server) Leaks() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.leaks)
}

func (s *Server) find(path string, api bool) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, f := range s.faults {
		if f.API == api && strings.Contains(path, f.Path) {
			if f.Times > 0 {
				if f.Times--; f.Times == 0 {
					s.faults = slices.Delete(s.faults, i, i+1)
				}
			}
			return f
		}
	}
	return nil
}

func (s *Server) note(r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+r.Header.Get("Range")))
}

func sorted[T any](m map[string]T) []string {
	var names []string
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

func refuse(w http.ResponseWriter, status int, code, text string) {
	if code != "" {
		w.Header().Set("X-Error-Code", code)
	}
	w.Header().Set("X-Error-Message", text)
	http.Error(w, text, status)
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // who asked may be gone
}

func signature(u *url.URL) string { return u.Query().Get("Signature") }

func number(s string) int { n, _ := strconv.Atoi(s); return n }
