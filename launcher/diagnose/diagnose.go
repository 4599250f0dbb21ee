// Package diagnose decides why a rank has ended: from what the rank, its server's log, its error file and the kernel
// have written it makes a sentence, and it separates a cause from what the rank's peers noticed of it.
//
// It must not end, start or wait for anything, nor choose whose rights files are read with.
package diagnose

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/logs"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

const (
	kernelMost  = 8 << 20 // bytes of the kernel's log
	kernelEntry = 8 << 10 // its longest record: LOG_LINE_MAX, with its dictionary
)

// Case is a rank that has ended.
type Case struct {
	PID       int // as the kernel knows it
	Ended     time.Time
	LogDir    string // has its output
	Rank      int
	Record    []byte // its error file (TORCHELASTIC_ERROR_FILE); empty: it wrote none
	Contained bool   // it ran in a container
	Group     string // a part of the path of its attempt's cgroup, which no other's has
}

// Explain adds the cause to an exit, as far as it can be found. It reads files, and may
// take as long as their disk does.
func (s *Servers) Explain(c Case, e launcher.Exit) launcher.Exit { return s.gather(c).evaluate(e) }

func (s *Servers) gather(c Case) evidence {
	found := evidence{logs: s, pid: c.PID, kernel: kernelLog(), record: c.Record, contained: c.Contained,
		group: c.Group}
	var since unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &since) == nil { // the clock of the kernel log
		found.died = time.Duration(since.Nano()) - time.Since(c.Ended)
	}
	for _, stream := range []launcher.Stream{launcher.Stderr, launcher.Stdout} {
		path := filepath.Join(c.LogDir, fmt.Sprintf("rank-%d.%s", c.Rank, stream))
		if later := logs.Parts(c.LogDir)[path]; len(later) > 0 { // of long output the end is in the last part
			path = shim.PartName(path, later[len(later)-1])
		}
		switch lines := logs.LastLines(path); {
		case len(found.lines) == 0:
			found.lines = lines
		default:
			found.aside = lines
		}
	}
	return found
}

// kernelLog reads the kernel's ring buffer up to now: one record for each read, without
// waiting for more (Documentation/ABI/testing/dev-kmsg). Empty where it may not be read.
func kernelLog() string {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var all strings.Builder
	record := make([]byte, kernelEntry)
	for all.Len() < kernelMost {
		n, err := unix.Read(fd, record)
		switch {
		case err == unix.EINTR || err == unix.EPIPE: // EPIPE: overwritten meanwhile; the next read continues
			continue
		case err != nil || n <= 0:
			return all.String()
		}
		all.Write(record[:n])
	}
	return all.String()
}
