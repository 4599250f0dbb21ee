package why

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// hostOf finds the member that has an address.
func (e Evidence) hostOf(a netip.Addr) string {
	for _, n := range e.Nodes {
		if n.Addr == a {
			return n.Host
		}
		for _, nic := range n.Inventory.NICs {
			if slices.ContainsFunc(nic.Addresses, func(p netip.Prefix) bool { return p.Addr() == a }) {
				return n.Host
			}
		}
	}
	return ""
}

// way is what connections between two machines show together.
type way struct {
	from, to    string
	sent, again uint32
	total, lost uint32 // since they were made
	tries       uint8
	narrow      int
	queued      uint32
	rtt, least  time.Duration // of the best of them
	bulk        time.Duration // round trip of the best that moves many packets, which are answered at once; 0: none does
	loaded      time.Duration // the same of those in which much waited; 0: in none did
	example     wire.Conn
	rank        int
}

// ways sums up by pairs of machines.
func (e Evidence) ways() []way {
	byPair := map[[2]string]way{}
	for _, l := range e.Looks {
		for _, r := range l.Ranks {
			for _, c := range r.Conns {
				to := e.hostOf(c.Remote.Addr())
				if to == "" || to == l.Host || c.Connects && int(c.Remote.Port()) != r.Port { // silence tells of that
					continue
				}
				w, known := byPair[[2]string{l.Host, to}]
				if !known {
					w = way{from: l.Host, to: to}
				}
				if !known || c.Tries > w.tries || c.Tries == w.tries && c.Again > w.example.Again {
					w.example, w.rank = c, r.Rank
				}
				w.sent, w.again, w.queued, w.tries = w.sent+c.Sent, w.again+c.Again, w.queued+c.Queued, max(w.tries, c.Tries)
				w.narrow = max(w.narrow, c.Narrow)
				w.total, w.lost = w.total+c.Total, w.lost+c.TotalAgain
				w.rtt, w.least = shorter(w.rtt, c.RTT), shorter(w.least, c.MinRTT)
				if c.Sent >= many && (w.bulk == 0 || c.RTT < w.bulk) {
					w.bulk = c.RTT
				}
				if c.Queued >= full && (w.loaded == 0 || c.RTT < w.loaded) {
					w.loaded = c.RTT
				}
				byPair[[2]string{l.Host, to}] = w
			}
		}
	}
	return slices.SortedFunc(maps.Values(byPair), func(a, b way) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to))
	})
}

// shorter is that of two round trips; 0 is none.
func shorter(a, b time.Duration) time.Duration { return min(cmp.Or(a, b), cmp.Or(b, a)) }

// unanswered is how often in a row a segment has been sent again that gets no answer.
const unanswered = 3

// far is from which best round trip a network of one room is slow; crowded, which packets before a slow link make.
// A question each 10 ms has that round trip, as its answer is acknowledged with the next one: so many packets in the
// window are more than such questions of the time of crowded.
const (
	far     = 3 * time.Millisecond
	crowded = 20 * time.Millisecond
	many    = uint32(2 * window / crowded)
	full    = 64 << 10 // bytes that wait: more than an acknowledgement is delayed for
)

// connections are of ranks between machines: those that get no answer, lose packets, or are slow. What several of them
// have in common is told once.
func (e Evidence) connections() (out []wire.WhyFinding) {
	all := e.ways()
	byCode, fine, well := map[string][]way{}, 0, map[string]int{}
	for _, w := range all {
		switch code := w.trouble(beside(all, w)); code {
		case "":
			fine++
			well[w.from]++
			well[w.to]++
		default:
			byCode[code] = append(byCode[code], w)
		}
	}
	for _, code := range slices.Sorted(maps.Keys(byCode)) {
		ways := byCode[code]
		for len(ways) > 0 {
			host := common(ways, well)
			var here, rest []way
			for _, w := range ways {
				if w.from == host || w.to == host {
					here = append(here, w)
				} else {
					rest = append(rest, w)
				}
			}
			out, ways = append(out, e.ofHost(code, host, here, fine)), rest
		}
	}
	return out
}

// beside is the round trip of ways that move as much as one, and do not touch its end that is slow: the median of those
// without the one or without the other of its ends; 0: there are none.
func beside(all []way, of way) (best time.Duration) {
	for _, end := range []string{of.from, of.to} {
		var rtts []float64
		for _, w := range all {
			if w.from != end && w.to != end && w.sent >= of.sent/4 {
				rtts = append(rtts, float64(cmp.Or(w.loaded, w.rtt)))
			}
		}
		if len(rtts) > 0 && (best == 0 || time.Duration(median(rtts)) < best) {
			best = time.Duration(median(rtts))
		}
	}
	return best
}

