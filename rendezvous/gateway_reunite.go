package rendezvous

import (
	"maps"
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
)

// Two parts of a cluster that were led apart may both have changed the gateway's settings. This side's stand: whether it
// is open, and what a name means that both sides have. Keys and aliases that only the other side has are added. A key
// that either side has revoked is gone from both, and a new one of its name is another key. An alias that this side has
// removed meanwhile comes back, as it gives nobody a right; so does the CA, without which nobody's words are encrypted.

// keysAPart keeps a part within an entry, though each key has names of 100 models.
const keysAPart = 5

// gatewayParts are the settings for the side with the later epoch.
func (s *state) gatewayParts(from launcher.Epoch, node launcher.NodeID) (parts []Reunited) {
	if len(s.Revoked) > 0 || len(s.Gateway.Aliases) > 0 || s.Gateway.CA != nil {
		parts = append(parts, Reunited{From: from, Node: node, Revoked: s.Revoked, Aliases: s.Gateway.Aliases,
			CA: s.Gateway.CA})
	}
	for names := range slices.Chunk(slices.Sorted(maps.Keys(s.Gateway.Keys)), keysAPart) {
		part := Reunited{From: from, Node: node}
		for _, name := range names {
			part.Keys = append(part.Keys, NamedGatewayKey{Name: name, GatewayKey: s.Gateway.Keys[name]})
		}
		parts = append(parts, part)
	}
	return parts
}

func (u *Reunited) hasGateway() bool {
	return u != nil && (len(u.Keys) > 0 || len(u.Aliases) > 0 || len(u.Revoked) > 0 || u.CA != nil)
}

func (s *state) reuniteGateway(u Reunited) {
	g := s.Gateway
	keyed := len(g.Keys) > 0
	g.Keys, g.Aliases = cloned(g.Keys), cloned(g.Aliases)
	for _, hash := range u.Revoked {
		if !slices.Contains(s.Revoked, hash) {
			s.Revoked = append(slices.Clone(s.Revoked), hash)
		}
	}
	s.Revoked = latest(s.Revoked)
	for _, k := range u.Keys {
		if _, taken := g.Keys[k.Name]; !taken && len(g.Keys) < MaxGatewayKeys {
			g.Keys[k.Name] = k.GatewayKey
		}
	}
	maps.DeleteFunc(g.Keys, func(_ string, k GatewayKey) bool { return slices.Contains(s.Revoked, k.Hash) })
	if keyed && len(g.Keys) == 0 { // nobody has asked for a gateway that is open without any key
		g.Open = false
	}
	for name, model := range u.Aliases {
		if _, taken := g.Aliases[name]; !taken && len(g.Aliases) < MaxGatewayAliases {
			g.Aliases[name] = model
		}
	}
	if g.CA == nil {
		g.CA = u.CA
	}
	s.Gateway = g
}

// revoke remembers that a key was revoked.
func (s *state) revoke(k GatewayKey) { s.Revoked = latest(append(slices.Clone(s.Revoked), k.Hash)) }

func latest(revoked []KeyHash) []KeyHash { return revoked[max(0, len(revoked)-MaxGatewayKeys):] }
