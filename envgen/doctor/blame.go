package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
)

// packets turns the nodes' reports into findings, worst first within each kind of check. views tell whose a MAC is.
func packets(reports map[string]Report, views []envgen.NodeView) []envgen.Finding {
	var found []envgen.Finding
	var unreached, cut []EchoResult
	hosts := map[string]string{}
	for _, v := range views {
		hosts[v.ID] = v.Host
	}
	for _, id := range slices.Sorted(maps.Keys(reports)) {
		r := reports[id]
		for _, e := range r.Echoes {
			switch {
			case !e.Small && !permitted(e):
			case !e.Small:
				unreached = append(unreached, e)
			case !e.Large:
				cut = append(cut, e)
			}
		}
		for _, c := range r.Claims {
			found = append(found, taken(c, views)...)
		}
		if len(r.Trouble) > 0 {
			found = append(found, envgen.Finding{Code: codeUntried, Severity: envgen.SeverityInfo, Node: id, Host: hosts[id],
				Text:     hosts[id] + " could not try everything: what it did not send, nobody knows about",
				Evidence: strings.Join(r.Trouble, "; "), Remedy: "sudo systemctl restart sparkrun"})
		}
	}
	for _, g := range blame(unreached) {
		found = append(found, unreachable(g))
	}
	for _, g := range blame(cut) {
		found = append(found, pathMTU(g))
	}
	return append(found, ports(reports)...)
}

// permitted is false where the node had no right to send: another finding says so.
func permitted(e EchoResult) bool {
	return !strings.Contains(e.Why, "not permitted") && !strings.Contains(e.Why, "permission denied")
}

// group are failures that one end explains.
type group struct {
	at      End
	results []EchoResult
}

type endKey struct{ node, nic string }

func (e End) key() endKey { return endKey{e.Node, e.NIC} }

// blame finds the ends that explain all failures, the one with most of them first. Between two ends alone it
// chooses the one with the smaller MTU, or else the lower host; the text names both.
func blame(failed []EchoResult) []group {
	var out []group
	for len(failed) > 0 {
		count := map[endKey]int{}
		ends := map[endKey]End{}
		for _, f := range failed {
			for _, e := range []End{f.From, f.To} {
				count[e.key()]++
				ends[e.key()] = e
			}
		}
		worst := slices.MinFunc(slices.Collect(maps.Values(ends)), func(a, b End) int {
			return cmp.Or(cmp.Compare(count[b.key()], count[a.key()]), cmp.Compare(a.MTU, b.MTU),
				cmp.Compare(a.Host, b.Host), cmp.Compare(a.NIC, b.NIC))
		})
		g := group{at: worst}
		failed = slices.DeleteFunc(failed, func(f EchoResult) bool {
			if f.From.key() != worst.key() && f.To.key() != worst.key() {
				return false
			}
			g.results = append(g.results, f)
			return true
		})
		out = append(out, g)
	}
	return out
}