// trouble is what is wrong with a way, beside the round trip of others; empty: nothing.
func (w way) trouble(others time.Duration) string {
	switch {
	case w.tries >= unanswered:
		return "no-answer"
	case w.again >= 2 && w.again*50 >= w.sent, w.again+uint32(w.tries) >= 1 && w.lost >= 10 && w.lost*50 >= w.total:
		return "loses-packets"
	case w.least >= far:
		return "far"
	case w.rtt >= crowded && w.queued >= full && w.sent > 0, w.bulk >= crowded:
		return "crowded"
	case w.loaded >= far && others > 0 && w.loaded > 20*others:
		return "crowded"
	}
	return ""
}

// common is the machine that is an end of most of the trouble, and then of the fewest ways that are well.
func common(ways []way, well map[string]int) (host string) {
	count := map[string]int{}
	for _, w := range ways {
		weight := 1 + int(w.again) + 10*int(w.tries)
		count[w.from] += weight
		count[w.to] += weight
	}
	for _, h := range slices.Sorted(maps.Keys(count)) {
		if count[h] > count[host] || count[h] == count[host] && well[h] < well[host] {
			host = h
		}
	}
	return host
}

func (e Evidence) ofHost(code, host string, ways []way, fine int) wire.WhyFinding {
	w := ways[0]
	f := wire.WhyFinding{Code: code, Host: host, Remedy: "sparkrun doctor --node " + host}
	if len(ways) == 1 {
		f.Rank = new(w.rank)
	}
	between := "between " + host + " and other machines"
	if len(ways) == 1 {
		between = "from " + w.from + " to " + w.to
	}
	switch code {
	case "no-answer":
		f.Sure, f.Text = 82, "what its ranks send "+between+" gets no answer"
		if !slices.ContainsFunc(ways, func(w way) bool { return w.least != 0 || w.to != host || !e.listens(w) }) {
			f.Text = fmt.Sprintf("%s takes no connection at port %d, where a rank listens, and its agent answers: a packet filter drops "+
				"it, or the network on the way", host, w.example.Remote.Port())
			f.Remedy = "nft list ruleset   # on " + host
		}
		if i := slices.IndexFunc(ways, func(w way) bool { return w.narrow > 0 }); i >= 0 {
			f.Text = fmt.Sprintf("packets of %d bytes are lost %s, and small ones are not: a switch or a cable on the way takes less (MTU)",
				ways[i].narrow, between)
		}
	case "loses-packets":
		sent, again := uint32(0), uint32(0)
		for _, w := range ways {
			sent, again = sent+w.sent, again+w.again
		}
		f.Sure, f.Text = 72, fmt.Sprintf("the network %s loses packets: %.1f %% of them were sent again", between,
			100*float64(again)/
				float64(max(sent, 1)))
	case "far":
		f.Sure, f.Text = 60, "the way "+between+" is slow: at best "+w.least.String()+" there and back"
	case "crowded":
		f.Sure, f.Text = 55, "the way "+between+" is slow or full: "+max(w.rtt, w.bulk, w.loaded).String()+" there and back"
	}
	for _, w := range ways[:min(len(ways), 3)] {
		text := fmt.Sprintf("rank %d, %s to %s (%s): ", w.rank, w.example.Local, w.example.Remote, w.to)
		if w.least == 0 {
			text += fmt.Sprintf("it tries to connect, %d times so far", w.tries)
		} else {
			text += fmt.Sprintf("%d segments sent, %d of them again, the oldest %d times; round trip %s, at best %s; up to %s queued",
				w.sent, w.again, w.tries, max(w.rtt, w.bulk, w.loaded), w.least, launcher.Size(int64(w.queued)))
		}
		f.Evidence = append(f.Evidence, text)
	}
	if fine > 0 {
		f.Evidence = append(f.Evidence, fmt.Sprintf("%d other ways between its machines have no such trouble", fine))
	}
	return f
}

// listens reports whether a rank takes connections where a way ends.
func (e Evidence) listens(w way) bool {
	return slices.ContainsFunc(e.ranks(), func(r wire.RankLook) bool {
		return r.Host == w.to && slices.ContainsFunc(r.Listens, func(at netip.AddrPort) bool {
			return at.Port() == w.example.Remote.Port() && (at.Addr().IsUnspecified() || at.Addr() == w.example.Remote.Addr())
		})
	})
}
