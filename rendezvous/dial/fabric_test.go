package dial

import (
	"testing"
	"testing/synctest"
	"time"
)

// dialRails opens connections one after the other, as bulk data does.
func (n *fakeNet) dialRails(t *testing.T, count int) (out []route) {
	t.Helper()
	for k := range count {
		c, err := n.r.DialFabric(t.Context(), "b", Bulk, k)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, c.(*conn).route)
	}
	return out
}

// Bulk data uses all rails, and stays there when management, by which calls go, is better.
func TestBulkUsesAllRails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, mgmt, cable1, cable2)
		defer n.stop()
		if got := n.dialRails(t, 4); got[0] != cable1 || got[1] != cable2 || got[2] != cable1 || got[3] != cable2 {
			t.Errorf("dialled %v", got)
		}
		if n.r.redial("b", Calls); n.opened() != "192.168.1.2 192.168.1.2 192.168.2.2 192.168.2.2" {
			t.Errorf("after calls have moved to management, open %q", n.opened())
		}
		time.Sleep(10 * time.Second)
		if len(n.said()) != 0 {
			t.Errorf("told %v: bulk data is on no detour", n.said())
		}
	})
}

// A rail that does not work costs one attempt, and is used again when it works.
func TestBulkLeavesDeadRail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, mgmt, cable1, cable2)
		defer n.stop()
		n.set(cable1, "silent")
		began := time.Now()
		for i, r := range n.dialRails(t, 4) {
			if r != cable2 {
				t.Errorf("connection %d is over %s", i, r)
			}
		}
		if took := time.Since(began); took != connectWithin {
			t.Errorf("it took %s, want one attempt's %s", took, connectWithin)
		}
		n.set(cable1, "")
		n.write()
		time.Sleep(againEvery * againTimes * 3)
		if got := n.dialRails(t, 2); got[0] == got[1] {
			t.Errorf("dialled %v after the rail works again", got)
		}
	})
}

func TestBulkWithoutFabric(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, mgmt, cable1)
		defer n.stop()
		n.set(cable1, "refuses")
		if got := n.dialRails(t, 1); got[0] != mgmt {
			t.Errorf("dialled %v", got)
		}
		n.set(mgmt, "refuses")
		if _, err := n.r.DialFabric(t.Context(), "b", Bulk, 0); err == nil {
			t.Error("a member that is off is reached")
		}
	})
}
