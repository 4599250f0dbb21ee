package modelcache

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"sync"

	"golang.org/x/sys/unix"
)

// ChunkBytes is what a file is cut into between nodes: each chunk has a BLAKE3 sum.
const ChunkBytes = 16 << 20

// Part is a file under way. Its content comes by Write, or by WriteAt and Keep from who verifies it; and what is
// verified may be read by ReadAt meanwhile. Whatever ends the process, the next Begin goes on from what had reached the
// disk.
type Part struct {
	c     *Cache
	repo  Repo
	file  File
	f     *os.File
	lock  *lock
	lease *Lease

	mu     sync.Mutex
	sums   []Sum      // of the chunks of the prefix
	size   int64      // the prefix: whole chunks, and at the end the rest
	tail   int64      // bytes of the chunk that Write has begun
	chunk  *chunkHash // of the tail
	whole  hash.Hash  // of the first hashed bytes
	hashed int64      // at most size+tail
	atEdge []byte     // whole's state after edge bytes, an end of a chunk: what the sidecar keeps
	edge   int64
	err    error // of the saver: told by the next write
	closed bool
	wake   chan struct{}
	done   chan struct{}
}

// sidecar is what is known of a part after a crash. There are two: ETAG.json is written after the bytes that it speaks
// of have reached the disk; ETAG.next at once, for the next process, if only this one was killed.
type sidecar struct {
	Size   int64  `json:"size"`
	Prefix int64  `json:"prefix"`
	Sums   []byte `json:"sums"` // 32 bytes a chunk
	Hashed int64  `json:"hashed"`
	State  []byte `json:"state"` // of the whole file's hash after Hashed bytes
}

func newHash(f File) hash.Hash {
	if f.SHA256 != "" {
		return sha256.New()
	}
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", f.Size)
	return h
}

func pointerOID(f File) string {
	pointer := fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", f.SHA256, f.Size)
	return gitSum([]byte(pointer))
}

func gitSum(text []byte) string {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00%s", len(text), text)
	return hex.EncodeToString(h.Sum(nil))
}

func (p *Part) name(ext string) string {
	return path.Join(p.repo.dir(), ours, p.file.ETag()+ext)
}

