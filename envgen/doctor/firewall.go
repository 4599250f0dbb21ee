package doctor

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// parseNft reads `nft -j list ruleset` (libnftables-json(5)): which input chains refuse what no rule accepts, and
// which of our ports a rule accepts. Rules of iptables-nft that nft cannot express are opaque ("xt"), so that a
// missing accept is no proof.
func parseNft(data []byte, ports []int) (Firewall, error) {
	var set struct {
		Nftables []struct {
			Chain *struct{ Family, Table, Name, Hook, Policy string }
			Rule  *struct {
				Family, Table, Chain string
				Expr                 []json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return Firewall{}, err
	}
	var f Firewall
	for _, o := range set.Nftables {
		if c := o.Chain; c != nil && c.Hook == "input" && c.Policy == "drop" && c.Family != "arp" && c.Family != "netdev" {
			f.Drops = append(f.Drops, fmt.Sprintf("nft chain %s %s %s has policy drop", c.Family, c.Table, c.Name))
		}
		if r := o.Rule; r != nil &&
			slices.ContainsFunc(r.Expr, func(e json.RawMessage) bool { return strings.HasPrefix(string(e), `{"accept"`) }) {
			f.accept(nftPorts(r.Expr, ports))
		}
	}
	return f, nil
}

// nftPorts are those of our ports that a rule matches as a destination: a number, a range or a set of them.
func nftPorts(exprs []json.RawMessage, ports []int) []int {
	var out []int
	for _, e := range exprs {
		var m struct {
			Match *struct {
				Left struct {
					Payload *struct{ Field string }
				}
				Right json.RawMessage
			}
		}
		if json.Unmarshal(e, &m) != nil || m.Match == nil || m.Match.Left.Payload == nil ||
			m.Match.Left.Payload.Field != "dport" {
			continue
		}
		for _, p := range ports {
			if nftHas(m.Match.Right, p, 0) {
				out = append(out, p)
			}
		}
	}
	return out
}

func nftHas(right json.RawMessage, port, depth int) bool {
	var n int
	if json.Unmarshal(right, &n) == nil {
		return n == port
	}
	var o struct {
		Range []int
		Set   []json.RawMessage
	}
	if depth > 2 || json.Unmarshal(right, &o) != nil {
		return false
	}
	if len(o.Range) == 2 {
		return o.Range[0] <= port && port <= o.Range[1]
	}
	return slices.ContainsFunc(o.Set, func(e json.RawMessage) bool { return nftHas(e, port, depth+1) })
}

// parseIptables reads `iptables -S`: policies and rules as they would be typed.
func parseIptables(text string, ports []int) Firewall {
	var f Firewall
	for l := range strings.Lines(text) {
		words := strings.Fields(l)
		switch {
		case len(words) == 3 && words[0] == "-P" && words[1] == "INPUT" && words[2] != "ACCEPT":
			f.Drops = append(f.Drops, "iptables chain INPUT has policy "+words[2])
		case len(words) > 2 && words[0] == "-A" && slices.Contains(words, "ACCEPT"):
			for i, w := range words[:len(words)-1] {
				if w == "--dport" || w == "--dports" {
					f.accept(slices.DeleteFunc(slices.Clone(ports), func(p int) bool { return !inPorts(words[i+1], p) }))
				}
			}
		}
	}
	return f
}

// inPorts reads iptables' lists: 7940:7941,22.
func inPorts(list string, port int) bool {
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, ":")
		if !isRange {
			to = from
		}
		low, errLow := strconv.Atoi(from)
		high, errHigh := strconv.Atoi(to)
		if errLow == nil && errHigh == nil && low <= port && port <= high {
			return true
		}
	}
	return false
}

func (f *Firewall) accept(ports []int) {
	for _, p := range ports {
		if !slices.Contains(f.Accepts, p) {
			f.Accepts = append(f.Accepts, p)
		}
	}
	slices.Sort(f.Accepts)
}
