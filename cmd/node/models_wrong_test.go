package node

import (
	"os"
	"path/filepath"
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

// What a verification has found wrong is brought anew by the next pull, from a machine that has it right.
func TestModelRottenIsBroughtAnew(t *testing.T) {
	t.Parallel()
	c, s := withHub(t, 2)
	first := c.hosts[0].pull(pullOf(tiny))
	first.whole(t, c.hosts...)
	file, err := os.OpenFile(filepath.Join(first.of("spark2").Dir, "model.safetensors"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt([]byte("rotten"), chunkBytes+5); err != nil || file.Close() != nil {
		t.Fatal(err)
	}
	bad := 0
	if err := wire.ModelVerify.Call(t.Context(), c.hosts[0].now().server.As(asRoot),
		wire.ModelRequest{ModelRepo: wire.ModelRepo{Name: tiny}}, func(v wire.ModelVerdict) error {
			bad += len(v.Bad)
			return nil
		}); err != nil || bad != 1 {
		t.Fatalf("%d bad files, %v", bad, err)
	}
	if k := c.hosts[0].models(tiny)["spark2"].Held[0].Commits[0]; k.Whole() {
		t.Errorf("it counts as whole: %+v", k)
	}
	c.hosts[0].pull(pullOf(tiny)).whole(t, c.hosts...)
	if s.Sent() != tinyBytes() {
		t.Errorf("%d bytes from outside, want %d", s.Sent(), tinyBytes())
	}
}
