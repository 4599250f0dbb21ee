package filesync

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// Store keeps the files that jobs have brought to a node, a folder for each job:
//
//	JOB/manifest.json  the job's user, and the manifest
//	JOB/content/SUM    the files' contents, for other nodes and later jobs
//	JOB/tree/          laid out for the job, which may write there
//
// Contents that an earlier job of the same user has brought are shared by hard links, so
// that a job is removed by removing its folder. Contents of another user are never used: to
// know a sum is no proof of having the file.
type Store struct {
	dir  string
	root *os.Root

	mu   sync.Mutex // one step at a time
	last struct {   // the user's contents, so that they are not read again for each piece
		job   launcher.JobID
		user  string
		sizes map[string]int64
	}
}

// ErrNone is wrapped if a job has brought nothing here.
var ErrNone = errors.New("nothing of this job is staged here: launch it again")

// OpenStore makes the folder. Users pass through it to the trees of their jobs.
func OpenStore(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("open stage folder: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open stage folder: %w", err)
	}
	return &Store{dir: dir, root: root}, nil
}

// Close closes the folder.
func (s *Store) Close() error { return s.root.Close() }

// Tree is where a job's files are laid out, given the store's folder.
func Tree(dir string, job launcher.JobID) string { return filepath.Join(dir, string(job), tree) }

const (
	tree    = "tree"
	content = "content"
)

type record struct {
	User  string   `json:"user"`
	Files Manifest `json:"files"`
}

// Begin takes a job's manifest and lists the contents that are missing, each once. Called
// again with the same manifest, it lists what is still missing.
func (s *Store) Begin(job launcher.JobID, user string, m Manifest) (missing []string, err error) {
	if err := errors.Join(job.Validate(), m.Validate()); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch had, err := s.record(job); {
	case errors.Is(err, ErrNone):
		if err := s.write(job, record{user, m}); err != nil {
			return nil, errors.Join(s.trouble(err), s.drop(job))
		}
	case err != nil:
		return nil, err
	case had.User != user || had.Files.Sum() != m.Sum():
		return nil, fmt.Errorf("job %s: %w: other files are staged for it", job, launcher.ErrInvalid)
	}
	others := s.contents(user)
	for sum, size := range m.contents() {
		if s.has(job, sum, size) {
			continue
		}
		to := s.content(job, sum)
		if other, there := others[sum]; there && s.root.Link(s.content(other, sum), to) == nil {
			if s.has(job, sum, size) {
				continue
			}
			_ = s.root.Remove(to)
		}
		missing = append(missing, sum)
	}
	slices.Sort(missing)
	return missing, nil
}

// Write takes the next piece of a content; after the last one the sum is checked.
func (s *Store) Write(job launcher.JobID, user, sum string, offset int64, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	size, err := s.size(job, user, sum)
	if err != nil {
		return err
	}
	if offset < 0 || len(data) > ChunkBytes || offset+int64(len(data)) > size {
		return fmt.Errorf("content %s: %w: %d bytes at %d of %d", sum, launcher.ErrInvalid, len(data), offset, size)
	}
	if s.has(job, sum, size) {
		return nil
	}
	part := s.content(job, sum) + ".part"
	f, err := s.root.OpenFile(part, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return s.trouble(err)
	}
	defer f.Close()
	if err := f.Truncate(offset); err != nil { // left by an earlier attempt
		return s.trouble(err)
	}
	if _, err := f.WriteAt(data, offset); err != nil {
		return s.trouble(err)
	}
	if offset+int64(len(data)) < size {
		return nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, 0, size)); err != nil {
		return s.trouble(err)
	}
	if hex.EncodeToString(h.Sum(nil)) != sum {
		_ = s.root.Remove(part)
		return fmt.Errorf("%w: the file has changed while it was sent: launch again", launcher.ErrInvalid)
	}
	return s.trouble(s.root.Rename(part, s.content(job, sum)))
}

// Manifest gives the manifest of a job of that user.
func (s *Store) Manifest(job launcher.JobID, user string) (Manifest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.owned(job, user)
	return r.Files, err
}

// Drop removes what a job of that user has brought so far. The laid-out tree belongs to the
// job, and stays.
func (s *Store) Drop(job launcher.JobID, user string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch _, err := s.owned(job, user); {
	case errors.Is(err, ErrNone) || err == nil && s.IsLaid(job):
		return nil
	case err != nil:
		return err
	}
	return s.drop(job)
}

func (s *Store) drop(job launcher.JobID) error {
	if s.last.job == job {
		s.last.job = ""
	}
	return s.root.RemoveAll(string(job))
}

// Sweep removes uploads that were not continued for so long: their sender was killed.
func (s *Store) Sweep(after time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	jobs, err := fs.ReadDir(s.root.FS(), ".")
	for _, d := range jobs {
		job := launcher.JobID(d.Name())
		if r, rerr := s.record(job); rerr == nil && !s.IsLaid(job) && !s.complete(job, r.Files) &&
			time.Since(s.touched(job)) > after {
			err = errors.Join(err, s.drop(job))
		}
	}
	return err
}

