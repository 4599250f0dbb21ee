package rendezvous

import (
	"errors"
	"fmt"

	"github.com/sparkrun/sparkrun/launcher"
)

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
