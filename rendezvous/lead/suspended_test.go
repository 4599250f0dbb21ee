package lead

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// What a signal has stopped is told, by the next leader too, until it is woken.
func TestSuspendedIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		r := w.ready()
		if err := r.leader.Launch(t.Context(), spec("jjjj", 2, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		signalled := func(now bool) {
			n := w.nodes[1]
			n.mu.Lock()
			defer n.mu.Unlock()
			for k, tr := range n.ledger {
				ev := launcher.Event{Key: k, Kind: launcher.Suspended}
				if tr.Suspended = now; now {
					ev.Text = "stopped by a signal"
				}
				n.emit(ev)
			}
		}
		told := func(want ...string) {
			t.Helper()
			time.Sleep(time.Second)
			if got := w.reign.leader.Jobs()[0].Suspended; !slices.Equal(got, want) {
				t.Errorf("suspended on %v, want %v", got, want)
			}
		}
		told()
		signalled(true)
		told("spark2")
		w.reign.kill()
		w.crown(0)
		told("spark2")
		signalled(false)
		told()
		if err := w.reign.leader.Stop(t.Context(), "jjjj", time.Second, "stopped by root"); err != nil {
			t.Fatal(err)
		}
		w.settle()
	})
}
