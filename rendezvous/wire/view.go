package wire

import "github.com/sparkrun/sparkrun/launcher"

// Evidence is one file of a report: what a node read and knows, without secrets. Host is
// empty if it is about the whole cluster.
type Evidence struct {
	Node launcher.NodeID `json:"node,omitempty"`
	Host string          `json:"host,omitempty"`
	// Path is relative to the node's part, with slashes.
	Path string `json:"path,omitempty"`
	Data []byte `json:"data,omitempty"`
	// Missing says, in place of a file, why a node gave nothing or not all.
	Missing string `json:"missing,omitempty"`
}
