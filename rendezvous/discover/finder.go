package discover

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// Instance is one server of a service, according to itself.
type Instance struct {
	Host string         // what it calls itself, such as spark1.local; made printable
	Addr netip.AddrPort // link-local ones with their zone
	Link string         // the interface it was heard on
	text []string       // its TXT strings, as they came
}

// Bounds on what one Browse keeps, because anybody may send.
const (
	maxKept    = 1024 // records, of all senders
	maxSaid    = 256  // of one sender
	maxAddrs   = 8    // of one name
	maxStrings = 16   // of one TXT record
	maxText    = 1024 // bytes of it

	maxAsked = 16 // questions for what is missing, in one packet
)

// finder makes instances from the answers on one link. Each sender's records are kept
// separate, so that nobody can complete or change what another has said.
type finder struct {
	link    string
	service string // _ssh._tcp.local.
	kept    int
	says    map[netip.Addr]*said
}

// said is what one sender has said. Names are lower-case.
type said struct {
	kept      int
	instances map[string]bool
	servers   map[string]server
	texts     map[string][]string
	addrs     map[string][]netip.Addr
}

type server struct {
	target string
	port   uint16
}

func newFinder(link, service string) *finder {
	return &finder{link: link, service: service + local, says: map[netip.Addr]*said{}}
}

// take reads a packet.
func (f *finder) take(packet []byte, from netip.AddrPort) {
	var p dnsmessage.Parser
	h, err := p.Start(packet)
	if err != nil || !h.Response || h.OpCode != 0 || h.RCode != 0 || from.Port() != port || p.SkipAllQuestions() != nil {
		return
	}
	s := f.says[from.Addr()]
	if s == nil {
		s = &said{instances: map[string]bool{}, servers: map[string]server{}, texts: map[string][]string{},
			addrs: map[string][]netip.Addr{}}
	}
	before := f.kept
	each(&p, func(h dnsmessage.ResourceHeader, body any) { f.note(s, h, body) })
	if f.kept > before {
		f.says[from.Addr()] = s
	}
}

func (f *finder) note(s *said, h dnsmessage.ResourceHeader, body any) {
	name := lower(h.Name.String())
	switch r := body.(type) {
	case dnsmessage.PTRResource:
		inst := lower(r.PTR.String())
		switch {
		case name != f.service || !strings.HasSuffix(inst, "."+f.service):
		case h.TTL == 0:
			delete(s.instances, inst) // good-bye; the other records still count
		case !s.instances[inst] && f.room(s):
			s.instances[inst] = true
		}
	case dnsmessage.SRVResource:
		if _, there := s.servers[name]; strings.HasSuffix(name, "."+f.service) && (there || f.room(s)) {
			s.servers[name] = server{lower(r.Target.String()), r.Port}
		}
	case dnsmessage.TXTResource:
		size := 0
		for _, t := range r.TXT {
			size += len(t)
		}
		if _, there := s.texts[name]; strings.HasSuffix(name, "."+f.service) && len(r.TXT) <= maxStrings &&
			size <= maxText && (there || f.room(s)) {
			s.texts[name] = r.TXT
		}
	case dnsmessage.AResource:
		f.noteAddr(s, name, netip.AddrFrom4(r.A))
	case dnsmessage.AAAAResource:
		a := netip.AddrFrom16(r.AAAA).Unmap()
		if a.Is6() && a.IsLinkLocalUnicast() {
			a = a.WithZone(f.link)
		}
		f.noteAddr(s, name, a)
	}
}

func (f *finder) noteAddr(s *said, name string, a netip.Addr) {
	if !usable(a) || !strings.HasSuffix(name, local) || len(s.addrs[name]) >= maxAddrs ||
		slices.Contains(s.addrs[name], a) || !f.room(s) {
		return
	}
	s.addrs[name] = append(s.addrs[name], a)
}

// room reserves room for one more record of a sender.
func (f *finder) room(s *said) bool {
	if f.kept >= maxKept || s.kept >= maxSaid {
		return false
	}
	f.kept++
	s.kept++
	return true
}

// missing are questions for the records that instances still lack.
func (f *finder) missing() []dnsmessage.Question {
	var out []dnsmessage.Question
	ask := func(name string, t dnsmessage.Type) {
		if n, err := dnsmessage.NewName(name); err == nil && len(out) < maxAsked {
			out = append(out, dnsmessage.Question{Name: n, Type: t, Class: dnsmessage.ClassINET})
		}
	}
	for _, s := range f.says {
		for inst := range s.instances {
			srv, ok := s.servers[inst]
			switch {
			case !ok:
				ask(inst, dnsmessage.TypeSRV)
			case len(s.addrs[srv.target]) == 0 && strings.HasSuffix(srv.target, local):
				ask(srv.target, dnsmessage.TypeA)
				ask(srv.target, dnsmessage.TypeAAAA)
			}
		}
	}
	return out
}

// found are the complete instances, in order.
func (f *finder) found() []Instance {
	var out []Instance
	for from, s := range f.says {
		for inst := range s.instances {
			srv := s.servers[inst]
			addrs := s.addrs[srv.target]
			if srv.port == 0 || len(addrs) == 0 {
				continue
			}
			addr := addrs[0]
			if slices.Contains(addrs, from) {
				addr = from // the one that is known to work
			}
			out = append(out, Instance{Host: printable(strings.TrimSuffix(srv.target, ".")),
				Addr: netip.AddrPortFrom(addr, srv.port), Link: f.link, text: s.texts[inst]})
		}
	}
	slices.SortStableFunc(out, compareInstances)
	return out
}

func compareInstances(a, b Instance) int {
	return cmp.Or(strings.Compare(a.Host, b.Host), a.Addr.Compare(b.Addr), slices.Compare(a.text, b.text),
		strings.Compare(a.Link, b.Link))
}
