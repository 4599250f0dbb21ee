package node

import (
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher/filesync/hub/hubtest"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Wrong bytes from outside are found out at the file's end, by all nodes together: none of them fetches it by itself to
// find the same. Nothing of it is kept, and the next pull is right.
func TestModelWrongBytesFromOutside(t *testing.T) {
	t.Parallel()
	c, s := withHub(t, 3)
	s.Fault(hubtest.Fault{Path: "model.safetensors", Times: 1, After: 1 << 20, Flip: true})
	first := c.hosts[1].pull(pullOf(tiny))
	<-first.over
	for _, h := range c.hosts {
		if p := first.of(h.cfg.Host); p.State != wire.ModelFailed || !strings.Contains(p.Error, "sum is not the one expected") {
			t.Errorf("%s: %+v", h.cfg.Host, p)
		}
	}
	if len(first.notes) > 0 {
		t.Errorf("blamed: %q", first.notes)
	}
	if n := s.Sent(); n > tinyBytes() {
		t.Errorf("%d bytes came from outside, of %d", n, tinyBytes())
	}
	c.hosts[1].pull(pullOf(tiny)).whole(t, c.hosts...)
}
