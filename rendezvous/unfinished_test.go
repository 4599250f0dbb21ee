package rendezvous

import (
	"errors"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
)

// One user's jobs that do not end are bounded, by number and by what each member keeps of them; nobody else is kept
// waiting by that.
func TestUnfinishedJobsOfOneUserAreBounded(t *testing.T) {
	of := func(user string, bytes int) launcher.Spec {
		s := specFor("jjjj", 1)
		s.User, s.Stages = user, []launcher.Stage{{Argv: launcher.Lits(strings.Repeat("x", bytes))}}
		return s
	}
	many := func(n int, s launcher.Spec) (out []launcher.Spec) {
		for range n {
			out = append(out, s)
		}
		return out
	}
	for name, tc := range map[string]struct {
		spec       launcher.Spec
		unfinished []launcher.Spec
		want       string // of the refusal
	}{
		"the last that may":      {of("ann", 10), many(MaxUnfinished-1, of("ann", 10)), ""},
		"one more":               {of("ann", 10), many(MaxUnfinished, of("ann", 10)), "ann has 500"},
		"another's do not count": {of("ben", 10), many(MaxUnfinished, of("ann", 10)), ""},
		"root":                   {of("root", 10), many(MaxUnfinished, of("root", 10)), ""},
		"large ones that may":    {of("ann", 64<<10), many(255, of("ann", 64<<10)), ""},
		"large ones":             {of("ann", 64<<10), many(256, of("ann", 64<<10)), "ann's 256 jobs and this one would take 17 MiB"},
	} {
		err := MayLaunch(tc.spec, tc.unfinished)
		if tc.want == "" && err != nil || tc.want != "" &&
			(!errors.Is(err, ErrTooManyJobs) || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: want %q, got %v", name, tc.want, err)
		}
	}
}
