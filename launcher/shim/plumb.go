package shim

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// plumbing is a rank's three descriptors, and our ends of them.
type plumbing struct {
	child   []int // 0, 1 and 2; ours to close after the fork
	in      *input
	streams []*copier
	holds   []string // what the links of these descriptors in /proc/PID/fd say
	pmi     *os.File // our end of its connection to its process manager; nil: it has none
	theirs  *int     // the rank's end of that, to close after the fork
}

// sink is the destination of a stream; end is how many bytes it has had.
type sink interface {
	io.WriteCloser
	end() int64
}

// plumb makes a rank's pipes or its terminal. Output goes to the two sinks in to; an unused
// one is closed. After an error nothing is open but these two.
func plumb(r Rank, uid *uint32, to [2]sink) (p plumbing, err error) {
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if r.PMI != nil {
		if err := p.layPMI(); err != nil {
			return p, err
		}
	}
	if r.TTY != nil {
		return p, p.layTTY(*r.TTY, uid, to)
	}
	if err := p.layStdin(r.Stdin); err != nil {
		return p, err
	}
	for i, name := range []string{"out", "err"} {
		src, w, err := outputPipe()
		if err != nil {
			return p, err
		}
		p.child = append(p.child, w)
		var st unix.Stat_t
		_ = unix.Fstat(w, &st)
		p.holds = append(p.holds, fmt.Sprintf("pipe:[%d]", st.Ino))
		p.streams = append(p.streams, &copier{src: src, dst: to[i], name: name, offset: to[i].end()})
	}
	return p, nil
}

// layStdin makes an empty input, or a pipe.
func (p *plumbing) layStdin(wanted bool) error {
	if !wanted {
		null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", os.DevNull, err)
		}
		p.child = append(p.child, null)
		return nil
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("make input pipe: %w", err)
	}
	p.child = append(p.child, ends[0])
	if err := unix.SetNonblock(ends[1], true); err != nil {
		unix.Close(ends[1])
		return fmt.Errorf("make input pipe: %w", err)
	}
	p.in = &input{f: os.NewFile(uintptr(ends[1]), "input")}
	return nil
}

// layTTY opens a pseudo-terminal (pts(4)): one stream for stdout and stderr, and input as
// if typed.
func (p *plumbing) layTTY(w launcher.Window, uid *uint32, to [2]sink) error {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open a terminal: %w", err)
	}
	f := os.NewFile(uintptr(master), "terminal")
	src := &copier{src: f, dst: to[0], name: "out", offset: to[0].end()}
	p.streams = append(p.streams, src)
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		return fmt.Errorf("open a terminal: %w", err)
	}
	name := fmt.Sprintf("/dev/pts/%d", n)
	p.holds = append(p.holds, name)
	slave, err := unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open terminal %s: %w", name, err)
	}
	p.child = append(p.child, slave)
	if uid != nil {
		_ = unix.Fchown(slave, int(*uid), -1) // for programs that open it by name
	}
	for range 2 {
		fd, err := unix.FcntlInt(uintptr(slave), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open terminal %s: %w", name, err)
		}
		p.child = append(p.child, fd)
	}
	p.in = &input{f: f, tty: true}
	to[1].Close() // stays empty
	return p.in.resize(w)
}

func (p *plumbing) closeChild() {
	for _, fd := range p.child {
		unix.Close(fd)
	}
	p.child = nil
	if p.theirs != nil {
		unix.Close(*p.theirs)
		p.theirs = nil
	}
}

func (p *plumbing) close() {
	p.closeChild()
	for _, s := range p.streams {
		s.src.Close()
	}
	if p.in != nil {
		p.in.close()
	}
	if p.pmi != nil {
		p.pmi.Close()
	}
}

// input is our end of a rank's standard input. A write waits for the reader, and the next
// write for this one.
type input struct {
	f   *os.File
	tty bool

	mu   sync.Mutex
	at   int64 // bytes written so far
	over bool  // its end was sent
}

var errInputOver = errors.New("its end was sent before")

// write passes on what is new in data: offset counts from the first byte ever, so that a
// caller without an answer can repeat the call. end closes the input after data; in a
// terminal it is typed, as Ctrl-D.
func (in *input) write(offset int64, data []byte, end bool) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case offset < 0 || offset > in.at:
		return fmt.Errorf("%w: input at %d, and the rank has got %d bytes", ErrRefused, offset, in.at)
	case offset+int64(len(data)) <= in.at:
		data = nil
	default:
		data = data[in.at-offset:]
	}
	if in.over {
		if len(data) > 0 {
			return fmt.Errorf("%w: input: %w", ErrRefused, errInputOver)
		}
		return nil
	}
	n, err := in.f.Write(data)
	in.at += int64(n)
	if err == nil && end {
		in.over = true
		if !in.tty {
			_ = in.f.Close() // an error says that the rank, having read this, ended first
			return nil
		}
		const endOfTransmission = 4 // VEOF, termios(3)
		_, err = in.f.Write([]byte{endOfTransmission})
	}
	if errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.EIO) {
		return fmt.Errorf("%w: it does not read its input any more", ErrNoRank)
	}
	return err
}

// offset is where the next write continues. It waits for a write under way.
func (in *input) offset() int64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.at
}

// close ends a waiting write. A terminal is closed by its reader.
func (in *input) close() {
	if !in.tty {
		in.f.Close()
	}
}

func (in *input) resize(w launcher.Window) error {
	if !in.tty {
		return fmt.Errorf("%w: it has no terminal", ErrRefused)
	}
	rc, err := in.f.SyscallConn()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoRank, err)
	}
	var ierr error
	err = rc.Control(func(fd uintptr) {
		ierr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: w.Rows, Col: w.Cols})
	})
	if err = errors.Join(err, ierr); err != nil {
		return fmt.Errorf("%w: resize terminal: %w", ErrNoRank, err)
	}
	return nil
}
