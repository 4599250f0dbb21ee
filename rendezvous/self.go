package rendezvous

import "github.com/sparkrun/sparkrun/launcher"

// Self identifies a node. Nothing in it changes while its agent runs.
type Self struct {
	ID      launcher.NodeID
	Cluster string
	Host    string
	Boot    string // of the machine: changes with each reboot
	RPCPort uint16 // where members listen: the same on all
	Version string // of the program
	// Protocol is what this program speaks: the constant Protocol, except in tests of
	// other builds.
	Protocol int
}
