package rendezvous

import (
	"errors"
	"fmt"

	"github.com/sparkrun/sparkrun/launcher"
)

// ErrTooManyJobs is wrapped by the refusal of a job whose user has too many that have not ended.
var ErrTooManyJobs = errors.New("too many unfinished jobs")

// MayLaunch refuses one more job of a user who has MaxUnfinished, or MaxUnfinishedBytes of text in them, that have not
// ended. Root is not bound.
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
	const remedy = "`sparkrun stop` ends some, or wait for their ends"
	switch {
	case jobs >= MaxUnfinished:
		return fmt.Errorf("%w: %s has %d, and nobody may have more: %s", ErrTooManyJobs, spec.User, jobs, remedy)
	case bytes > MaxUnfinishedBytes:
		return fmt.Errorf("%w: commands and environments of %s's %d would take %d MiB with this one's, and nobody's may take more than %d: %s, or put large ones into files",
			ErrTooManyJobs, spec.User, jobs, (bytes+1<<20-1)>>20, MaxUnfinishedBytes>>20, remedy)
	}
	return nil
}
