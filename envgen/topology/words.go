package topology

import "github.com/sparkrun/sparkrun/envgen"

// LinkWords describe a link in a few words, as in the drawings.
type LinkWords struct {
	Letter  string // of the link in Map: a, b, ...
	Kind    string // cable, switch, LAN switch, cable by address
	Speed   string // 200 Gb/s, or dead
	Ends    string // spark1 port 0 - spark2 port 0
	Subnets []string
}

// Words describes a topology's links in their order.
func Words(t envgen.Topology) []LinkWords {
	var words []LinkWords
	for i, l := range t.Links {
		words = append(words, LinkWords{
			Letter: linkLabel(i), Kind: linkKind(l), Speed: speedWords(l), Ends: linkEnds(t, l), Subnets: linkSubnets(t, i),
		})
	}
	return words
}

// PortName names a node's port as in the drawings: by its number, or by its slot where that is
// clearer.
func PortName(n envgen.TopologyNode, p envgen.PortState) string { return portName(n, p) }
