package node

import (
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/fabric"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
)

// newProbe makes the cable probe, which signs with the cluster's gossip keys:
// whoever has them is a member.
func (n *node) newProbe() (*fabric.Probe, error) {
	return fabric.NewProbe(fabric.ProbeConfig{
		Cluster: n.m.Cluster, Node: string(n.m.Node), Host: n.m.Host, Boot: n.boot, Log: n.log,
		Keys: func() ([][]byte, error) {
			ring, err := trust.LoadGossipKeys(n.cfg.Paths.trust())
			return ring.Keys(), err
		},
	})
}

// surveyed takes what the hardware is now. A link that is gone takes what was
// heard over it along at once; the probe itself follows.
func (n *node) surveyed(inv envgen.Inventory) {
	inv.FabricPorts = n.cfg.FabricPorts
	n.warnOfPorts(inv)
	n.probe.Follow(inv)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.recable(inv)
}

// recable makes the inventory of the hardware and of what the probe heard last.
// n.mu is held.
func (n *node) recable(inv envgen.Inventory) {
	if n.heard != nil {
		c := *n.heard
		c.Pulled = inv.PulledSince(n.inventory.Load().Cabling)
		inv = inv.WithCabling(c)
	}
	n.inventory.Store(inv)
}

// cabled takes what the probe hears now.
func (n *node) cabled(c envgen.Cabling) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heard = &c
	n.recable(n.inventory.Load())
}

// warnOfPorts logs once what --fabric-port names and is not there. Only the
// survey's goroutine calls it.
func (n *node) warnOfPorts(inv envgen.Inventory) {
	warning := inv.UnknownFabricPort()
	if warning != "" && warning != n.warnedOfPorts {
		n.log.Warn("fabric port", "problem", warning)
	}
	n.warnedOfPorts = warning
}
