package node

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// --fabric-port of init is remembered and travels with the inventory; the
// agent's own wins while it runs. A port that is not there is warned of.
func TestFabricPortsAreRemembered(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := &host{t: t, addr: "127.0.250.10", cfg: Config{
		MemoryFloor: new(int64(0)),
		Paths:       Paths{State: dir + "/state", Run: dir + "/run", Sysfs: "/sys", Socket: filepath.Join(dir, "agent.sock")},
		Host:        "spark1", Management: "127.0.250.10", Version: "test", Logger: testLogger(t, "spark1"),
		FabricPorts: []string{"rocep9s9", "9"},
	}}
	t.Cleanup(h.halt)
	f, err := Init(t.Context(), h.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(f.Warnings, func(w string) bool {
		return strings.HasPrefix(w, "--fabric-port rocep9s9 and 9 names no port of spark1") && strings.Contains(w, "there are: ")
	}) {
		t.Errorf("warnings %q", f.Warnings)
	}
	for _, tt := range []struct{ given, want []string }{{nil, h.cfg.FabricPorts}, {[]string{"1"}, []string{"1"}}} {
		h.cfg.FabricPorts = tt.given
		h.start()
		h.wait(1)
		st, err := wire.ShowStatus.Call(t.Context(), h.client(), wire.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if got := st.Nodes[0].Inventory.FabricPorts; !slices.Equal(got, tt.want) {
			t.Errorf("given %q: the cluster knows %q, want %q", tt.given, got, tt.want)
		}
		h.halt()
	}
}
