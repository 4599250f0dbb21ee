package filesync

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
)

// Lay lays out a job's files in its tree, owned by uid and gid. An existing tree is left as
// it is, with what the job's earlier attempts have written.
func (s *Store) Lay(job launcher.JobID, user string, uid, gid int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.owned(job, user)
	if err != nil {
		return err
	}
	final := path.Join(string(job), tree)
	if _, err := s.root.Lstat(final); err == nil {
		return nil
	}
	// Nobody else can enter the unfinished tree: its top folder is ours until the end.
	unfinished := final + ".part"
	if err := s.root.RemoveAll(unfinished); err != nil {
		return s.trouble(err)
	}
	if err := s.root.Mkdir(unfinished, 0o700); err != nil {
		return s.trouble(err)
	}
	top, err := s.root.OpenRoot(unfinished)
	if err != nil {
		return s.trouble(err)
	}
	defer top.Close()
	l := layer{top: top, uid: uid, gid: gid,
		open: func(sum string) (*os.File, error) { return s.root.Open(s.content(job, sum)) }}
	if err := l.lay(r.Files); err != nil {
		return errors.Join(s.trouble(err), s.root.RemoveAll(unfinished))
	}
	if err := l.own("."); err != nil {
		return err
	}
	return s.root.Rename(unfinished, final)
}

// layer writes below top, which nobody else can enter.
type layer struct {
	top      *os.Root
	uid, gid int
	open     func(sum string) (*os.File, error)
}

// lay makes the links last, so that nothing is written through one; then the folders get
// their modes, the innermost first.
func (l layer) lay(m Manifest) error {
	if err := m.Validate(); err != nil {
		return err
	}
	wrap := func(e Entry, err error) error {
		if err != nil {
			return fmt.Errorf("stage %s: %w", e.Path, bare(err))
		}
		return nil
	}
	for _, e := range m {
		var err error
		switch {
		case e.Mode.IsDir():
			err = l.top.Mkdir(e.Path, 0o700)
		case e.Mode.IsRegular():
			err = l.file(e)
		}
		if err := wrap(e, err); err != nil {
			return err
		}
	}
	for _, e := range m {
		if e.Mode.Type() == fs.ModeSymlink {
			if err := wrap(e, errors.Join(l.top.Symlink(e.Link, e.Path), l.own(e.Path))); err != nil {
				return err
			}
		}
	}
	for _, e := range slices.Backward(m) {
		if e.Mode.IsDir() {
			if err := wrap(e, errors.Join(l.top.Chmod(e.Path, e.Mode.Perm()), l.own(e.Path))); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l layer) file(e Entry) (err error) {
	from, err := l.open(e.Sum)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := l.top.OpenFile(e.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	h := sha256.New()
	if _, err := io.Copy(io.MultiWriter(to, h), from); err != nil {
		return err
	}
	if hex.EncodeToString(h.Sum(nil)) != e.Sum {
		return errors.New("its content on this node's disk is damaged: launch the job again")
	}
	if err := to.Chmod(e.Mode.Perm()); err != nil {
		return err
	}
	return l.own(e.Path)
}

// own sets the owner of a path; without root it stays ours.
func (l layer) own(name string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return l.top.Lchown(name, l.uid, l.gid)
}
