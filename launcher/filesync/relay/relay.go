// Package relay decides how one file's bytes come to a node and go on to others while they
// arrive: which source they are taken from, when a source is left, what is verified before
// it is handed on, and how much of it is in memory meanwhile.
//
// A file is cut into chunks of 16 MiB. Its verified prefix is what a node offers. The node
// that reads from outside hashes the whole file as it goes, and each chunk with BLAKE3;
// those after it verify each chunk by that sum.
//
// It must not know of the Hub, of a cache's layout, of who is a member or how a member is
// dialled: sources, the part on disk and connections are given to it.
package relay

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"time"

	"github.com/zeebo/blake3"
)

// ChunkBytes is how much of a file has a sum of its own. With longer chunks a chain gets
// slower: each node waits for a whole one before it hands on.
const ChunkBytes = 16 << 20

const (
	// A request to the outside is a chunk cut by outsideCut, 8 MiB; outsideConns of them are
	// under way: two chunks.
	outsideCut   = 2
	outsideConns = 4
	// A request to a member is 1 MiB: short, so that the connections work on the same chunk.
	// A connection carries what one core can encrypt, so there are several.
	memberCut = leaves
	// leaves are the parts of a chunk that are hashed by themselves.
	leaves      = 16
	memberConns = 8
	// window is how many chunks of one file are under way.
	window = 2

	// stall is how long a source may give nothing before it is left, and how long a member
	// that does not answer is taken to come back.
	stall = 5 * time.Second
	// leftFor is how long a member that answers, but gives no bytes, is not asked again.
	leftFor = 30 * time.Second
	// beat is how long a question for more waits before it is answered with nothing.
	beat = time.Second
	// askWithin bounds a question that does not wait.
	askWithin = 2 * time.Second
	// again is the pause after an error.
	again = 200 * time.Millisecond
	// sourceless is how long a file is waited for that nobody gives: a router takes its time
	// to start.
	sourceless = 5 * time.Minute
)

// Sum is a chunk's: the BLAKE3 of its sixteenths' BLAKE3s. Those are hashed each by whoever
// has read it, on as many cores as there are connections: of arm64 the library uses no vector
// instructions, and one core hashes half a GB/s there.
type Sum = [32]byte

// Word says how a file's own sum was judged.
type Word string

// Words of a node that has the whole file.
const (
	Right Word = "right"
	Wrong Word = "wrong"
)

// State is what a source has of a file.
type State struct {
	// Sums are those of the verified chunks from the one on that was asked for: not always
	// all of them.
	Sums []Sum
	// Outside: it reads the file from outside, or tries to.
	Outside bool
	// Stuck: no member gives it more, and the outside nothing. Those behind it look further.
	Stuck bool
	// Word, if any, is on the file whose chunks' sums hash to Root.
	Word Word
	Root Sum
	// Failed says why it will have no more; empty: it will.
	Failed string
}

// Source is a node that has a file, or a part of it.
type Source interface {
	// State tells what there is beyond the first chunks. Where there is nothing new it
	// waits, but not for longer than wait.
	State(ctx context.Context, from int, wait time.Duration) (State, error)
	// Open reads n bytes from an offset on. It may wait for bytes that are not yet there.
	Open(ctx context.Context, off, n int64) (io.ReadCloser, error)
}

// Member is another node, as a source.
type Member struct {
	Name   string // for events
	Source Source
}

// Part is where a file's bytes are kept while they arrive.
type Part interface {
	io.ReaderAt
	io.WriterAt
	// Keep notes that the next chunk is written and verified. hash is the state of the
	// whole file's hash after it; nil where it is not known. After Keep a process may be
	// killed, and after a crash of the machine what was kept is verified anew.
	Keep(sum Sum, hash []byte) error
	// Drop takes bytes that have been read, and will hardly be read again soon, out of the
	// page cache: it is memory that the GPU shares.
	Drop(off, n int64)
}

// Kept is what a part has of a file.
type Kept struct {
	Sums []Sum
	Hash []byte // state of the whole file's hash after HashAt chunks
	At   int
}

// Event tells of a change of source. Err is nil when Source is taken, else it says why it
// was left.
type Event struct {
	Source string
	At     int64 // bytes that were verified then
	Err    error
}

