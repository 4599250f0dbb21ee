package consensus

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"

	"github.com/hashicorp/raft"
)

// bbolt's file format, version 2, as far as it is needed for reading. Little-endian.
const (
	boltMagic   = 0xED0CDAED
	boltVersion = 2
	pageHeader  = 16 // id u64, flags u16, count u16, overflow u32
	branchPage  = 0x01
	leafPage    = 0x02
	bucketFlag  = 0x01
	maxDepth    = 32
	// maxPages bounds the memory that one damaged page header can claim.
	maxPages = 1 << 15
)

// image is the content of a raft file, read without bbolt. bbolt trusts every
// offset and count it finds: a flipped bit makes it crash the process, return
// other data, or fall back silently to the transaction before the last, which
// is a lost vote. So the file is read here first, with every bound checked.
type image struct {
	r      io.ReaderAt
	pages  uint64 // high-water mark
	seen   map[uint64]bool
	state  state
	node   string
	stable map[string][]byte

	prev    raft.Log // the entry read last
	prevSum uint32
	hasMeta bool
	buckets int
}

// parseImage reads the whole tree of a file of size bytes.
func parseImage(r io.ReaderAt, size int64) (*image, error) {
	im := &image{r: r, seen: map[uint64]bool{}, stable: map[string][]byte{}}
	root, err := im.readMeta(size)
	if err != nil {
		return nil, err
	}
	err = im.walk(root, nil, nil, 0, func(flags uint32, k, v []byte) error {
		if flags != bucketFlag {
			return fmt.Errorf("key %q outside of any bucket", k)
		}
		return im.bucket(string(k), v)
	})
	if err != nil {
		return nil, err
	}
	if im.buckets != 3 {
		return nil, fmt.Errorf("%d buckets instead of 3", im.buckets)
	}
	return im, nil
}

// readMeta checks both meta pages. One bad page is enough to refuse: bbolt would fall
// back to the other and so to an older vote and log. bbolt's writes of them are smaller
// than a sector, hence whole or absent after a power cut.
func (im *image) readMeta(size int64) (root uint64, err error) {
	var newest uint64
	var txids [2]uint64
	for i := range 2 {
		b := make([]byte, pageSize)
		if _, err := im.r.ReadAt(b, int64(i)*pageSize); err != nil {
			return 0, fmt.Errorf("read meta page %d: %w", i, err)
		}
		m, le := b[pageHeader:], binary.LittleEndian
		h := fnv.New64a()
		h.Write(m[:56])
		if le.Uint32(m) != boltMagic || le.Uint32(m[4:]) != boltVersion || le.Uint64(m[56:]) != h.Sum64() {
			return 0, fmt.Errorf("meta page %d: checksum does not match", i)
		}
		if le.Uint32(m[8:]) != pageSize {
			return 0, fmt.Errorf("meta page %d: page size %d instead of %d", i, le.Uint32(m[8:]), pageSize)
		}
		txids[i] = le.Uint64(m[48:])
		if i == 0 || txids[i] > newest {
			newest, root, im.pages = txids[i], le.Uint64(m[16:]), le.Uint64(m[40:])
		}
	}
	if txids[0]+1 != txids[1] && txids[1]+1 != txids[0] {
		return 0, fmt.Errorf("meta pages of transactions %d and %d, which do not follow each other", txids[0], txids[1])
	}
	if im.pages > uint64(size)/pageSize {
		return 0, fmt.Errorf("the file has %d bytes and should have %d pages", size, im.pages)
	}
	return root, nil
}

type visitor func(flags uint32, k, v []byte) error

// walk visits all pairs below page id, whose keys must lie in [lo, hi).
func (im *image) walk(id uint64, lo, hi []byte, depth int, visit visitor) error {
	if depth > maxDepth {
		return fmt.Errorf("page %d: the tree is too deep", id)
	}
	if id < 2 || id >= im.pages {
		return fmt.Errorf("page %d is outside of the file's %d", id, im.pages)
	}
	le := binary.LittleEndian
	head := make([]byte, pageHeader)
	if _, err := im.r.ReadAt(head, int64(id)*pageSize); err != nil {
		return fmt.Errorf("read page %d: %w", id, err)
	}
	over := uint64(le.Uint32(head[12:]))
	if le.Uint64(head) != id || over > maxPages || id+over >= im.pages {
		return fmt.Errorf("page %d: bad header", id)
	}
	for i := id; i <= id+over; i++ {
		if im.seen[i] {
			return fmt.Errorf("page %d is used twice", i)
		}
		im.seen[i] = true
	}
	b := make([]byte, (1+over)*pageSize)
	if _, err := im.r.ReadAt(b, int64(id)*pageSize); err != nil {
		return fmt.Errorf("read page %d: %w", id, err)
	}
	switch le.Uint16(head[8:]) {
	case leafPage:
		if err := leaf(b, lo, hi, visit); err != nil {
			return fmt.Errorf("page %d: %w", id, err)
		}
		return nil
	case branchPage:
		return im.branch(id, b, lo, hi, depth, visit)
	}
	return fmt.Errorf("page %d: unknown type %#x", id, le.Uint16(head[8:]))
}

