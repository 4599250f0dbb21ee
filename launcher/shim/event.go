package shim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// Kind says what an Event reports. A reader ignores kinds that it does not know.
type Kind string

const (
	Starting   Kind = "starting"    // written before the first exec: from here on, ranks may have run
	Started    Kind = "started"     // one rank has been exec'd
	OutputLost Kind = "output-lost" // a gap in one rank's output file
	Exited     Kind = "exited"      // one rank has ended: waitpid and the end of its output
	Left       Kind = "left"        // processes that a rank, or some of them, left behind were killed, as Why says
	Stuck      Kind = "stuck"       // KILL was sent and a process is left, as Why says; Ended comes once it is gone
	Ended      Kind = "ended"       // no process of the attempt is left, and none will start; always the last
)

// AllRanks is the Rank of an event that concerns no single rank.
const AllRanks = -1

// Event is one line of the journal: first written there, then sent.
type Event struct {
	Seq  int       `json:"seq"` // from 1, without gaps
	Time time.Time `json:"time"`
	Kind Kind      `json:"kind"`
	Rank int       `json:"rank"` // AllRanks for Starting, Stuck and Ended, and for Left where it is not known
	// PID is the rank's process, in Started and, if it ran, in Exited.
	PID int `json:"pid,omitempty"`
	// Exited, of a rank in a container: the program's PID, for which PID stands
	ContainerPID int            `json:"boxed,omitempty"`
	Again        int            `json:"again,omitempty"` // Started, Exited: the rank's incarnations before this one
	Exit         *launcher.Exit `json:"exit,omitempty"`  // Exited; Time is then that of waitpid
	Lost         *Lost          `json:"lost,omitempty"`  // OutputLost
	// Ended: what began the end; Left: how many, and which; Stuck: which process is left, and where it waits
	Why string `json:"why,omitempty"`
	// Trace is in Starting, Ticks in Started: what Reap needs.
	Trace *Trace `json:"trace,omitempty"`
	Ticks uint64 `json:"ticks,omitempty"` // start time in /proc/PID/stat: tells a PID from its reuse
}

// Lost is one gap in an output file: Bytes that should be at Offset are not. A gap is
// reported when it opens and again, with the final count, when it closes: the later event
// with the same Stream and Offset replaces the earlier.
type Lost struct {
	Stream string `json:"stream"` // "out" or "err"
	Offset int64  `json:"offset"` // in bytes from the start of the file
	Bytes  int64  `json:"bytes"`
	Error  string `json:"error"` // why, for example "no space left on device"
}

// Trace is how an attempt is found when its shim is dead.
type Trace struct {
	Boot   string `json:"boot"`             // after another boot no process is left
	Mark   string `json:"mark"`             // value of SPARKRUN_GANG in each rank's environment
	Cgroup string `json:"cgroup,omitempty"` // its folder
}

const (
	journalName = "journal"
	lockName    = "lock"
	socketName  = "shim.sock"
	logName     = "shim.log"
)

// Replay reads the journal of a shim, dead or alive. A line cut short by the shim's death
// was never sent to anybody and is left out. Without a journal there are no events: nothing
// was ever exec'd.
func Replay(dir string) ([]Event, error) {
	b, err := os.ReadFile(filepath.Join(dir, journalName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("replay shim: %w", err)
	}
	events, err := parseJournal(b)
	if err != nil {
		return events, fmt.Errorf("replay shim %s: %w", dir, err)
	}
	return events, nil
}

func parseJournal(b []byte) ([]Event, error) {
	var events []Event
	for {
		line, rest, whole := bytes.Cut(b, []byte{'\n'})
		if !whole {
			return events, nil
		}
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			return events, fmt.Errorf("journal line %d: %w", len(events)+1, err)
		}
		if e.Seq != len(events)+1 {
			return events, fmt.Errorf("journal line %d: has number %d", len(events)+1, e.Seq)
		}
		events = append(events, e)
		b = rest
	}
}