// Begin takes up a file, or begins it. Room is asked for first; ErrBusy: another program fetches it.
func (c *Cache) Begin(r Repo, f File) (_ *Part, err error) {
	if err := errors.Join(r.Check(), f.check()); err != nil {
		return nil, err
	}
	p := &Part{c: c, repo: r, file: f, chunk: newChunkHash(), whole: newHash(f),
		wake: make(chan struct{}, 1), done: make(chan struct{})}
	defer func() {
		if err != nil {
			p.release()
			err = fmt.Errorf("begin %s of %s: %w", f.Path, r, err)
		}
	}()
	for _, dir := range []string{ours, "blobs", "snapshots"} { // without snapshots other tools call it corrupt
		if err := c.mkdirs(path.Join(r.dir(), dir)); err != nil {
			return nil, err
		}
	}
	if p.lease, err = c.Hold(r); err != nil {
		return nil, err
	}
	if p.lock, err = c.takeBlob(r, f.ETag()); err != nil {
		return nil, err
	}
	if err := p.open(); err != nil {
		return nil, err
	}
	p.resume()
	var st unix.Stat_t
	if err := unix.Fstat(int(p.f.Fd()), &st); err != nil {
		return nil, err
	}
	if err := c.Room(max(f.Size-st.Blocks*512, 0)); err != nil {
		return nil, err
	}
	// The blocks are taken now: what begins ends, whoever else writes to the disk.
	if f.Size > 0 {
		if err := unix.Fallocate(int(p.f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, f.Size); full(err) {
			return nil, fmt.Errorf("%w: %w", ErrRoom, err)
		}
	}
	go p.saver()
	return p, nil
}

// open opens the part, if it is one of ours that nobody else has a name for.
func (p *Part) open() error {
	at := p.name(".part")
	f, err := p.c.root.OpenFile(at, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err == nil {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 1 {
			p.f = f
			return nil
		}
		f.Close()
	}
	if err := p.c.root.RemoveAll(at); err != nil {
		return err
	}
	p.forget()
	if f, err = p.c.root.OpenFile(at, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return err
	}
	p.f = f
	return p.c.own(f, p.c.cfg.FileMode)
}

// resume takes what the sidecars say, if it fits; else the file begins anew. What only the later one speaks of is
// compared with its sums: after a crash of the machine the bytes may not have reached the disk.
func (p *Part) resume() {
	p.takeUp(".json")
	sums, size, whole, hashed, atEdge, edge := p.sums, p.size, p.whole, p.hashed, p.atEdge, p.edge
	p.takeUp(".next")
	for i := len(sums); i < len(p.sums); i++ {
		b := make([]byte, min(ChunkBytes, p.file.Size-int64(i)*ChunkBytes))
		if _, err := p.f.ReadAt(b, int64(i)*ChunkBytes); err != nil || SumOf(b) != p.sums[i] {
			p.sums, p.size, p.whole, p.hashed, p.atEdge, p.edge = sums, size, whole, hashed, atEdge, edge
			return
		}
	}
}

func (p *Part) takeUp(ext string) {
	var s sidecar
	text, err := p.c.read(p.name(ext), 64<<20)
	if err != nil || json.Unmarshal(text, &s) != nil {
		return
	}
	st, err := p.f.Stat()
	chunks := int64(len(s.Sums) / 32)
	fits := err == nil && s.Size == p.file.Size && st.Size() >= s.Prefix && len(s.Sums)%32 == 0 &&
		(s.Prefix == chunks*ChunkBytes && s.Prefix <= s.Size || s.Prefix == s.Size && chunks == chunksOf(s.Size)) &&
		s.Hashed >= 0 && s.Hashed <= s.Prefix && s.Prefix >= p.size
	if !fits {
		return
	}
	if s.Hashed > 0 {
		h := newHash(p.file)
		if h.(encoding.BinaryUnmarshaler).UnmarshalBinary(s.State) != nil {
			return
		}
		p.whole, p.hashed, p.atEdge, p.edge = h, s.Hashed, s.State, s.Hashed
	}
	p.size, p.sums = s.Prefix, nil
	for b := s.Sums; len(b) > 0; b = b[32:] {
		p.sums = append(p.sums, Sum(b))
	}
}

// forget removes the sidecars.
func (p *Part) forget() {
	p.c.root.Remove(p.name(".next"))
	p.c.root.Remove(p.name(".json"))
}

func chunksOf(size int64) int64 { return (size + ChunkBytes - 1) / ChunkBytes }

// File is what the part becomes.
func (p *Part) File() File { return p.file }

// Prefix is how much there is from the start without a gap, in whole chunks or to the end: that may be read.
func (p *Part) Prefix() int64 { p.mu.Lock(); defer p.mu.Unlock(); return p.size }

// Sums are those of the prefix's chunks.
func (p *Part) Sums() []Sum { p.mu.Lock(); defer p.mu.Unlock(); return append([]Sum(nil), p.sums...) }

// Has says whether a chunk is there.
func (p *Part) Has(i int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return i < len(p.sums)
}

// ReadAt reads what is verified, to hand it on.
func (p *Part) ReadAt(b []byte, off int64) (int, error) {
	for i := off / ChunkBytes; i*ChunkBytes < min(off+int64(len(b)), p.file.Size); i++ {
		if off < 0 || !p.Has(int(i)) {
			return 0, fmt.Errorf("read %s at %d: %w", p.file.Path, off, ErrAbsent)
		}
	}
	return p.f.ReadAt(b, off)
}

// Write takes the next bytes from outside: those at Prefix, when a part has been begun or taken up.
func (p *Part) Write(b []byte) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.ready(); err != nil {
		return 0, err
	}
	if p.size+p.tail+int64(len(b)) > p.file.Size {
		return 0, fmt.Errorf("write %s: %w: more than %d bytes", p.file.Path, ErrSum, p.file.Size)
	}
	if err := p.catchUp(p.size + p.tail); err != nil {
		return 0, err
	}
	if p.tail == 0 && p.edge != p.size {
		p.keepState()
	}
	for len(b) > 0 {
		piece := b[:min(int64(len(b)), ChunkBytes-p.tail)]
		if _, err := p.f.WriteAt(piece, p.size+p.tail); err != nil {
			return n, p.trouble(err)
		}
		p.whole.Write(piece)
		p.chunk.write(piece)
		p.hashed += int64(len(piece))
		p.tail += int64(len(piece))
		n, b = n+len(piece), b[len(piece):]
		if p.tail == ChunkBytes || p.size+p.tail == p.file.Size {
			sum := p.chunk.sum()
			from, length := p.size, p.tail
			p.tail = 0
			p.grow(sum, length)
			p.chunkDone(from, length)
		}
	}
	return n, nil
}

func (p *Part) grow(sum Sum, length int64) {
	p.sums = append(p.sums, sum)
	if p.size += length; p.hashed == p.size {
		p.keepState()
	}
}

func (p *Part) keepState() {
	p.atEdge, _ = p.whole.(encoding.BinaryMarshaler).MarshalBinary() // sha1's and sha256's never fail
	p.edge = p.hashed
}

// catchUp hashes what was kept without a state of the hash.
func (p *Part) catchUp(to int64) error {
	if p.hashed > to {
		return fmt.Errorf("hash %s: %d bytes of %d", p.file.Path, p.hashed, to)
	}
	if p.hashed == to {
		return nil
	}
	from := p.hashed
	n, err := io.CopyBuffer(p.whole, io.NewSectionReader(p.f, from, to-from), make([]byte, 1<<20))
	p.hashed += n
	if err == nil && p.hashed != to {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return p.trouble(err)
	}
	return nil
}

func (p *Part) ready() error {
	if p.closed {
		return os.ErrClosed
	}
	return p.err
}

func (p *Part) trouble(err error) error {
	if full(err) {
		err = fmt.Errorf("%w: %w", ErrRoom, err)
	}
	return fmt.Errorf("write %s of %s: %w", p.file.Path, p.repo, err)
}

// roomError says of an error that it is for want of room, if it is.
func roomError(err error) error {
	if err != nil && full(err) {
		return fmt.Errorf("%w: %w", ErrRoom, err)
	}
	return err
}

func full(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG)
}

