package shim

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	chunk = 64 << 10
	// pipeBytes is requested of the kernel, for fewer switches between rank and shim.
	// Without privilege the sum per user is bounded (pipe-user-pages-soft).
	pipeBytes = 256 << 10
	// A full disk is tried again after this long. Until then bytes are only counted, so
	// that a nearly full disk makes few, large gaps.
	retryAfter = time.Second
)

// chunks are used only while there is something to read: a thousand quiet ranks take no
// memory.
var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// copier copies one stream of one rank from its pipe to its file, byte for byte, and never
// makes the rank wait for a file that cannot be written.
type copier struct {
	src    *os.File
	dst    io.Writer
	name   string     // "out" or "err"
	offset int64      // the file's length
	lost   func(Lost) // called for each gap, when it opens and when it closes

	gap   Lost
	retry time.Time
}

// outputPipe gives the read end for the shim, registered with the poller so that no thread
// waits in it, and the write end for the rank, which blocks as programs expect.
func outputPipe() (r *os.File, w int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, 0, fmt.Errorf("make output pipe: %w", err)
	}
	_, _ = unix.FcntlInt(uintptr(p[0]), unix.F_SETPIPE_SZ, pipeBytes)
	if err := unix.SetNonblock(p[0], true); err != nil {
		unix.Close(p[0])
		unix.Close(p[1])
		return nil, 0, fmt.Errorf("make output pipe: %w", err)
	}
	return os.NewFile(uintptr(p[0]), "output"), p[1], nil
}

// run copies until the last writer has closed the pipe, or cut was called.
func (c *copier) run() {
	defer c.src.Close()
	defer c.close()
	rc, err := c.src.SyscallConn()
	if err != nil {
		return
	}
	for {
		n, err := c.turn(rc.Read)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if n == 0 || err != nil {
			return
		}
	}
	// Cut: what was written before is still in the pipe, and no more than fits.
	for left := 1 << 20; left > 0; {
		n, err := c.turn(func(f func(uintptr) bool) error {
			return rc.Control(func(fd uintptr) {
				if !f(fd) {
					left = 0
				}
			})
		})
		if n == 0 || err != nil {
			return
		}
		left -= n
	}
}

// turn reads once and writes what was read.
func (c *copier) turn(read func(func(uintptr) bool) error) (n int, err error) {
	var b *[chunk]byte
	var rerr error
	err = read(func(fd uintptr) bool {
		b = chunks.Get().(*[chunk]byte)
		n, rerr = ignoreEINTR(func() (int, error) { return syscall.Read(int(fd), b[:]) })
		if rerr == syscall.EAGAIN {
			chunks.Put(b)
			b, n = nil, 0
			return false
		}
		return true
	})
	if b == nil {
		return 0, err
	}
	defer chunks.Put(b)
	if n > 0 && rerr == nil {
		c.write(b[:n], time.Now())
	}
	return max(n, 0), errors.Join(err, rerr)
}

func ignoreEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != syscall.EINTR {
			return n, err
		}
	}
}

// write puts b into the file, or counts it as lost: P7, a log is a prefix plus counted
// gaps.
func (c *copier) write(b []byte, now time.Time) {
	if c.gap.Bytes > 0 && now.Before(c.retry) {
		c.gap.Bytes += int64(len(b))
		return
	}
	n, err := c.dst.Write(b)
	if n > 0 {
		c.close()
		c.offset += int64(n)
	}
	if err == nil {
		return
	}
	c.retry = now.Add(retryAfter)
	opens := c.gap.Bytes == 0
	c.gap = Lost{Stream: c.name, Offset: c.offset, Bytes: c.gap.Bytes + int64(len(b)-n), Error: cause(err)}
	if opens {
		c.lost(c.gap)
	}
}

// close reports the final size of an open gap.
func (c *copier) close() {
	if c.gap.Bytes > 0 {
		c.lost(c.gap)
		c.gap = Lost{}
	}
}

// cut makes run return soon, even if some process still holds the pipe.
func (c *copier) cut() { _ = c.src.SetReadDeadline(time.Unix(1, 0)) }

// cause is the reason without path and verb, which the reader knows.
func cause(err error) string {
	var no syscall.Errno
	if errors.As(err, &no) {
		return no.Error()
	}
	return err.Error()
}
