package node

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
)

// state is a path in a host's folder STATE.
func (h *host) state(name string) string { return filepath.Join(h.cfg.Paths.State, name) }

// heardFile is whom a host has heard since it was switched on: a reboot removes it.
func (h *host) heardFile() string { return filepath.Join(h.cfg.Paths.Run, "met.json") }

// kept is what failover.json tells of, as far as tests look at it.
type kept struct {
	Epoch   uint64                     `json:"epoch"`
	EpochBy launcher.NodeID            `json:"epoch_by"`
	Life    uint64                     `json:"life"`
	Lives   map[launcher.NodeID]uint64 `json:"lives"`
}

func (h *host) kept() (k kept) {
	h.t.Helper()
	b, err := os.ReadFile(h.state("failover.json"))
	if err == nil {
		err = json.Unmarshal(b, &k)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return k
}

// enters leaves what an agent has written that dies on its way to another epoch. The host is down.
func (h *host) enters(e launcher.Epoch, pending string, dead ...launcher.NodeID) {
	h.t.Helper()
	path, all := h.state("failover.json"), map[string]any{}
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &all)
	}
	all["epoch"], all["epoch_by"], all["pending"], all["dead"] = e.N, e.By, pending, dead
	if err == nil {
		b, err = json.Marshal(all)
	}
	if err == nil {
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// copyAll copies a folder into another, which may be there.
func copyAll(t testing.TB, to, from string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", "-T", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
