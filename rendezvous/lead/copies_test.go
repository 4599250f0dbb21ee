package lead

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// A job whose plan no second machine has starts all the same and without delay;
// who waits for it to run hears of it before.
func TestOneCopyIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.each(exitAfter(5*time.Second, 0))
		began := time.Now()
		var asked []time.Duration
		w.others = fakeOthers{only: func(context.Context) string {
			asked = append(asked, time.Since(began))
			time.Sleep(300 * time.Millisecond)
			return "spark1"
		}}
		w.ready()
		began = time.Now()
		events, err := w.client(t.Context(), spec("jjjj", 2, 1))
		if err != nil {
			t.Fatal(err)
		}
		var alone, running, started time.Duration
		for i, p := range events {
			switch p.Step {
			case rendezvous.StepAlone:
				alone = time.Duration(i)
				if p.OnlyOn != "spark1" {
					t.Errorf("the host is %q", p.OnlyOn)
				}
			case rendezvous.StepRunning:
				running, started = time.Duration(i), p.Time.Sub(began)
			}
		}
		if alone == 0 || running < alone {
			t.Errorf("want alone before running: %s", steps(events))
		}
		if started >= 300*time.Millisecond {
			t.Errorf("the start waited for the copy: %s", started)
		}
		if last := events[len(events)-1]; last.Step != rendezvous.StepEnded || last.OnlyOn != "spark1" {
			t.Errorf("the end is told as %+v", last)
		}
		if len(asked) != 2 {
			t.Errorf("asked after %v, want once for the plan and once for the end", asked)
		}
		w.settle()
	})
}
