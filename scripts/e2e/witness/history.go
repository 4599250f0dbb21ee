package witness

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// History is all that is known of a test from outside.
type History struct {
	Records []Record
	Faults  []Fault // what the test itself broke
	Births  []Birth // where and when a part of an attempt was being prepared
	Overs   []Over
	Asks    []Ask
	Logs    []Log

	Bounds
}

// Bounds are the times that the properties speak of. They are counted while
// nothing is broken, and Settle after a fault was undone.
type Bounds struct {
	// Kill is how long a process may outlive its generation: the bar's kill
	// bound, and what a busy machine takes.
	Kill time.Duration
	// Tell is how long it may take until what a rank's exit asks for is done everywhere: on a busy machine a leader may have
	// to be elected more than once meanwhile.
	Tell time.Duration
	// StartTimeout is the jobs' own. Kill is added to it.
	StartTimeout time.Duration
	// Settle is the time after a fault in which the cluster finds itself again.
	Settle time.Duration
}

// Fault is something that the test broke, from From to To as Boot counts; To is
// 0 while it lasts.
type Fault struct {
	Host     string
	What     Broken
	From, To int64
}

// Broken says what.
type Broken string

const (
	Power   Broken = "power"   // the host was off
	Network Broken = "network" // cables were out
	Agent   Broken = "agent"   // its agent was not running
)

// Birth is the moment at which a host made the folder for an attempt's output: in
// prepare, when all that may refuse has been looked at. Real is the file
// system's, whose clock is a few ms behind, never ahead.
type Birth struct {
	Key
	Host string
	Real int64
}

// Over is sparkrun's word to a user that a job has ended.
type Over struct {
	Job string
	At  int64
}

// Log is what `sparkrun logs` gave of one rank's standard output.
type Log struct {
	Key
	Rank   int32
	Host   string
	Pieces []Piece // as they came
	Notes  int     // of output that is missing
}

// Piece is some bytes of it.
type Piece struct {
	Offset int64
	Data   string
}

// Violation is a promise that was broken.
type Violation struct {
	Property string // P2, P3, ...
	At       int64  // as Boot counts; 0: at no moment
	Text     string
}

func (v Violation) String() string { return v.Property + ": " + v.Text }

// Check gives every broken promise. What holds so far but may still be broken
// is none, so a test may ask while it goes on.
func Check(h History) []Violation {
	c := &checker{History: h, lives: map[Key]*life{}}
	for _, r := range h.Records {
		c.enter(r)
	}
	c.keys = slices.SortedStableFunc(maps.Keys(c.lives), func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Generation, b.Generation))
	})
	c.linear()
	c.once()
	c.apart()
	c.forward()
	c.gone()
	c.heard()
	c.whole()
	c.together()
	c.honest()
	return c.found
}

type checker struct {
	History
	lives map[Key]*life
	keys  []Key // of lives, sorted
	found []Violation
}

// life is what one generation's processes wrote.
type life struct {
	starts []Record
	lines  map[int32][]Record // by rank
	exits  map[int32]Record
	// last is the latest sign of life of each process.
	last map[process]Record
}

type process struct {
	host string
	pid  int32
}

func (c *checker) enter(r Record) {
	if r.Kind >= State {
		return
	}
	l := c.lives[r.Key()]
	if l == nil {
		l = &life{lines: map[int32][]Record{}, exits: map[int32]Record{}, last: map[process]Record{}}
		c.lives[r.Key()] = l
	}
	switch r.Kind {
	case Start:
		l.starts = append(l.starts, r)
	case Line:
		l.lines[r.Rank] = append(l.lines[r.Rank], r)
	case Exit:
		l.exits[r.Rank] = r
	}
	p := process{r.Host, r.PID}
	if r.Boot > l.last[p].Boot {
		l.last[p] = r
	}
}

// first is the first start of a generation, and whether there was any.
func (l *life) first() (Record, bool) {
	if len(l.starts) == 0 {
		return Record{}, false
	}
	return slices.MinFunc(l.starts, func(a, b Record) int { return cmp.Compare(a.Boot, b.Boot) }), true
}

// latest is the last sign of life of a generation.
func (l *life) latest() (last Record) {
	for _, r := range l.last {
		if r.Boot > last.Boot {
			last = r
		}
	}
	return last
}

func (c *checker) broken(property string, at int64, format string, args ...any) {
	c.found = append(c.found, Violation{property, at, fmt.Sprintf(format, args...)})
}

// calm is the moment at which d has passed since t in which nothing was broken.
func (c *checker) calm(t int64, d time.Duration) int64 {
	faults := slices.SortedStableFunc(slices.Values(c.Faults), func(a, b Fault) int { return cmp.Compare(a.From, b.From) })
	left := int64(d)
	for _, f := range faults {
		if t+left <= f.From {
			break
		}
		until := int64(math.MaxInt64)
		if f.To != 0 {
			until = f.To + int64(c.Settle)
		}
		if until <= t {
			continue
		}
		left -= max(0, f.From-t)
		if until == math.MaxInt64 {
			return until
		}
		t = until
	}
	return t + left
}

func span(ns int64) time.Duration { return time.Duration(ns).Round(time.Millisecond) }
