package relay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"
)

// FilePart is a Part that is a file, with a sidecar of one record a chunk: PATH.sums.
//
// A record is written as soon as its chunk is, so that a killed process loses nothing. The
// disk has both a little later: after a crash of the machine the newest chunks are compared
// with their sums.
type FilePart struct {
	data, sums *os.File
	cut        layout
	kept       Kept

	mu      sync.Mutex
	n       int // chunks kept
	synced  int
	syncing chan struct{} // closed when the sync under way is over; nil: none
	err     error         // of the last sync
}

// A sidecar begins with what file it is of. A record is a sum, the length of the hash's
// state, the state, and a checksum.
const (
	headBytes   = 64
	stateBytes  = 127
	recordBytes = 32 + 1 + stateBytes + 4
	// unsynced is how many chunks may be in the page cache alone, twice: while the first
	// are on their way to the disk, as many may come.
	unsynced = 4
)

// head is of one file: its size, and what names it.
func head(size int64, name string) []byte {
	sum := blake3.Sum256([]byte(name))
	b := append(make([]byte, 0, headBytes), "sparkrun part 1\n"...)
	b = binary.LittleEndian.AppendUint64(b, uint64(size))
	return append(b, sum[:]...)[:headBytes]
}

// OpenPart opens what is there of a file, or begins it. name says which file it is: a part
// of another one is thrown away. The folder must be the caller's alone.
func OpenPart(path, name string, size int64) (*FilePart, error) {
	return openPart(path, name, layout{size, ChunkBytes})
}

func openPart(path, name string, cut layout) (_ *FilePart, err error) {
	p := &FilePart{cut: cut}
	defer func() {
		if err != nil {
			err = fmt.Errorf("open part: %w", errors.Join(err, p.close()))
		}
	}()
	flags := os.O_RDWR | os.O_CREATE | unix.O_NOFOLLOW
	if p.data, err = os.OpenFile(path, flags, 0o600); err != nil {
		return nil, err
	}
	if p.sums, err = os.OpenFile(path+".sums", flags, 0o600); err != nil {
		return nil, err
	}
	began := make([]byte, headBytes)
	want := head(cut.size, name)
	if _, err := p.sums.ReadAt(began, 0); err != nil || !bytes.Equal(began, want) {
		if err := errors.Join(p.sums.Truncate(0), p.data.Truncate(0)); err != nil {
			return nil, err
		}
		_, err := p.sums.WriteAt(want, 0)
		return p, err
	}
	if err := p.read(); err != nil {
		return nil, err
	}
	p.n, p.synced = len(p.kept.Sums), len(p.kept.Sums)
	return p, p.sums.Truncate(headBytes + int64(p.n)*recordBytes)
}

// read takes the records for which there are bytes.
func (p *FilePart) read() error {
	all, err := io.ReadAll(io.NewSectionReader(p.sums, headBytes, int64(p.cut.chunks())*recordBytes))
	if err != nil {
		return err
	}
	var states [][]byte
	for ; len(all) >= recordBytes; all = all[recordBytes:] {
		r := all[:recordBytes]
		if crc32.ChecksumIEEE(r[:recordBytes-4]) != binary.LittleEndian.Uint32(r[recordBytes-4:]) {
			break
		}
		p.kept.Sums = append(p.kept.Sums, Sum(r[:32]))
		states = append(states, r[33:33+min(int(r[32]), stateBytes)])
	}
	for i := max(0, len(p.kept.Sums)-2*unsynced); i < len(p.kept.Sums); i++ {
		sum, err := p.cut.sum(i, p.data, nil)
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		if err != nil || sum != p.kept.Sums[i] {
			p.kept.Sums = p.kept.Sums[:i]
		}
		p.Drop(p.cut.at(i))
	}
	for i := len(p.kept.Sums); i > 0; i-- {
		if len(states[i-1]) > 0 {
			p.kept.Hash, p.kept.At = states[i-1], i
			break
		}
	}
	return nil
}

// Kept is what was there when the part was opened.
func (p *FilePart) Kept() Kept { return p.kept }

// ReadAt and WriteAt are a Part's.
func (p *FilePart) ReadAt(b []byte, off int64) (int, error)  { return p.data.ReadAt(b, off) }
func (p *FilePart) WriteAt(b []byte, off int64) (int, error) { return p.data.WriteAt(b, off) }

// Keep is a Part's.
func (p *FilePart) Keep(sum Sum, hash []byte) error {
	if len(hash) > stateBytes {
		return fmt.Errorf("keep a chunk: a hash's state of %d bytes", len(hash))
	}
	r := make([]byte, 0, recordBytes)
	r = append(append(append(r, sum[:]...), byte(len(hash))), hash...)[:recordBytes]
	binary.LittleEndian.PutUint32(r[recordBytes-4:], crc32.ChecksumIEEE(r[:recordBytes-4]))
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.sums.WriteAt(r, headBytes+int64(p.n)*recordBytes); err != nil {
		return err
	}
	if p.n++; p.n-p.synced < unsynced {
		return p.err
	}
	if p.syncing != nil { // a disk slower than the source holds it up
		done := p.syncing
		p.mu.Unlock()
		<-done
		p.mu.Lock()
	}
	done, from, until := make(chan struct{}), p.synced, p.n
	p.syncing, p.synced = done, until
	go func() {
		defer close(done)
		err := p.sync()
		// What was read by others meanwhile is on disk, and can leave the page cache; the
		// newest chunks stay for those that come right behind.
		off := p.cut.end(max(0, from-behind))
		p.Drop(off, p.cut.end(max(0, until-behind))-off)
		p.mu.Lock()
		p.syncing, p.err = nil, errors.Join(p.err, err)
		p.mu.Unlock()
	}()
	return p.err
}

// sync has the disk have the bytes, then the records of them.
func (p *FilePart) sync() error {
	for _, f := range []*os.File{p.data, p.sums} {
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return fmt.Errorf("sync %s: %w", f.Name(), err)
		}
	}
	return nil
}

// Drop is a Part's.
func (p *FilePart) Drop(off, n int64) {
	if n > 0 {
		_ = unix.Fadvise(int(p.data.Fd()), off, n, unix.FADV_DONTNEED) // advice
	}
}

// Sync has the disk have all that was kept. After it a whole file can be renamed, and is
// read by others under the part until Close.
func (p *FilePart) Sync() error {
	p.mu.Lock()
	syncing := p.syncing
	p.mu.Unlock()
	if syncing != nil {
		<-syncing
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.err, p.sync())
}

// Close syncs the part, and closes it for all that read it.
func (p *FilePart) Close() error {
	err := p.Sync()
	p.Drop(0, p.cut.size)
	return errors.Join(err, p.close())
}

func (p *FilePart) close() error {
	var errs []error
	for _, f := range []*os.File{p.data, p.sums} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