// Reasons for which a source is left, or a file is not whole.
var (
	// ErrStalled: a source gave nothing for 5 s.
	ErrStalled = errors.New("gave nothing for 5 s")
	// ErrWrongBytes: a member's bytes are not those of the sum that it gave.
	ErrWrongBytes = errors.New("sent wrong bytes")
	// ErrSum: all bytes are here, and are not the file that was asked for. What was kept is
	// of no use.
	ErrSum = errors.New("the file's sum is not the one expected")
	// ErrNoSource: for 5 minutes neither a member gave anything, nor the outside to any of them.
	ErrNoSource = errors.New("nobody has given anything of it for 5 minutes")
	// ErrGone is to be wrapped by Outside where asking again is no use.
	ErrGone = errors.New("the outside does not give it")

	errNoMore    = errors.New("has no more")
	errFollowed  = errors.New("a member has more")
	errNoOutside = errors.New("the outside is not asked")
)

// Config is one file's.
type Config struct {
	Size int64
	// SHA256 or GitSHA1 is the file's sum in hex: its content's, or git's of a blob.
	SHA256, GitSHA1 string
	Part            Part
	Kept            Kept
	// Chain are the nodes in order, this one at Self with no Source. Before are those from
	// which it takes at best; any other is taken where it has more.
	Chain []Member
	Self  int
	// Outside reads n bytes from an offset on; nil where this node may not. The first living
	// node of the chain to which it gives something calls it. An error that wraps ErrGone ends
	// Run, any other is followed by another try.
	Outside func(ctx context.Context, off, n int64) (io.ReadCloser, error)
	// Buffers and Limit are the node's: all its files share them. A nil Limit is none. Of files that wait for a
	// buffer the one with the lowest Turn gets it.
	Buffers *Buffers
	Turn    int
	Limit   *Limit
	// Event is told of changes of source; it must not block. May be nil.
	Event func(Event)

	chunk int64
}

// layout is how a file is cut.
type layout struct{ size, chunk int64 }

// layout gives the file's; only tests have a chunk of their own.
func (c Config) layout() layout {
	if c.chunk == 0 {
		return layout{c.Size, ChunkBytes}
	}
	return layout{c.Size, c.chunk}
}

// chunks counts them.
func (l layout) chunks() int { return int((l.size + l.chunk - 1) / l.chunk) }

// end is where the first n chunks end.
func (l layout) end(n int) int64 { return min(int64(n)*l.chunk, l.size) }

// at gives a chunk's place.
func (l layout) at(i int) (off, n int64) {
	off = int64(i) * l.chunk
	return off, min(l.chunk, l.size-off)
}

// leaf is the size of what is hashed by itself.
func (l layout) leaf() int64 { return l.chunk / leaves }

// SumOf is the sum of a chunk in memory.
func SumOf(chunk []byte) Sum {
	var sums []Sum
	for leaf := range slices.Chunk(chunk, ChunkBytes/leaves) {
		sums = append(sums, blake3.Sum256(leaf))
	}
	return root(sums)
}

// sum reads a chunk and gives its sum; what is read goes to also, too, if that is not nil.
func (l layout) sum(i int, from io.ReaderAt, also io.Writer) (Sum, error) {
	off, n := l.at(i)
	buf := make([]byte, min(readBytes, l.leaf()))
	var sums []Sum
	for at := int64(0); at < n; at += l.leaf() {
		h := blake3.New()
		to := io.Writer(h)
		if also != nil {
			to = io.MultiWriter(h, also)
		}
		want := min(l.leaf(), n-at)
		got, err := io.CopyBuffer(onlyWriter{to}, onlyReader{io.NewSectionReader(from, off+at, want)}, buf)
		if err == nil && got != want {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return Sum{}, err
		}
		sums = append(sums, Sum(h.Sum(nil)))
	}
	return root(sums), nil
}

type (
	onlyWriter struct{ io.Writer }
	onlyReader struct{ io.Reader }
)

// root is the hash of sums: of a chunk's leaves, or of a file's chunks.
func root(sums []Sum) Sum {
	h := blake3.New()
	for _, s := range sums {
		_, _ = h.Write(s[:])
	}
	return Sum(h.Sum(nil))
}

// digest makes the hash of the whole file, and gives the sum that it should have.
func (c Config) digest() (hash.Hash, []byte, error) {
	text, h := c.SHA256, sha256.New()
	if text == "" {
		text, h = c.GitSHA1, sha1.New()
		fmt.Fprintf(h, "blob %d\x00", c.Size)
	}
	want, err := hex.DecodeString(text)
	if err != nil || len(want) != h.Size() {
		return nil, nil, fmt.Errorf("relay a file: %q is no sum", text)
	}
	return h, want, nil
}
