package modelcache

import (
	"encoding/hex"
	"errors"
	"fmt"
)

// Finish makes the blob of a part that is all there: on the disk, its content verified. If another node has
// verified the whole file by the same chunk sums, trusted leaves out the second look. Wrong content is
// ErrSum, and the part is gone: which of its bytes are wrong cannot be known.
func (p *Part) Finish(trusted bool) error {
	wrap := func(err error) error { return fmt.Errorf("finish %s of %s: %w", p.file.Path, p.repo, err) }
	p.mu.Lock()
	err := p.ready()
	if err == nil && p.size != p.file.Size {
		err = fmt.Errorf("%w: %d of %d bytes", ErrAbsent, p.size, p.file.Size)
	}
	if err == nil && !trusted {
		err = p.catchUp(p.size)
	}
	sum := hex.EncodeToString(p.whole.Sum(nil))
	p.mu.Unlock()
	if err != nil {
		return wrap(err)
	}
	if !trusted && sum != p.file.ETag() {
		p.Discard()
		return wrap(fmt.Errorf("%w: its sum is %s, want %s", ErrSum, sum, p.file.ETag()))
	}
	p.stop()
	defer p.release()
	st, err := p.f.Stat()
	if err == nil && st.Size() != p.file.Size {
		err = p.f.Truncate(p.file.Size)
	}
	if err = errors.Join(err, p.f.Sync()); err != nil {
		return wrap(err)
	}
	dropCache(p.f, 0, 0)
	var sums []byte
	for _, sum := range p.sums {
		sums = append(sums, sum[:]...)
	}
	if err := p.c.write(p.name(".sums"), sums, true); err != nil && !full(err) {
		return wrap(err)
	}
	if err := p.c.place(p.name(".part"), p.repo, p.file.ETag()); err != nil {
		return wrap(err)
	}
	p.forget()
	return nil
}

// stop ends the saver.
func (p *Part) stop() {
	p.mu.Lock()
	was := p.closed
	p.closed = true
	p.mu.Unlock()
	if !was {
		close(p.wake)
		<-p.done
	}
}

func (p *Part) release() {
	if p.f != nil {
		p.f.Close()
	}
	p.lock.drop()
	if p.lease != nil {
		p.lease.Drop()
	}
}

// Close keeps what there is, for the next Begin.
func (p *Part) Close() error {
	p.mu.Lock()
	was := p.closed
	p.mu.Unlock()
	if was {
		return nil
	}
	p.stop()
	defer p.release()
	err := p.err
	if err == nil {
		err = p.save()
	}
	dropCache(p.f, 0, 0)
	return err
}

// Discard gives the part up.
func (p *Part) Discard() {
	p.mu.Lock()
	was := p.closed
	p.mu.Unlock()
	if was {
		return
	}
	p.stop()
	p.forget()
	p.c.root.Remove(p.name(".part"))
	p.release()
}