func (s *Store) complete(job launcher.JobID, m Manifest) bool {
	for sum, size := range m.contents() {
		if !s.has(job, sum, size) {
			return false
		}
	}
	return true
}

// touched is when the last piece of a job's files came.
func (s *Store) touched(job launcher.JobID) (last time.Time) {
	_ = fs.WalkDir(s.root.FS(), path.Join(string(job), content), func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // a removed file does not count
		}
		if fi, err := d.Info(); err == nil && fi.ModTime().After(last) {
			last = fi.ModTime()
		}
		return nil
	})
	return last
}

// UserOf names the user whose job has brought files here; empty: there are none.
func (s *Store) UserOf(job launcher.JobID) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, _ := s.record(job)
	return r.User
}

// Read gives a content in pieces of at most ChunkBytes; fn may not keep them. An empty
// content has one empty piece.
func (s *Store) Read(job launcher.JobID, user, sum string, fn func(offset int64, data []byte) error) error {
	s.mu.Lock()
	_, err := s.size(job, user, sum)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	f, err := s.root.Open(s.content(job, sum))
	if err != nil {
		return s.trouble(err)
	}
	defer f.Close()
	return Chunks(f, fn)
}

// Chunks reads to the end, in pieces of at most ChunkBytes; fn may not keep them. Empty
// input has one empty piece.
func Chunks(r io.Reader, fn func(offset int64, data []byte) error) error {
	buf := make([]byte, ChunkBytes)
	for offset := int64(0); ; {
		n, err := io.ReadFull(r, buf)
		if n > 0 || offset == 0 {
			if err := fn(offset, buf[:n]); err != nil {
				return err
			}
			offset += int64(n)
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return err
		}
	}
}

func (m Manifest) contents() map[string]int64 {
	out := map[string]int64{}
	for _, e := range m {
		if e.Mode.IsRegular() {
			out[e.Sum] = e.Size
		}
	}
	return out
}

// contents finds the contents of a user's jobs here: sum -> job. s.mu is held.
func (s *Store) contents(user string) map[string]launcher.JobID {
	out := map[string]launcher.JobID{}
	jobs, _ := fs.ReadDir(s.root.FS(), ".")
	for _, d := range jobs {
		job := launcher.JobID(d.Name())
		if job.Validate() != nil {
			continue
		}
		if _, err := s.owned(job, user); err != nil {
			continue
		}
		sums, _ := fs.ReadDir(s.root.FS(), path.Join(string(job), content))
		for _, sum := range sums {
			out[sum.Name()] = job
		}
	}
	return out
}

func (s *Store) content(job launcher.JobID, sum string) string {
	return path.Join(string(job), content, sum)
}

func (s *Store) has(job launcher.JobID, sum string, size int64) bool {
	fi, err := s.root.Lstat(s.content(job, sum))
	return err == nil && fi.Mode().IsRegular() && fi.Size() == size
}

// size is that of a content in a job of the user. s.mu is held.
func (s *Store) size(job launcher.JobID, user, sum string) (int64, error) {
	if l := &s.last; l.job != job || l.user != user {
		r, err := s.owned(job, user)
		if err != nil {
			return 0, err
		}
		l.job, l.user, l.sizes = job, user, r.Files.contents()
	}
	size, there := s.last.sizes[sum]
	if !there {
		return 0, fmt.Errorf("content %q: %w: job %s has no such file", sum, launcher.ErrInvalid, job)
	}
	return size, nil
}

func (s *Store) owned(job launcher.JobID, user string) (record, error) {
	if err := job.Validate(); err != nil {
		return record{}, err
	}
	r, err := s.record(job)
	if err == nil && r.User != user {
		err = fmt.Errorf("job %s: %w", job, ErrNone)
	}
	return r, err
}

func (s *Store) record(job launcher.JobID) (r record, err error) {
	b, err := s.root.ReadFile(path.Join(string(job), "manifest.json"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return r, fmt.Errorf("job %s: %w", job, ErrNone)
	case err == nil:
		err = json.Unmarshal(b, &r)
	}
	return r, err
}

func (s *Store) write(job launcher.JobID, r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	dir := string(job)
	for _, d := range []struct {
		path string
		mode fs.FileMode
	}{{dir, 0o711}, {path.Join(dir, content), 0o700}} {
		if err := s.root.Mkdir(d.path, d.mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	part := path.Join(dir, "manifest.json.part")
	if err := s.root.WriteFile(part, b, 0o600); err != nil {
		return err
	}
	return s.root.Rename(part, path.Join(dir, "manifest.json"))
}

// trouble adds a hint to an error of a full disk.
func (s *Store) trouble(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: free some space in %s on this node", bare(err), s.dir)
	}
	return err
}

// IsLaid reports whether a job's files have been laid out.
func (s *Store) IsLaid(job launcher.JobID) bool {
	fi, err := s.root.Lstat(path.Join(string(job), tree))
	return err == nil && fi.IsDir()
}