func (im *image) branch(id uint64, b, lo, hi []byte, depth int, visit visitor) error {
	le := binary.LittleEndian
	n := int(le.Uint16(b[10:]))
	if n == 0 || pageHeader+n*16 > len(b) {
		return fmt.Errorf("page %d: %d children", id, n)
	}
	keys, kids := make([][]byte, n), make([]uint64, n)
	for i := range n {
		off := pageHeader + i*16
		k, err := cut(b, off, le.Uint32(b[off:]), le.Uint32(b[off+4:]))
		if err != nil {
			return fmt.Errorf("page %d: %w", id, err)
		}
		if i > 0 && bytes.Compare(keys[i-1], k) >= 0 {
			return fmt.Errorf("page %d: keys out of order", id)
		}
		keys[i], kids[i] = k, le.Uint64(b[off+8:])
	}
	if outside(keys[0], lo, hi) || outside(keys[n-1], lo, hi) {
		return fmt.Errorf("page %d: keys outside of their range", id)
	}
	for i := range n {
		upper := hi
		if i+1 < n {
			upper = keys[i+1]
		}
		if err := im.walk(kids[i], keys[i], upper, depth+1, visit); err != nil {
			return err
		}
	}
	return nil
}

// leaf visits the pairs of one leaf page, which may be part of a bucket's own record
// (bbolt keeps small buckets inline).
func leaf(b, lo, hi []byte, visit visitor) error {
	le := binary.LittleEndian
	n := int(le.Uint16(b[10:]))
	if pageHeader+n*16 > len(b) {
		return fmt.Errorf("%d pairs", n)
	}
	var prev []byte
	for i := range n {
		off := pageHeader + i*16
		pos, ks, vs := le.Uint32(b[off+4:]), le.Uint32(b[off+8:]), le.Uint32(b[off+12:])
		k, err := cut(b, off, pos, ks)
		if err != nil {
			return err
		}
		v, err := cut(b, off+int(ks), pos, vs)
		if err != nil {
			return err
		}
		if ks == 0 || outside(k, lo, hi) || (i > 0 && bytes.Compare(prev, k) >= 0) {
			return errors.New("keys out of order")
		}
		if err := visit(le.Uint32(b[off:]), k, v); err != nil {
			return err
		}
		prev = k
	}
	return nil
}

func outside(k, lo, hi []byte) bool {
	return (lo != nil && bytes.Compare(k, lo) < 0) || (hi != nil && bytes.Compare(k, hi) >= 0)
}

// cut returns size bytes at off+pos.
func cut(b []byte, off int, pos, size uint32) ([]byte, error) {
	start := uint64(off) + uint64(pos)
	if start+uint64(size) > uint64(len(b)) {
		return nil, fmt.Errorf("%d bytes at %d in a page of %d", size, start, len(b))
	}
	return b[start : start+uint64(size)], nil
}

// bucket reads one top-level bucket. rec is its root page and a sequence
// number, followed by a whole leaf page if the root is 0.
func (im *image) bucket(name string, rec []byte) error {
	if len(rec) < 16 {
		return fmt.Errorf("bucket %q: a record of %d bytes", name, len(rec))
	}
	visit := func(flags uint32, k, v []byte) error {
		if flags != 0 {
			return fmt.Errorf("a bucket inside of bucket %q", name)
		}
		if err := im.pair(name, k, v); err != nil {
			return fmt.Errorf("%s %x: %w", name, k, err)
		}
		return nil
	}
	im.buckets++
	if root := binary.LittleEndian.Uint64(rec); root != 0 {
		return im.walk(root, nil, nil, 0, visit)
	}
	page := rec[16:]
	if len(page) < pageHeader || binary.LittleEndian.Uint16(page[8:]) != leafPage {
		return fmt.Errorf("bucket %q: bad inline page", name)
	}
	return leaf(page, nil, nil, visit)
}

// pair reads one key and its value.
func (im *image) pair(bucket string, k, v []byte) (err error) {
	switch bucket {
	case string(bucketLog):
		var l raft.Log
		if err := decodeEntry(v, &l); err != nil {
			return err
		}
		switch {
		case !bytes.Equal(k, indexKey(l.Index)):
			return fmt.Errorf("it says that it is entry %d", l.Index)
		case im.prev.Index == 0:
			im.state.first = l.Index
		case l.Index != im.prev.Index+1:
			return fmt.Errorf("entry %d follows entry %d", l.Index, im.prev.Index)
		case l.Term < im.prev.Term:
			return fmt.Errorf("term %d follows term %d", l.Term, im.prev.Term)
		}
		im.prev, im.prevSum = l, binary.BigEndian.Uint32(v)
	case string(bucketStable):
		b, err := unsealed(v)
		if err != nil {
			return err
		}
		im.stable[string(k)] = bytes.Clone(b)
	case string(bucketMeta):
		switch string(k) {
		case string(keyNode):
			b, err := unsealed(v)
			if err != nil {
				return err
			}
			im.node = string(b)
		case string(keyState):
			first := im.state.first
			im.state, err = decodeState(v)
			if err == nil && im.state.first != first {
				err = fmt.Errorf("the log begins at %d instead of %d", first, im.state.first)
			}
			im.hasMeta = true
			return err
		default:
			return errors.New("unknown key")
		}
	default:
		return errors.New("unknown bucket")
	}
	return nil
}

// check compares the content with the state record written beside it.
func (im *image) check() error {
	switch {
	case !im.hasMeta || im.node == "":
		return errors.New("its state record is missing")
	case im.state.last != im.prev.Index || im.state.lastSum != im.prevSum:
		return fmt.Errorf("the log ends at %d instead of %d", im.prev.Index, im.state.last)
	case im.state.stableSum != sumStable(im.stable):
		return errors.New("the term or the vote is missing")
	}
	return nil
}
