package modelcache

import "github.com/zeebo/blake3"

// Sum is a chunk's: the BLAKE3 of its sixteenths' BLAKE3s, so that several cores can make it.
type Sum [32]byte

// SumOf is the sum of a chunk in memory.
func SumOf(p []byte) Sum {
	h := newChunkHash()
	h.write(p)
	return h.sum()
}

const leafBytes = ChunkBytes / 16

// chunkHash makes a chunk's sum piece by piece.
type chunkHash struct {
	leaf, root *blake3.Hasher
	n          int // bytes of the leaf
}

func newChunkHash() *chunkHash { return &chunkHash{leaf: blake3.New(), root: blake3.New()} }

func (h *chunkHash) write(b []byte) {
	for len(b) > 0 {
		piece := b[:min(len(b), leafBytes-h.n)]
		_, _ = h.leaf.Write(piece)
		if h.n, b = h.n+len(piece), b[len(piece):]; h.n == leafBytes {
			h.endLeaf()
		}
	}
}

func (h *chunkHash) endLeaf() {
	_, _ = h.root.Write(h.leaf.Sum(nil))
	h.leaf.Reset()
	h.n = 0
}

// sum gives the sum, and begins anew.
func (h *chunkHash) sum() (s Sum) {
	if h.n > 0 {
		h.endLeaf()
	}
	h.root.Sum(s[:0])
	h.root.Reset()
	return s
}
