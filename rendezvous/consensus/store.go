package consensus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher/durable"
)

const (
	logFile  = "raft.db"
	pageSize = 4096 // fixed, so that the file does not depend on the kernel's page size
)

var (
	bucketLog    = []byte("log")
	bucketStable = []byte("stable")
	bucketMeta   = []byte("meta")
	keyState     = []byte("state")
	keyNode      = []byte("node")

	castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

	// raft compares this error by its text.
	errNotFound = errors.New("not found")
)

// diskStore is the log, the vote and the term on disk.
type diskStore interface {
	raft.LogStore
	raft.StableStore
	// commit sets the index that is known to be committed; it is written together with
	// the next entries.
	commit(index uint64)
	// committed is the index from the last commit before the last write of entries.
	committed() uint64
	Close() error
}

// CorruptError: the file is not what this program wrote. The check changed nothing.
type CorruptError struct {
	Path string
	Err  error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("open %s: %v: the file is damaged and this node refuses to vote or lead with it", e.Path, e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }

// state must agree with the rest of the file: bbolt has no checksum over its pages, and a
// damaged count would simply make entries disappear.
type state struct {
	first, last uint64 // 0, 0 for an empty log
	lastSum     uint32 // checksum of the last entry
	commit      uint64
	stableSum   uint32 // over all pairs of the stable bucket
}

func (s state) encode() []byte {
	b := make([]byte, 0, 40)
	for _, v := range []uint64{s.first, s.last, s.commit} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	b = binary.BigEndian.AppendUint32(b, s.lastSum)
	b = binary.BigEndian.AppendUint32(b, s.stableSum)
	return sealed(b)
}

func decodeState(b []byte) (s state, err error) {
	if b, err = unsealed(b); err != nil || len(b) != 32 {
		return s, errors.Join(fmt.Errorf("bad state record of %d bytes", len(b)), err)
	}
	be := binary.BigEndian
	return state{first: be.Uint64(b), last: be.Uint64(b[8:]), commit: be.Uint64(b[16:]),
		lastSum: be.Uint32(b[24:]), stableSum: be.Uint32(b[28:])}, nil
}

// sealed puts a checksum in front.
func sealed(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, crc32.Checksum(b, castagnoli())), b...)
}

func unsealed(b []byte) ([]byte, error) {
	if len(b) < 4 || binary.BigEndian.Uint32(b) != crc32.Checksum(b[4:], castagnoli()) {
		return nil, errors.New("checksum does not match")
	}
	return b[4:], nil
}

// encodeEntry: checksum, index, term, type, time, length of extensions,
// extensions, data. The index is under the checksum, so that an entry cannot
// pass for another.
func encodeEntry(l *raft.Log) []byte {
	b := make([]byte, 0, 33+len(l.Extensions)+len(l.Data))
	b = binary.BigEndian.AppendUint64(b, l.Index)
	b = binary.BigEndian.AppendUint64(b, l.Term)
	b = append(b, byte(l.Type))
	var at int64
	if !l.AppendedAt.IsZero() {
		at = l.AppendedAt.UnixNano()
	}
	b = binary.BigEndian.AppendUint64(b, uint64(at))
	b = binary.BigEndian.AppendUint32(b, uint32(len(l.Extensions)))
	b = append(append(b, l.Extensions...), l.Data...)
	return sealed(b)
}

// decodeEntry copies, because what bbolt returns is valid only during its transaction.
func decodeEntry(b []byte, l *raft.Log) error {
	b, err := unsealed(b)
	if err != nil {
		return err
	}
	if len(b) < 29 {
		return fmt.Errorf("an entry of %d bytes", len(b))
	}
	be := binary.BigEndian
	ext := uint64(be.Uint32(b[25:]))
	if uint64(len(b)-29) < ext {
		return fmt.Errorf("extensions of %d bytes in an entry of %d", ext, len(b))
	}
	*l = raft.Log{Index: be.Uint64(b), Term: be.Uint64(b[8:]), Type: raft.LogType(b[16])}
	if at := int64(be.Uint64(b[17:])); at != 0 {
		l.AppendedAt = time.Unix(0, at)
	}
	if ext > 0 {
		l.Extensions = slices.Clone(b[29 : 29+ext])
	}
	if rest := b[29+ext:]; len(rest) > 0 {
		l.Data = slices.Clone(rest)
	}
	return nil
}

func indexKey(i uint64) []byte { return binary.BigEndian.AppendUint64(nil, i) }

// boltStore is the diskStore on one bbolt file. raft appends from its main
// goroutine, compacts from another and reads from several.
type boltStore struct {
	path string
	db   *bolt.DB

	// write is held during a whole transaction: the next state is computed from the last
	// one. Readers use cur, so that nobody waits for a disk just to learn where the log
	// ends.
	write  sync.Mutex
	cur    atomic.Pointer[state]
	stable atomic.Pointer[map[string][]byte]
	staged atomic.Uint64 // see commit
}

