package node

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// What is in use is not removed; what is being pulled is given up. Only root removes.
func TestModelRemove(t *testing.T) {
	t.Parallel()
	c, s := withHub(t, 2)
	p := c.hosts[0].pull(pullOf(tiny))
	p.whole(t, c.hosts...)
	cache, err := modelcache.Open(modelcache.Config{Dir: c.hosts[1].cfg.Paths.models()})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	lease, err := cache.Hold(modelcache.Repo{Type: modelcache.Model, Name: tiny})
	if err != nil {
		t.Fatal(err)
	}
	req := wire.ModelRemoveRequest{ModelRequest: wire.ModelRequest{ModelRepo: wire.ModelRepo{Name: tiny}}}
	ada := wire.Caller{User: &wire.User{Name: "ada", UID: 1000}}
	if _, err := wire.ModelRemove.Call(t.Context(), c.hosts[0].now().server.As(ada), req); !errors.Is(err, wire.ErrDenied) {
		t.Errorf("ada removes: %v", err)
	}
	remove := func() map[string]wire.NodeModelRemoved {
		t.Helper()
		res, err := wire.ModelRemove.Call(t.Context(), c.hosts[0].now().server.As(asRoot), req)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]wire.NodeModelRemoved{}
		for _, n := range res.Nodes {
			out[n.Host] = n
		}
		return out
	}
	got := remove()
	if !strings.Contains(got["spark2"].Error, "in use") || got["spark1"].Error != "" ||
		got["spark1"].Bytes < int64(len(weights)) {
		t.Errorf("spark2 uses it: %+v", got)
	}
	lease.Drop()
	reader := exec.CommandContext(t.Context(), "cat", p.of("spark2").Dir+"/config.json", "-") // until its input ends
	input, err := reader.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	if got := remove(); !strings.Contains(got["spark2"].Error, fmt.Sprintf("process %d, cat", reader.Process.Pid)) {
		t.Errorf("a process reads spark2's: %+v", got)
	}
	if err := errors.Join(input.Close(), reader.Wait()); err != nil {
		t.Fatal(err)
	}
	if got := remove(); got["spark2"].Error != "" {
		t.Errorf("spark2: %+v", got["spark2"])
	}
	if _, err := wire.ModelRemove.Call(t.Context(), c.hosts[0].now().server.As(asRoot), req); !errors.Is(err, wire.ErrNoModel) {
		t.Errorf("once more: %v", err)
	}

	s.Rate = 1 << 20
	p = c.hosts[0].pull(pullOf(tiny))
	c.hosts[0].eventually("it is under way", func() bool { return p.of("spark1").State == wire.ModelFetches && p.of("spark1").Have > 0 })
	for host, n := range remove() {
		if n.Error != "" {
			t.Errorf("%s: %+v", host, n)
		}
	}
	<-p.over
	if st := p.of("spark1"); st.State != wire.ModelFailed || !strings.Contains(st.Error, "given up") {
		t.Errorf("the pull: %+v, %v", st, p.err)
	}
}
