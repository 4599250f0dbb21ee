package shim

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// journal is the append-only record of one attempt. It is never synced: it has to outlive
// the shim, not the kernel, for no process outlives the kernel either.
type journal struct {
	f    *os.File
	size int64

	mu     sync.Mutex
	events []Event
	more   chan struct{} // closed and replaced with each event
}

// openJournal refuses a journal with anything in it, be it half a line: then another shim
// ran here and its ranks may have run.
func openJournal(dir string) (*journal, error) {
	f, err := os.OpenFile(filepath.Join(dir, journalName), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	st, err := f.Stat()
	if err == nil && st.Size() > 0 {
		err = ErrMayHaveRun
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open journal %s: %w", f.Name(), err)
	}
	return &journal{f: f, more: make(chan struct{})}, nil
}

// reserve allocates the space that the events of n ranks need, so that a full /run refuses
// a start instead of losing exit codes.
func (j *journal) reserve(n int) error {
	err := unix.Fallocate(int(j.f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, int64(4096+1024*n))
	if err == unix.ENOSPC || err == unix.EDQUOT {
		return fmt.Errorf("reserve journal %s: %w: free some space there", j.f.Name(), err)
	}
	return nil // a file system that cannot reserve is no reason to refuse
}

// write appends one event and sends it. If the append fails nothing is sent and the file is
// as before.
func (j *journal) write(e Event) error {
	line, err := j.prepare(&e)
	if err != nil {
		return err
	}
	n, err := j.f.Write(line)
	if err != nil {
		if n > 0 {
			_ = j.f.Truncate(j.size) // half a line would hide the next one
		}
		return fmt.Errorf("write journal %s: %w", j.f.Name(), err)
	}
	j.size += int64(n)
	j.tell(e)
	return nil
}

// record is write for what has happened already: it is sent even if it cannot be kept, and
// the error is for the log.
func (j *journal) record(e Event) error {
	err := j.write(e)
	if err != nil {
		if _, perr := j.prepare(&e); perr == nil {
			j.tell(e)
		}
	}
	return err
}

func (j *journal) prepare(e *Event) ([]byte, error) {
	j.mu.Lock()
	e.Seq = len(j.events) + 1
	j.mu.Unlock()
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	line, err := marshal(e)
	return append(line, '\n'), err
}

func (j *journal) tell(e Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, e)
	close(j.more)
	j.more = make(chan struct{})
}

// since gives the events from number seq on, and a channel that closes at the next one.
func (j *journal) since(seq int) ([]Event, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	first := min(max(seq, 1)-1, len(j.events))
	return j.events[first:len(j.events):len(j.events)], j.more
}