// chunkDone has the kernel begin to write, and the saver follow.
func (p *Part) chunkDone(from, length int64) {
	_ = unix.SyncFileRange(int(p.f.Fd()), from, length, unix.SYNC_FILE_RANGE_WRITE) // a hint
	select {
	case p.wake <- struct{}{}:
	default: // it will see this one too
	}
}

// saver follows the writer: bytes to the disk, then the sidecar, then the page cache is dropped.
func (p *Part) saver() {
	defer close(p.done)
	for range p.wake {
		if err := p.save(); err != nil {
			p.mu.Lock()
			p.err = p.trouble(err)
			p.mu.Unlock()
			return
		}
	}
}

// known is what a sidecar says.
func (p *Part) known() sidecar {
	s := sidecar{Size: p.file.Size, Prefix: p.size}
	for _, sum := range p.sums {
		s.Sums = append(s.Sums, sum[:]...)
	}
	if p.edge > 0 {
		s.State, s.Hashed = p.atEdge, p.edge
	}
	return s
}

func (p *Part) save() error {
	p.mu.Lock()
	s := p.known()
	p.mu.Unlock()
	if err := unix.Fdatasync(int(p.f.Fd())); err != nil {
		return err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := p.c.write(p.name(".json"), text, true); err != nil && !full(err) { // the content has its room
		return err
	}
	if behind := s.Prefix - p.c.cfg.Keep; behind > 0 {
		dropCache(p.f, 0, behind)
	}
	return nil
}

// dropCache gives back the memory of what has been written or read: a GPU here shares it. Another goroutine may close the
// file meanwhile.
func dropCache(f *os.File, from, length int64) {
	if c, err := f.SyscallConn(); err == nil {
		_ = c.Control(func(fd uintptr) { _ = unix.Fadvise(int(fd), from, length, unix.FADV_DONTNEED) }) // a hint
	}
}
