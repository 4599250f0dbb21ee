package follow

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// notes are sparkrun's own lines on stderr. Printing one never blocks: a terminal that
// has stopped reading must not keep Ctrl-C from working.
type notes struct {
	lines chan string
	done  chan struct{}
	close func()
}

// OpenNotes starts the writer of sparkrun's own lines.
func OpenNotes(w io.Writer) *notes {
	n := &notes{lines: make(chan string, 64), done: make(chan struct{})}
	n.close = sync.OnceFunc(func() { close(n.lines) })
	go func() { // joined by Close
		defer close(n.done)
		for line := range n.lines {
			fmt.Fprintln(w, "sparkrun: "+plain.Text(line))
		}
	}()
	return n
}

// Say drops the line when 64 are waiting already. It must not be called after Close.
func (n *notes) Say(line string) {
	select {
	case n.lines <- line:
	default:
	}
}

// Close waits until the lines are written, but not for ever.
func (n *notes) Close() {
	n.close()
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-n.done:
	case <-t.C:
	}
}
