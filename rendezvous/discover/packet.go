package discover

import (
	"fmt"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// maxPacket is the longest mDNS message, in bytes (RFC 6762, 17).
	maxPacket = 9000
	// How many questions and records of a packet are read; the rest is ignored.
	maxQuestions = 32
	maxRecords   = 64

	// lifetime of our records, in seconds: the value of RFC 6762, 10, for host names.
	lifetime = 120

	local = ".local."
	// kinds is the question for all kinds of services on a link (RFC 6763, 9).
	kinds = "_services._dns-sd._udp" + local

	// The top bit of a class: in a question "answer by unicast", in a record "this is all there is by that name".
	topBit = dnsmessage.Class(1 << 15)
)

// lower makes names comparable: DNS ignores the case of ASCII letters only.
func lower(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, name)
}

// announcement is what a member says, ready to be sent, and the names that it answers for.
type announcement struct {
	packet  []byte // TTL: lifetime
	goodbye []byte // the same with TTL 0
	service string
	names   map[string]bool // its own: of the instance and of its address
	inst    string
}

func newAnnouncement(m Member) (announcement, error) {
	if err := m.check(); err != nil {
		return announcement{}, err
	}
	if !uuidForm().MatchString(m.Node) {
		return announcement{}, fmt.Errorf("node %q is no id", m.Node)
	}
	label := lower(strings.Map(func(r rune) rune {
		if strings.ContainsRune("._@", r) {
			return '-' // a label has at most 63 bytes, and a dot would end it
		}
		return r
	}, m.Host[:min(len(m.Host), 50)])) + "-" + m.Node[:8]
	a := announcement{service: Members + local, inst: label + "." + Members + local}
	a.names = map[string]bool{a.inst: true, label + local: true}
	var err error
	if a.packet, err = a.build(m, label+local, lifetime); err == nil {
		a.goodbye, err = a.build(m, label+local, 0)
	}
	return a, err
}

func (a announcement) build(m Member, target string, ttl uint32) ([]byte, error) {
	var names [4]dnsmessage.Name
	for i, text := range []string{a.service, a.inst, target, kinds} {
		var err error
		if names[i], err = dnsmessage.NewName(text); err != nil {
			return nil, fmt.Errorf("name %s: %w", text, err)
		}
	}
	service, inst, host, all := names[0], names[1], names[2], names[3]
	shared := func(n dnsmessage.Name) dnsmessage.ResourceHeader {
		return dnsmessage.ResourceHeader{Name: n, Class: dnsmessage.ClassINET, TTL: ttl}
	}
	unique := func(n dnsmessage.Name) dnsmessage.ResourceHeader {
		return dnsmessage.ResourceHeader{Name: n, Class: dnsmessage.ClassINET | topBit, TTL: ttl}
	}
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{Response: true, Authoritative: true})
	b.EnableCompression()
	steps := []func() error{
		b.StartAnswers,
		func() error { return b.PTRResource(shared(service), dnsmessage.PTRResource{PTR: inst}) },
		func() error {
			return b.SRVResource(unique(inst), dnsmessage.SRVResource{Port: m.Addr.Port(), Target: host})
		},
		func() error {
			return b.TXTResource(unique(inst), dnsmessage.TXTResource{TXT: []string{
				keyVersion + "=" + version, keyCluster + "=" + m.Cluster, keyCA + "=" + m.CA, keyHost + "=" + m.Host}})
		},
		func() error {
			if addr := m.Addr.Addr(); !addr.Is4() {
				return b.AAAAResource(unique(host), dnsmessage.AAAAResource{AAAA: addr.As16()})
			}
			return b.AResource(unique(host), dnsmessage.AResource{A: m.Addr.Addr().As4()})
		},
	}
	if ttl > 0 { // others have the service too, so its kind must not be withdrawn
		steps = append(steps, func() error { return b.PTRResource(shared(all), dnsmessage.PTRResource{PTR: service}) })
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return b.Finish()
}

// asks tells whether a packet asks for something of this announcement that the asker does not have.
func (a announcement) asks(packet []byte) bool {
	var p dnsmessage.Parser
	h, err := p.Start(packet)
	if err != nil || h.Response || h.OpCode != 0 || h.RCode != 0 {
		return false
	}
	browses, asks := false, false
	for range maxQuestions {
		q, err := p.Question()
		if err == dnsmessage.ErrSectionDone {
			break
		}
		if err != nil {
			if p.SkipQuestion() != nil {
				return false
			}
			continue // not a name of ours
		}
		name := lower(q.Name.String())
		anyType := q.Type == dnsmessage.TypeALL
		switch {
		case q.Class&^topBit != dnsmessage.ClassINET && q.Class&^topBit != dnsmessage.ClassANY:
		case name == a.service && (q.Type == dnsmessage.TypePTR || anyType):
			browses = true
		case name == kinds && (q.Type == dnsmessage.TypePTR || anyType):
			asks = true
		case a.names[name]:
			asks = true // for another type the answer is what we have
		}
	}
	if asks || !browses || p.SkipAllQuestions() != nil {
		return asks || browses
	}
	known := false
	each(&p, func(h dnsmessage.ResourceHeader, body any) {
		r, ok := body.(dnsmessage.PTRResource)
		if ok && h.TTL >= lifetime/2 && lower(h.Name.String()) == a.service && lower(r.PTR.String()) == a.inst {
			known = true
		}
	})
	return !known
}

// each gives fn the records of a packet's answers and additionals, of the types that are used here. What cannot be
// read is skipped.
func each(p *dnsmessage.Parser, fn func(dnsmessage.ResourceHeader, any)) {
	left := maxRecords
	section := func(header func() (dnsmessage.ResourceHeader, error), skip func() error) bool {
		for ; left > 0; left-- {
			h, err := header()
			if err == dnsmessage.ErrSectionDone {
				return true
			}
			if err == nil {
				if body, ok := bodyOf(p, h); ok {
					fn(h, body)
					continue
				}
			}
			if skip() != nil {
				return false
			}
		}
		return false
	}
	if section(p.AnswerHeader, p.SkipAnswer) && p.SkipAllAuthorities() == nil {
		section(p.AdditionalHeader, p.SkipAdditional)
	}
}

// bodyOf reads the record whose header was read last. False: p still stands before it.
func bodyOf(p *dnsmessage.Parser, h dnsmessage.ResourceHeader) (body any, ok bool) {
	if h.Class&^topBit != dnsmessage.ClassINET {
		return nil, false
	}
	var err error
	switch h.Type {
	case dnsmessage.TypePTR:
		body, err = p.PTRResource()
	case dnsmessage.TypeSRV:
		body, err = p.SRVResource()
	case dnsmessage.TypeTXT:
		body, err = p.TXTResource()
	case dnsmessage.TypeA:
		body, err = p.AResource()
	case dnsmessage.TypeAAAA:
		body, err = p.AAAAResource()
	default:
		return nil, false
	}
	return body, err == nil
}