// lockWait is how long to wait for a folder that another holds.
const lockWait = 2 * time.Second

// openStore opens or makes the file of a node. It reads and checks the whole file before
// bbolt, which trusts every offset, touches it. It does so under the lock and with the
// descriptor that bbolt then uses, so that it sees the last write of an agent that is
// just ending.
func openStore(dir, nodeID string) (*boltStore, error) {
	path := filepath.Join(dir, logFile)
	if err := ensureStore(path, nodeID); err != nil {
		return nil, fmt.Errorf("create %s: %w", path, err)
	}
	var img *image
	db, err := openBolt(path, func(path string, flag int, mode os.FileMode) (*os.File, error) {
		f, err := os.OpenFile(path, flag&^os.O_CREATE, mode)
		if err != nil {
			return nil, err
		}
		if img, err = lockedImage(f, nodeID); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return f, nil
	})
	if _, ok := errors.AsType[*CorruptError](err); ok {
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	s := &boltStore{path: path, db: db}
	s.cur.Store(&img.state)
	s.stable.Store(&img.stable)
	return s, nil
}

// lockedImage locks a node's file and reads it.
func lockedImage(f *os.File, nodeID string) (*image, error) {
	if err := lock(f); err != nil {
		return nil, err
	}
	// The lock is on the opened file; the name may belong to another file by now.
	opened, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if named, err := os.Stat(f.Name()); err != nil || !os.SameFile(opened, named) {
		return nil, errors.Join(errors.New("it was replaced in the meantime"), err)
	}
	img, err := parseImage(f, opened.Size())
	if err == nil {
		err = img.check()
	}
	if err != nil {
		return nil, &CorruptError{f.Name(), err}
	}
	if img.node != nodeID {
		return nil, fmt.Errorf("it belongs to node %s and this is %s: "+
			"a copied state folder must not run twice; remove it here and join as a new node", img.node, nodeID)
	}
	return img, nil
}

// lock takes the lock that bbolt uses. It belongs to the open file description, so that
// bbolt's own attempt to lock succeeds.
func lock(f *os.File) error {
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("lock it: %w", err)
		case time.Since(begin) >= lockWait:
			return fmt.Errorf("it has been locked for over %v: is another agent running, or does its disk still hang?", lockWait)
		}
	}
}

// openBolt opens a file with bbolt; open, unless nil, opens the file itself.
func openBolt(path string, open func(string, int, os.FileMode) (*os.File, error)) (*bolt.DB, error) {
	return bolt.Open(path, 0o600, &bolt.Options{
		Timeout: lockWait, PageSize: pageSize, NoStatistics: true, OpenFile: open,
		// The list of free pages is rebuilt on opening: one thing less to write, or to be
		// damaged.
		NoFreelistSync: true, FreelistType: bolt.FreelistMapType,
	})
}

// ensureStore makes the file if there is none. It locks the folder, so that of two
// processes that find it empty one makes the file and the other finds it.
func ensureStore(path, nodeID string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close() // which releases the lock
	if err := lock(dir); err != nil {
		return err
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return createStore(path, nodeID)
}

// createStore makes the file under another name first, so that a file with the right name
// is always complete.
func createStore(path, nodeID string) error {
	tmp := path + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	db, err := openBolt(tmp, nil)
	if err != nil {
		return err
	}
	// Twice, so that we have written both of bbolt's alternating meta pages.
	for range 2 {
		err = errors.Join(err, db.Update(func(tx *bolt.Tx) error {
			for _, name := range [][]byte{bucketLog, bucketStable, bucketMeta} {
				if _, err := tx.CreateBucketIfNotExists(name); err != nil {
					return err
				}
			}
			m := tx.Bucket(bucketMeta)
			return errors.Join(m.Put(keyNode, sealed([]byte(nodeID))),
				m.Put(keyState, state{stableSum: sumStable(nil)}.encode()))
		}))
	}
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(path))
}

