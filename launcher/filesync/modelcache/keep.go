package modelcache

import (
	"encoding"
	"encoding/json"
)

// Kept is what there is from the start: the chunks' sums, and the state of the whole file's hash after the first
// at of them.
func (p *Part) Kept() (sums [][32]byte, state []byte, at int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sums {
		sums = append(sums, s)
	}
	if p.edge > 0 {
		state, at = p.atEdge, int(chunksOf(p.edge))
	}
	return sums, state, at
}

// HasPart says whether a file has been begun: then it has its room already.
func (c *Cache) HasPart(r Repo, f File) bool {
	p := Part{repo: r, file: f}
	_, err := c.root.Lstat(p.name(".part"))
	return r.Check() == nil && f.check() == nil && err == nil
}

// WriteAt takes bytes beyond the prefix, which count when Keep says so.
func (p *Part) WriteAt(b []byte, off int64) (int, error) {
	n, err := p.f.WriteAt(b, off)
	if err != nil {
		err = p.trouble(err)
	}
	return n, err
}

// Keep takes the next chunk for verified, and the state of the whole's hash after it where that is known.
func (p *Part) Keep(sum [32]byte, state []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.ready(); err != nil {
		return err
	}
	from := p.size
	p.sums = append(p.sums, sum)
	p.size += min(ChunkBytes, p.file.Size-from)
	if state != nil {
		if err := p.whole.(encoding.BinaryUnmarshaler).UnmarshalBinary(state); err != nil {
			return err
		}
		p.hashed, p.atEdge, p.edge = p.size, state, p.size
	}
	if err := p.note(); err != nil {
		return err
	}
	p.chunkDone(from, p.size-from)
	return nil
}

// note has the next process know of the chunk, without waiting for the disk.
func (p *Part) note() error {
	text, err := json.Marshal(p.known())
	if err != nil {
		return err
	}
	if err := p.c.write(p.name(".next"), text, false); err != nil && !full(err) { // the content has its room
		return p.trouble(err)
	}
	return nil
}

// Drop gives back the memory of what has been read.
func (p *Part) Drop(from, length int64) { dropCache(p.f, from, length) }
