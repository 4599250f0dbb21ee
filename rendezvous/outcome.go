package rendezvous

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
)

// End is how a job ended.
type End string

const (
	Completed End = "completed" // every rank exited 0
	Failed    End = "failed"    // a rank failed, or a node was lost
	Stopped   End = "stopped"   // somebody asked
	Rejected  End = "rejected"  // a node cannot prepare: no rank was started
)

// Outcome is recorded once and never changes.
type Outcome struct {
	End      End                 `json:"end"`
	Started  *time.Time          `json:"started,omitempty"` // when every rank had been exec'd
	At       time.Time           `json:"at"`
	ExitCode int                 `json:"exit_code"`
	Cause    string              `json:"cause,omitempty"` // one sentence, empty when completed
	Root     *launcher.RankExit  `json:"root,omitempty"`  // the rank that explains a failure
	Exits    []launcher.RankExit `json:"exits,omitempty"` // the first failures, then earlier exits with 0; see MaxExits
	// Lost and AllLost are for services: one of its machines was lost, or all were.
	Lost    bool `json:"lost,omitempty"`
	AllLost bool `json:"all_lost,omitempty"`
	// Moved: the service was ended to go on elsewhere, because one of its machines is drained, or with another image.
	// That is no failure.
	Moved bool `json:"moved,omitempty"`
	// Asleep: the service is on demand and was ended because nobody needs it, or to make room. It comes back with the next
	// request for it, and that is no failure. Gone: each of its ranks is proven gone.
	Asleep bool `json:"asleep,omitempty"`
	Gone   bool `json:"gone,omitempty"`
}

// unseen comes before what tells of machines that were given up while ranks may have run there.
const unseen = "not every rank was seen to end: "

// Doubt adds to the cause why it is not known that every rank has ended: "spark2 has not answered for 10s". What the
// cause says already is not said again.
func (o *Outcome) Doubt(why string) {
	if strings.Contains(o.Cause, why) {
		return
	}
	if o.Doubts() == "" {
		why = unseen + why
	}
	o.Cause = strings.TrimPrefix(o.Cause+"; "+why, "; ")
}

// Doubts is that sentence of the cause; empty: every rank was seen to end, or the cause is about nothing else.
func (o Outcome) Doubts() string {
	_, why, doubts := strings.Cut(o.Cause, unseen)
	if !doubts {
		return ""
	}
	return unseen + why
}

// warns is a line that is a warning, or the source of one below it.
var warns = plain.Pattern(`^\W*[Ww]arning\b|\bWARN(ING)?\b|Warning: |^\s+warnings\.warn\(`)

// LastLine is the last line of the rank that failed first, where the cause is not known. A warning is none.
func (o Outcome) LastLine() string {
	if o.Root == nil || o.Root.Exit.Words != "" {
		return ""
	}
	last := o.Root.Exit.Last
	if last = last[strings.LastIndex(last, "\n")+1:]; warns().MatchString(last) {
		return ""
	}
	return last
}

// ErrTooManyJobs is wrapped by the refusal of a job whose user has too many unfinished ones.
var ErrTooManyJobs = errors.New("too many unfinished jobs")

// MayLaunch refuses another job of a user whose unfinished jobs reach MaxUnfinished in number or MaxUnfinishedBytes
// in text. Root has no such limit.
func MayLaunch(spec launcher.Spec, unfinished []launcher.Spec) error {
	if spec.User == "root" {
		return nil
	}
	jobs, bytes := 0, spec.TextBytes()
	for _, u := range unfinished {
		if u.User == spec.User {
			jobs++
			bytes += u.TextBytes()
		}
	}
	const remedy = "end some with `sparkrun stop`, or wait until they end"
	switch {
	case jobs >= MaxUnfinished:
		return fmt.Errorf("%w: %s has %d, which is the limit: %s", ErrTooManyJobs, spec.User, jobs, remedy)
	case bytes > MaxUnfinishedBytes:
		return fmt.Errorf("%w: the commands and environments of %s's %d jobs and this one would take %d MiB; the limit "+
			"is %d: %s, or put large ones into files",
			ErrTooManyJobs, spec.User, jobs, (bytes+1<<20-1)>>20, MaxUnfinishedBytes>>20, remedy)
	}
	return nil
}
