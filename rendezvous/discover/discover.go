// Package discover announces by mDNS (RFC 6762, 6763) that a member of a cluster is here,
// and listens to what others say about themselves: members of clusters, and hosts with an
// SSH server.
//
// It decides what is announced and how often, which packets count, and how much of what
// anybody sends is kept. What it hears is a list of addresses to try and text to show. It
// must not trust any of it, must not connect to what it finds, must not send anything
// secret, and must not use an interface that it was not given.
package discover

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// Services to browse for.
const (
	Members = "_sparkrun._tcp" // members of clusters
	SSH     = "_ssh._tcp"      // hosts with an SSH server, if they say so
)

// Link is one interface, and the address of this host there.
type Link struct {
	Name  string
	Index int        // the kernel's
	Addr  netip.Addr // decides between IPv4 and IPv6
}

// ErrNoMulticast: the interface carries no multicast, such as loopback or a VPN.
var ErrNoMulticast = errors.New("the interface carries no multicast")

// LinkOf is the interface of that name, with one of its addresses.
func LinkOf(name string, addr netip.Addr) (Link, error) {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return Link{}, fmt.Errorf("look at interface %s: %w", name, err)
	}
	if ifi.Flags&net.FlagMulticast == 0 {
		return Link{}, fmt.Errorf("look at interface %s: %w", name, ErrNoMulticast)
	}
	return Link{Name: name, Index: ifi.Index, Addr: addr}, nil
}

// maxLinks bounds the interfaces that Links gives: a machine with containers has many.
const maxLinks = 16

// Links are this host's interfaces that are up, carry multicast and have an address that
// is not link-local: IPv4 if there is one, else IPv6.
func Links() ([]Link, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var out []Link
	for _, ifi := range all {
		const wanted = net.FlagUp | net.FlagRunning | net.FlagMulticast
		if ifi.Flags&wanted != wanted || ifi.Flags&(net.FlagLoopback|net.FlagPointToPoint) != 0 {
			continue
		}
		addrs, err := ifi.Addrs()
		if err != nil {
			continue // the interface has just gone
		}
		if a, ok := bestOf(addrs); ok && len(out) < maxLinks {
			out = append(out, Link{Name: ifi.Name, Index: ifi.Index, Addr: a})
		}
	}
	return out, nil
}

func bestOf(addrs []net.Addr) (best netip.Addr, ok bool) {
	for _, text := range addrs {
		p, err := netip.ParsePrefix(text.String())
		if err != nil {
			continue
		}
		switch a := p.Addr().Unmap(); {
		case a.Is4():
			return a, true
		case a.IsGlobalUnicast() && !ok:
			best, ok = a, true
		}
	}
	return best, ok
}

// Member is what a member of a cluster says about itself.
type Member struct {
	Cluster string         // its id
	CA      string         // the pin of its CA, as in a token
	Host    string         // the member's name
	Node    string         // its id
	Addr    netip.AddrPort // management address and port
}

// The forms of what is announced; rendezvous/trust gives them.
var (
	uuidForm = plain.Pattern(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	pinForm  = plain.Pattern(`^[A-Za-z0-9_-]{43}$`)
	hostForm = plain.Pattern(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$`)
)

// keys of the TXT record. A reader takes version 1 and skips keys that it does not know.
const (
	keyVersion, version = "v", "1"
	keyCluster          = "cluster"
	keyCA               = "ca"
	keyHost             = "host"
)

func (m Member) check() error {
	switch {
	case !uuidForm().MatchString(m.Cluster):
		return fmt.Errorf("cluster %q is no id", m.Cluster)
	case !pinForm().MatchString(m.CA):
		return fmt.Errorf("CA %q is no fingerprint", m.CA)
	case !hostForm().MatchString(m.Host):
		return fmt.Errorf("host name %q: want 1 to 64 of letters, digits and . _ @ -", m.Host)
	case !usable(m.Addr.Addr()) || m.Addr.Port() == 0:
		return fmt.Errorf("address %s cannot be reached by others", m.Addr)
	}
	return nil
}

// usable tells whether an address can belong to another host.
func usable(a netip.Addr) bool {
	return a.IsValid() && (a.IsGlobalUnicast() || a.IsLinkLocalUnicast())
}

// Cluster is a cluster that announces itself. Another one may announce the same ID, and
// even the same CA, but it cannot prove that.
type Cluster struct {
	ID      string
	CA      string
	Members []Found // by host name, then address
}

// Found is a member of a cluster, according to itself.
type Found struct {
	Host string
	Addr netip.AddrPort
}

// Clusters makes clusters from what Browse(Members) found; what does not have the form of an announcement is left
// out.
func Clusters(in []Instance) []Cluster {
	var out []Cluster
	for _, i := range in {
		m, ok := i.member()
		if !ok {
			continue
		}
		at := slices.IndexFunc(out, func(c Cluster) bool { return c.ID == m.Cluster && c.CA == m.CA })
		if at < 0 {
			at = len(out)
			out = append(out, Cluster{ID: m.Cluster, CA: m.CA})
		}
		if f := (Found{m.Host, m.Addr}); !slices.Contains(out[at].Members, f) {
			out[at].Members = append(out[at].Members, f)
		}
	}
	for _, c := range out {
		slices.SortStableFunc(c.Members,
			func(a, b Found) int { return cmp.Or(strings.Compare(a.Host, b.Host), a.Addr.Compare(b.Addr)) })
	}
	slices.SortStableFunc(out,
		func(a, b Cluster) int { return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.CA, b.CA)) })
	return out
}

// member reads an announcement.
func (i Instance) member() (Member, bool) {
	text := map[string]string{}
	for _, t := range i.text {
		k, v, _ := strings.Cut(t, "=")
		if _, twice := text[k]; !twice { // RFC 6763, 6.4: the first counts
			text[k] = v
		}
	}
	m := Member{Cluster: text[keyCluster], CA: text[keyCA], Host: text[keyHost], Addr: i.Addr}
	return m, text[keyVersion] == version && m.check() == nil
}

// printable makes a name from an unauthenticated sender safe for display: at most 64 characters, and ? for anything
// but letters, digits and . _ @ -.
func printable(name string) string {
	name = name[:min(len(name), 64)]
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("._@-", r):
			return r
		}
		return '?'
	}, name)
}
