package agent

import "testing"

// One user's disks that hang cost the agent a bounded number of threads, and nobody else a launch.
func TestLooksOfOneUserAreBounded(t *testing.T) {
	n := newNode(t)
	var done []func()
	for range maxLooks {
		f, err := n.a.looks("eve", maxLooks)
		must(t, err)
		done = append(done, f)
	}
	if _, err := n.a.looks("eve", maxLooks); err == nil {
		t.Error("one more is allowed")
	}
	f, err := n.a.looks("ada", maxLooks)
	must(t, err)
	f()
	done[0]()
	f, err = n.a.looks("eve", maxLooks)
	must(t, err)
	f()
	for _, f := range done[1:] {
		f()
	}
	if len(n.a.looking) > 0 {
		t.Errorf("left: %v", n.a.looking)
	}
}
