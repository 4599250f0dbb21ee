package rendezvous

import "github.com/sparkrun/sparkrun/launcher"

// Self is what a node is for as long as its agent runs. Nothing of it changes.
type Self struct {
	ID      launcher.NodeID
	Cluster string
	Host    string
	Boot    string // of the machine: another one after each reboot
	RPCPort uint16 // where members listen, all at the same
	Version string // of the program
	// Protocol is what this program speaks: Protocol, but in tests of other builds.
	Protocol int
}
