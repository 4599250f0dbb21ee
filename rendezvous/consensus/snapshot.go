package consensus

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/hashicorp/raft"
)

const (
	snapshotsDir  = "snapshots" // raft's name
	keptSnapshots = 2
	snapMagic     = "SPKM\x01"
	maxSnapHead   = 1 << 20
)

// snapHead repeats raft's meta.json inside the file whose checksum is verified; nothing
// protects the membership in meta.json itself.
type snapHead struct {
	Index, Term        uint64
	Configuration      raft.Configuration
	ConfigurationIndex uint64
}

func headOf(m *raft.SnapshotMeta) snapHead {
	return snapHead{m.Index, m.Term, m.Configuration, m.ConfigurationIndex}
}

// snapshots is raft's FileSnapshotStore with a checksum over everything and a
// deadline on writes.
type snapshots struct {
	*raft.FileSnapshotStore
	dir   string
	do    func(what string, limit time.Duration, op func() error) error
	limit time.Duration
}

// openSnapshots opens the store and checks every snapshot. raft would silently skip a
// damaged one and go on from an older one, which the log no longer reaches back to.
func openSnapshots(cfg Config, fs *failStop) (*snapshots, *raft.SnapshotMeta, error) {
	dir := filepath.Join(cfg.Dir, snapshotsDir)
	inner, err := raft.NewFileSnapshotStoreWithLogger(cfg.Dir, keptSnapshots, newHCLogger(cfg.Logger))
	if err != nil {
		return nil, nil, fmt.Errorf("open %s: %w", dir, err)
	}
	s := &snapshots{FileSnapshotStore: inner, dir: dir, do: fs.do, limit: 6 * cfg.StoreDeadline}

	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("open %s: %w", dir, err)
	}
	var newest *raft.SnapshotMeta
	for _, n := range names {
		path := filepath.Join(dir, n.Name())
		if strings.HasSuffix(n.Name(), ".tmp") {
			// Left behind by a crash; raft never removes it.
			if err := os.RemoveAll(path); err != nil {
				return nil, nil, fmt.Errorf("remove unfinished snapshot %s: %w", path, err)
			}
			continue
		}
		if !n.IsDir() {
			continue
		}
		meta, rc, err := s.Open(n.Name())
		if err != nil {
			return nil, nil, &CorruptError{path, err}
		}
		rc.Close()
		if newest == nil || meta.Index > newest.Index {
			newest = meta
		}
	}
	return s, newest, nil
}

// Create begins a snapshot; its first bytes are the snapHead.
func (s *snapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, ci uint64,
	t raft.Transport) (raft.SnapshotSink, error) {
	var sink *timedSink
	err := s.do("begin snapshot", s.limit, func() error {
		inner, err := s.FileSnapshotStore.Create(version, index, term, c, ci, t)
		if err != nil {
			return err
		}
		head, err := json.Marshal(snapHead{index, term, c, ci})
		if err != nil {
			return errors.Join(err, inner.Cancel())
		}
		b := binary.BigEndian.AppendUint32([]byte(snapMagic), uint32(len(head)))
		if _, err := inner.Write(append(b, head...)); err != nil {
			return errors.Join(err, inner.Cancel())
		}
		sink = &timedSink{inner, s}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return sink, nil
}

// Open checks a snapshot and returns what raft wrote into it, without our head.
func (s *snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, rc, err := s.FileSnapshotStore.Open(id)
	if err != nil {
		return nil, nil, err
	}
	n, err := checkHead(rc, meta)
	if err == nil && (meta.ID != id || meta.Version != raft.SnapshotVersionMax) {
		err = fmt.Errorf("meta.json is of snapshot %q, version %d", meta.ID, meta.Version)
	}
	if err == nil {
		// Only meta.json states its size, so check it.
		if fi, serr := os.Stat(filepath.Join(s.dir, id, "state.bin")); serr != nil || fi.Size() != meta.Size {
			err = errors.Join(fmt.Errorf("state.bin is not of the %d bytes that meta.json says", meta.Size), serr)
		}
	}
	if err != nil {
		rc.Close()
		return nil, nil, err
	}
	out := *meta
	out.Size -= n
	return &out, &snapshotReader{rc, &out}, nil
}

func checkHead(r io.Reader, meta *raft.SnapshotMeta) (size int64, err error) {
	b := make([]byte, len(snapMagic)+4)
	if _, err := io.ReadFull(r, b); err != nil {
		return 0, fmt.Errorf("read state.bin: %w", err)
	}
	n := binary.BigEndian.Uint32(b[len(snapMagic):])
	if string(b[:len(snapMagic)]) != snapMagic || n > maxSnapHead {
		return 0, errors.New("state.bin is not a snapshot of this program")
	}
	head := make([]byte, n)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, fmt.Errorf("read state.bin: %w", err)
	}
	var h snapHead
	if err := json.Unmarshal(head, &h); err != nil {
		return 0, fmt.Errorf("read state.bin: %w", err)
	}
	if !reflect.DeepEqual(h, headOf(meta)) {
		return 0, fmt.Errorf("meta.json and state.bin disagree: %+v and %+v", headOf(meta), h)
	}
	return int64(len(b)) + int64(n), nil
}

// snapshotReader carries the snapshot's metadata beside its bytes, for fsm.
type snapshotReader struct {
	io.ReadCloser
	meta *raft.SnapshotMeta
}

// timedSink writes under a deadline. A snapshot that fails is tried again later and harms
// nothing; one that hangs shows that the disk hangs.
type timedSink struct {
	raft.SnapshotSink
	s *snapshots
}

func (t *timedSink) Write(b []byte) (int, error) {
	var n int // read only if the operation has ended
	if err := t.s.do("write snapshot", t.s.limit, func() (err error) {
		n, err = t.SnapshotSink.Write(b)
		return err
	}); err != nil {
		return 0, err
	}
	return n, nil
}

func (t *timedSink) Close() error {
	return t.s.do("finish snapshot", t.s.limit, t.SnapshotSink.Close)
}

func (t *timedSink) Cancel() error {
	return t.s.do("drop snapshot", t.s.limit, t.SnapshotSink.Cancel)
}