// others names the far ends, each once.
func (g group) others() string {
	var words []string
	for _, r := range g.results {
		far := r.To
		if far.key() == g.at.key() {
			far = r.From
		}
		if w := fmt.Sprintf("%s of %s", far.NIC, far.Host); !slices.Contains(words, w) {
			words = append(words, w)
		}
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

// evidence says what was sent, in up to six lines.
func (g group) evidence(size func(EchoResult) int) string {
	var words []string
	for _, r := range g.results {
		w := fmt.Sprintf("%s %s -> %s %s: %d bytes lost", r.From.Host, r.From.Addr, r.To.Host, r.To.Addr, size(r))
		if r.Why != "" {
			w += " (" + r.Why + ")"
		}
		words = append(words, w)
	}
	slices.Sort(words)
	if len(words) > 6 {
		words = append(words[:6], fmt.Sprintf("and %d more", len(words)-6))
	}
	return strings.Join(words, "; ")
}

// far is an address beyond the blamed end, to be pinged as the remedy says.
func (g group) far() netip.Addr {
	if r := g.results[0]; r.To.key() != g.at.key() {
		return r.To.Addr
	}
	return g.results[0].From.Addr
}

func unreachable(g group) envgen.Finding {
	return envgen.Finding{
		Code: codePeerUnreachable, Severity: envgen.SeverityError, Node: g.at.Node, Host: g.at.Host, Port: g.at.Port,
		Device: g.at.NIC,
		Text: fmt.Sprintf("no ping passes between %s of %s and %s, though they are cabled and in one subnet: a "+
			"firewall, a wrong route, or an address that somebody else has", g.at.NIC, g.at.Host, g.others()),
		Evidence: g.evidence(func(EchoResult) int { return smallEcho }),
		Remedy:   fmt.Sprintf("ping -c 3 -I %s %s", g.at.NIC, g.far()),
	}
}

func pathMTU(g group) envgen.Finding {
	most := 0
	for _, r := range g.results {
		most = max(most, r.From.MTU, r.To.MTU)
	}
	f := envgen.Finding{
		Code: codePathMTU, Severity: envgen.SeverityError, Node: g.at.Node, Host: g.at.Host, Port: g.at.Port,
		Device: g.at.NIC,
		Text: fmt.Sprintf("packets of %d bytes are lost between %s of %s and %s, and small ones are not: a switch "+
			"or cable on the way takes less, and jobs hang in their first large message",
			most, g.at.NIC, g.at.Host, g.others()),
		Evidence: g.evidence(func(r EchoResult) int { return r.From.MTU }),
		Remedy:   fmt.Sprintf("ping -M do -s %d -c 3 -I %s %s", most-ipHeader-icmpHeader, g.at.NIC, g.far()),
	}
	if g.at.MTU < most {
		// TCP and RoCE use the smaller MTU by themselves; only packets above it are
		// lost.
		f.Severity = envgen.SeverityWarning
		f.Text = fmt.Sprintf("packets of %d bytes are lost between %s of %s, whose MTU is %d, and %s", most, g.at.NIC,
			g.at.Host, g.at.MTU, g.others())
		f.Remedy = fmt.Sprintf("sudo ip link set dev %s mtu %d", g.at.NIC, most)
	}
	return f
}

// taken evaluates the answers about an address. If they come from a member whose inventory has it,
// the topology has a finding already.
func taken(c ClaimResult, views []envgen.NodeView) []envgen.Finding {
	var others []string
	for _, mac := range c.Holders {
		who := mac
		if v, ok := memberOf(mac, views); ok {
			if _, has := v.Inventory.Holder(c.End.Addr); has {
				continue
			}
			who = fmt.Sprintf("%s, which is %s's", mac, v.Host)
		}
		others = append(others, who)
	}
	if len(others) == 0 {
		return nil
	}
	return []envgen.Finding{{
		Code: codeAddressTaken, Severity: envgen.SeverityError, Node: c.End.Node, Host: c.End.Host, Port: c.End.Port,
		Device:   c.End.NIC,
		Text:     fmt.Sprintf("another machine has %s's address %s as well: packets go to either", c.End.Host, c.End.Addr),
		Evidence: fmt.Sprintf("asked by ARP on %s, %s answered", c.End.NIC, strings.Join(others, ", ")),
		Remedy:   fmt.Sprintf("sudo arping -D -c 3 -I %s %s", c.End.NIC, c.End.Addr),
	}}
}

func memberOf(mac string, views []envgen.NodeView) (envgen.NodeView, bool) {
	for _, v := range views {
		if slices.ContainsFunc(v.Inventory.NICs, func(n envgen.NIC) bool { return strings.EqualFold(n.MAC, mac) }) {
			return v, true
		}
	}
	return envgen.NodeView{}, false
}

// ports makes one finding of all failed connections to one listener.
func ports(reports map[string]Report) []envgen.Finding {
	type listener struct {
		node string
		addr netip.AddrPort
	}
	failed := map[listener][]DialResult{}
	from := map[listener][]string{}
	for _, id := range slices.Sorted(maps.Keys(reports)) {
		for _, d := range reports[id].Dials {
			if l := (listener{d.To.Node, d.Addr}); !d.OK {
				failed[l] = append(failed[l], d)
				from[l] = append(from[l], id)
			}
		}
	}
	keys := slices.SortedStableFunc(maps.Keys(failed),
		func(a, b listener) int { return cmp.Or(cmp.Compare(a.node, b.node), a.addr.Compare(b.addr)) })
	var found []envgen.Finding
	for _, l := range keys {
		d := failed[l][0]
		text := fmt.Sprintf("%s cannot be reached for %s at %s by %d of %d nodes", d.To.Host, d.What, d.Addr,
			len(failed[l]), len(reports)-1)
		found = append(found, envgen.Finding{
			Code: codePortUnreachable, Severity: envgen.SeverityError, Node: d.To.Node, Host: d.To.Host,
			Device: d.To.NIC, Text: text,
			Evidence: fmt.Sprintf("%s; asked from %s", d.Why, strings.Join(from[l], ", ")),
			Remedy:   fmt.Sprintf("sudo ufw allow %d/tcp", d.Addr.Port()),
		})
	}
	return found
}