// sumStable is a checksum over all pairs, so that none can vanish.
func sumStable(pairs map[string][]byte) uint32 {
	keys := make([]string, 0, len(pairs))
	for k := range pairs {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var b []byte
	for _, k := range keys {
		b = binary.BigEndian.AppendUint32(b, uint32(len(k)))
		b = append(b, k...)
		b = binary.BigEndian.AppendUint32(b, uint32(len(pairs[k])))
		b = append(b, pairs[k]...)
	}
	return crc32.Checksum(b, castagnoli())
}

// update runs one fsynced transaction that also writes the new state record. The state
// that fn makes becomes current only when it is on disk.
func (s *boltStore) update(fn func(tx *bolt.Tx, next *state) error) error {
	s.write.Lock()
	defer s.write.Unlock()
	next := *s.cur.Load()
	next.commit = max(next.commit, s.staged.Load())
	err := s.db.Update(func(tx *bolt.Tx) error {
		if err := fn(tx, &next); err != nil {
			return err
		}
		return tx.Bucket(bucketMeta).Put(keyState, next.encode())
	})
	if err == nil {
		s.cur.Store(&next)
	}
	return err
}

// IsMonotonic makes raft drop the whole log when a snapshot takes its place,
// so that a gap is always damage.
func (s *boltStore) IsMonotonic() bool { return true }

func (s *boltStore) FirstIndex() (uint64, error) { return s.cur.Load().first, nil }
func (s *boltStore) LastIndex() (uint64, error)  { return s.cur.Load().last, nil }
func (s *boltStore) commit(index uint64)         { s.staged.Store(index) }

func (s *boltStore) committed() uint64 {
	st := s.cur.Load()
	return min(st.commit, st.last)
}

func (s *boltStore) GetLog(index uint64, l *raft.Log) error {
	return s.db.View(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketLog).Get(indexKey(index))
		if b == nil {
			return raft.ErrLogNotFound
		}
		if err := decodeEntry(b, l); err != nil {
			return &CorruptError{s.path, fmt.Errorf("entry %d: %w", index, err)}
		}
		return nil
	})
}

func (s *boltStore) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

func (s *boltStore) StoreLogs(logs []*raft.Log) error {
	return s.update(func(tx *bolt.Tx, next *state) error {
		b := tx.Bucket(bucketLog)
		b.FillPercent = 0.9 // keys only grow
		for _, l := range logs {
			if next.last != 0 && l.Index != next.last+1 {
				return fmt.Errorf("entry %d does not follow entry %d", l.Index, next.last)
			}
			v := encodeEntry(l)
			if err := b.Put(indexKey(l.Index), v); err != nil {
				return err
			}
			if next.first == 0 {
				next.first = l.Index
			}
			next.last, next.lastSum = l.Index, binary.BigEndian.Uint32(v)
		}
		return nil
	})
}

// DeleteRange drops the entries from lo to hi at one end of the log.
func (s *boltStore) DeleteRange(lo, hi uint64) error {
	return s.update(func(tx *bolt.Tx, next *state) error {
		lo, hi := max(lo, next.first), min(hi, next.last)
		if next.last == 0 || lo > hi {
			return nil
		}
		b := tx.Bucket(bucketLog)
		for i := lo; i <= hi; i++ {
			if err := b.Delete(indexKey(i)); err != nil {
				return err
			}
		}
		switch {
		case lo == next.first && hi == next.last:
			next.first, next.last, next.lastSum = 0, 0, 0
		case lo == next.first:
			next.first = hi + 1
		case hi == next.last:
			next.last = lo - 1
			v := b.Get(indexKey(next.last))
			if len(v) < 4 {
				return fmt.Errorf("entry %d is missing", next.last)
			}
			next.lastSum = binary.BigEndian.Uint32(v)
		default:
			return fmt.Errorf("delete entries %d-%d from the middle of %d-%d", lo, hi, next.first, next.last)
		}
		return nil
	})
}

func (s *boltStore) Set(key, val []byte) error {
	old := *s.stable.Load()
	if v, ok := old[string(key)]; ok && slices.Equal(v, val) {
		return nil // raft writes the term that it has just read when it starts
	}
	pairs := make(map[string][]byte, len(old)+1)
	maps.Copy(pairs, old)
	pairs[string(key)] = slices.Clone(val)
	err := s.update(func(tx *bolt.Tx, next *state) error {
		next.stableSum = sumStable(pairs)
		return tx.Bucket(bucketStable).Put(key, sealed(val))
	})
	if err == nil {
		s.stable.Store(&pairs)
	}
	return err
}

func (s *boltStore) Get(key []byte) ([]byte, error) {
	v, ok := (*s.stable.Load())[string(key)]
	if !ok {
		return nil, errNotFound
	}
	return slices.Clone(v), nil
}

func (s *boltStore) SetUint64(key []byte, val uint64) error {
	return s.Set(key, binary.BigEndian.AppendUint64(nil, val))
}

func (s *boltStore) GetUint64(key []byte) (uint64, error) {
	v, err := s.Get(key)
	if err != nil {
		return 0, err
	}
	if len(v) != 8 {
		return 0, fmt.Errorf("read %s: %d bytes instead of 8", key, len(v))
	}
	return binary.BigEndian.Uint64(v), nil
}

func (s *boltStore) Close() error { return s.db.Close() }
