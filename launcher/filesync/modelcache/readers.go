package modelcache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Readers are those who may read a folder beside its owner.
type Readers struct{ UIDs, GIDs []uint32 }

// ErrNoACL says that a folder cannot be kept for some users.
var ErrNoACL = errors.New("its file system has no ACLs")

// An ACL is an attribute of a folder (linux/posix_acl_xattr.h): a version, then entries in the order of these tags,
// those of one tag by id.
const (
	aclName    = "system.posix_acl_access"
	aclVersion = 2
	aclOwner   = 0x01
	aclUser    = 0x02
	aclGroup   = 0x04
	aclGroups  = 0x08 // another group than the folder's
	aclMask    = 0x10
	aclOther   = 0x20
	aclNobody  = 0xffffffff // the id of an entry that needs none
	aclRead    = 5          // read and enter
)

func (r Readers) acl() []byte {
	b := binary.LittleEndian.AppendUint32(nil, aclVersion)
	add := func(tag, perm uint16, ids ...uint32) {
		for _, id := range slices.Compact(slices.Sorted(slices.Values(ids))) {
			b = binary.LittleEndian.AppendUint16(b, tag)
			b = binary.LittleEndian.AppendUint16(b, perm)
			b = binary.LittleEndian.AppendUint32(b, id)
		}
	}
	add(aclOwner, 7, aclNobody)
	add(aclUser, aclRead, r.UIDs...)
	add(aclGroup, 0, aclNobody)
	add(aclGroups, aclRead, r.GIDs...)
	add(aclMask, aclRead, aclNobody) // with it the kernel keeps also an ACL that names nobody
	add(aclOther, 0, aclNobody)
	return b
}

// readersOf reads an ACL; nil: there is none of ours.
func readersOf(d *os.File) (*Readers, error) {
	b := make([]byte, 64<<10) // XATTR_SIZE_MAX
	n, err := unix.Fgetxattr(int(d.Fd()), aclName, b)
	switch {
	case errors.Is(err, unix.ENODATA):
		return nil, nil
	case errors.Is(err, unix.EOPNOTSUPP):
		return nil, ErrNoACL
	case err != nil:
		return nil, fmt.Errorf("read the ACL of %s: %w", d.Name(), err)
	}
	r := &Readers{}
	for b = b[min(4, n):n]; len(b) >= 8; b = b[8:] {
		tag, perm := binary.LittleEndian.Uint16(b), binary.LittleEndian.Uint16(b[2:])
		switch id := binary.LittleEndian.Uint32(b[4:]); {
		case perm&aclRead != aclRead:
		case tag == aclUser:
			r.UIDs = append(r.UIDs, id)
		case tag == aclGroups:
			r.GIDs = append(r.GIDs, id)
		case tag == aclOther:
			return nil, nil
		}
	}
	return r, nil
}

func setReaders(d *os.File, r Readers) error {
	err := unix.Fsetxattr(int(d.Fd()), aclName, r.acl(), 0)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return ErrNoACL
	}
	if err != nil {
		return fmt.Errorf("set the ACL of %s: %w", d.Name(), err)
	}
	return d.Sync()
}

// everybody takes the ACL away.
func everybody(d *os.File, mode fs.FileMode) error {
	err := unix.Fremovexattr(int(d.Fd()), aclName)
	if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("remove the ACL of %s: %w", d.Name(), err)
	}
	return errors.Join(d.Chmod(mode), d.Sync())
}

// Admit says who may read what is in the cache; nil: whom the folder's mode lets in, everybody as a rule. A folder with
// other things in it is not closed to those who use them.
func (c *Cache) Admit(r *Readers) error {
	wrap := func(err error) error { return fmt.Errorf("say who may read %s: %w", c.cfg.Dir, err) }
	d, err := c.root.Open(".")
	if err != nil {
		return wrap(err)
	}
	defer d.Close()
	now, err := readersOf(d)
	if err != nil && (r != nil || !errors.Is(err, ErrNoACL)) {
		return wrap(err)
	}
	if r == nil {
		if now == nil {
			return nil
		}
		return everybody(d, c.cfg.DirMode)
	}
	entries, err := fs.ReadDir(c.root.FS(), ".")
	if err != nil {
		return wrap(err)
	}
	for _, e := range entries {
		// Hugging Face's libraries: TYPE--ORG--NAME, .locks, version.txt, version_diffusers_cache.txt, CACHEDIR.TAG
		name := e.Name()
		if !strings.Contains(name, "--") && !strings.HasPrefix(name, ".") && !strings.HasPrefix(name, "version") &&
			name != "CACHEDIR.TAG" && name != "lost+found" {
			return wrap(fmt.Errorf("it has other things in it, such as %s: want a folder of its own", name))
		}
	}
	return wrapped(setReaders(d, *r), wrap)
}

func wrapped(err error, wrap func(error) error) error {
	if err != nil {
		return wrap(err)
	}
	return nil
}

// Restrict keeps a repository for its owner and one more user, or for one more than now. What everybody may read
// already stays so: see Share.
func (c *Cache) Restrict(r Repo, uid uint32) error {
	if err := r.Check(); err != nil {
		return err
	}
	c.rights.Lock()
	defer c.rights.Unlock()
	wrap := func(err error) error { return fmt.Errorf("restrict %s: %w", r, err) }
	err := c.root.Mkdir(r.dir(), 0o700)
	made := err == nil
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return wrap(err)
	}
	d, err := c.root.Open(r.dir())
	if err != nil {
		return wrap(err)
	}
	defer d.Close()
	now, err := readersOf(d)
	if err != nil {
		if made {
			c.root.Remove(r.dir())
		}
		return wrap(err)
	}
	if now == nil {
		if st, err := d.Stat(); err != nil || st.Mode().Perm()&aclRead == aclRead {
			return wrapped(err, wrap)
		}
		now = &Readers{}
	}
	now.UIDs = append(now.UIDs, uid)
	return wrapped(errors.Join(setReaders(d, *now), c.syncDir(".")), wrap)
}

// Share lets everybody read a repository that was restricted.
func (c *Cache) Share(r Repo) error {
	if err := r.Check(); err != nil {
		return err
	}
	c.rights.Lock()
	defer c.rights.Unlock()
	d, err := c.root.Open(r.dir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		defer d.Close()
		var st fs.FileInfo
		if st, err = d.Stat(); err == nil && st.Mode().Perm()&aclRead != aclRead {
			err = everybody(d, c.cfg.DirMode)
		}
	}
	return wrapped(err, func(err error) error { return fmt.Errorf("share %s: %w", r, err) })
}

// CanRestrict tells whether Restrict can do what it says.
func (c *Cache) CanRestrict() error {
	d, err := c.root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	_, err = readersOf(d)
	return err
}
