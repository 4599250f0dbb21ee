package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

// How far a step is makes it no other step; once all ranks have begun, or the attempt has ended, nothing is told.
func TestDoing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, other := launcher.Key{Job: "aaaa", Generation: 1}, launcher.Key{Job: "bbbb", Generation: 1}
		a := &Agent{attempts: map[launcher.Key]*attempt{}}
		for _, k := range []launcher.Key{k, other} {
			a.attempts[k] = newAttempt(a, k, nil)
		}
		began := time.Now()
		a.does(k, "pulls llm:7", false)
		time.Sleep(time.Second)
		a.does(k, "pulls llm:7: 3 GiB of 20 GiB", false)
		a.does(launcher.Key{Job: "gone"}, "x", false)
		moved := time.Now()
		time.Sleep(time.Second)
		a.does(k, "pulls llm:7: 3 GiB of 20 GiB", false) // the same again
		want := []Doing{{Key: k, Text: "pulls llm:7: 3 GiB of 20 GiB", Since: began, Moved: moved}}
		if d := cmp.Diff(want, a.Doing("")); d != "" {
			t.Error(d)
		}
		a.does(k, "looks", true)
		if got := a.Doing("aaaa"); len(got) != 1 || !got[0].Brief || !got[0].Since.Equal(time.Now()) {
			t.Errorf("the next step: %+v", got)
		}
		if got := a.Doing("bbbb"); got != nil {
			t.Errorf("another job: %+v", got)
		}
		a.attempts[k].entry.Phase = launcher.PhaseEnded
		if got := a.Doing(""); got != nil {
			t.Errorf("after its end: %+v", got)
		}
	})
}
