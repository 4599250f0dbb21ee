package fabric

import (
	"testing"
	"testing/synctest"
	"time"
)

// A probe that has just begun hears nobody either: a job launched then must not take its cables for missing.
func TestProbeSilenceNeedsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEther()
		a, b := e.spark(t, "spark1"), e.spark(t, "spark2")
		e.cable("c", a, port0, b, port0)
		e.plug("nobody", a, port1...)
		for range 64 { // 6.4 s
			time.Sleep(100 * time.Millisecond)
			c := a.told()
			if len(c.Sightings) == 0 && len(c.Probed) > 0 {
				t.Fatalf("%v are said to hear nobody while the first frames are under way", c.Probed)
			}
			for _, nic := range c.Probed {
				if nic == port1[0] || nic == port1[1] {
					t.Fatalf("%s is said to hear nobody too soon", nic)
				}
			}
		}
		time.Sleep(time.Second)
		if c := a.told(); len(c.Probed) != 4 {
			t.Errorf("probed %v, want all four: silence says something now", c.Probed)
		}
	})
}
