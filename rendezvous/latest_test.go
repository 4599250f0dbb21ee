package rendezvous

import "testing"

func TestLatest(t *testing.T) {
	var l Latest[int]
	first, changed := l.Watch()
	if _, again := l.Watch(); first != 0 || again != changed {
		t.Fatalf("%d at first; two who wait do so for the same change: %v", first, again == changed)
	}
	select {
	case <-changed:
		t.Fatal("nothing has changed")
	default:
	}
	l.Store(1)
	l.Store(2)
	<-changed
	if now, next := l.Watch(); now != 2 || l.Load() != 2 || next == changed {
		t.Errorf("%d, and the next change is another: %v", now, next != changed)
	}
}
