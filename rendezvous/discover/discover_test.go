package discover

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/sparkrun/sparkrun/scripts/apart"
)

func TestMain(m *testing.M) {
	if apart.Inside() {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(m)
}

const (
	clusterA = "65a59063-4d7b-4c93-8fa5-4ecc3df44c65"
	pinA     = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA0"
	pinB     = "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB0"
)

func addrPort(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

func member(host, addr string) Member {
	return Member{Cluster: clusterA, CA: pinA, Host: host,
		Node: "0f3a9c12-0000-4000-8000-0000000000" + host[len(host)-1:] + "1", Addr: addrPort(addr)}
}

func announced(t testing.TB, m Member) announcement {
	t.Helper()
	a, err := newAnnouncement(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// heard are the clusters that these packets make, each from its sender.
func heard(t *testing.T, f *finder, packets map[string][]byte) []Cluster {
	t.Helper()
	for from, p := range packets {
		f.take(p, addrPort(from))
	}
	return Clusters(f.found())
}

func TestAnnouncementIsFound(t *testing.T) {
	one, two := member("spark1", "10.0.0.1:7940"), member("spark2", "10.0.0.2:7941")
	other := one
	other.CA, other.Host, other.Addr = pinB, "Spark.1_x", addrPort("[fd00::1]:7940")
	got := heard(t, newFinder("eth0", Members), map[string][]byte{
		"10.0.0.1:5353": announced(t, one).packet, "10.0.0.2:5353": announced(t, two).packet,
		"[fd00::1]:5353": announced(t, other).packet})
	want := []Cluster{
		{clusterA, pinA, []Found{{"spark1", one.Addr}, {"spark2", two.Addr}}},
		{clusterA, pinB, []Found{{"Spark.1_x", other.Addr}}},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	long := one
	long.Host = "a" + strings.Repeat("x.", 31) + "y"
	for _, p := range [][]byte{announced(t, long).packet, announced(t, one).packet} {
		if len(p) > 500 {
			t.Errorf("an announcement of %d bytes", len(p))
		}
	}
}

func TestGoodbyeIsForgotten(t *testing.T) {
	a, f := announced(t, member("spark1", "10.0.0.1:7940")), newFinder("eth0", Members)
	f.take(a.packet, addrPort("10.0.0.1:5353"))
	f.take(a.goodbye, addrPort("10.0.0.9:5353"))
	if len(f.found()) != 1 {
		t.Error("somebody else's good-bye counts")
	}
	f.take(a.goodbye, addrPort("10.0.0.1:5353"))
	if got := f.found(); len(got) != 0 {
		t.Errorf("found %+v after its good-bye", got)
	}
}

func TestAnnouncementsThatAreRefused(t *testing.T) {
	good := member("spark1", "10.0.0.1:7940")
	for what, change := range map[string]func(*Member){
		"cluster":           func(m *Member) { m.Cluster = "mine" },
		"CA":                func(m *Member) { m.CA = "spk1" },
		"host, empty":       func(m *Member) { m.Host = "" },
		"host, escape":      func(m *Member) { m.Host = "a\x1b[2J" },
		"host, long":        func(m *Member) { m.Host = strings.Repeat("a", 65) },
		"node":              func(m *Member) { m.Node = "1" },
		"loopback":          func(m *Member) { m.Addr = addrPort("127.0.0.1:7940") },
		"unspecified":       func(m *Member) { m.Addr = addrPort("0.0.0.0:7940") },
		"multicast address": func(m *Member) { m.Addr = addrPort("224.0.0.1:7940") },
		"no port":           func(m *Member) { m.Addr = addrPort("10.0.0.1:0") },
	} {
		m := good
		change(&m)
		if _, err := newAnnouncement(m); err == nil {
			t.Errorf("%s: %+v is announced", what, m)
		}
	}
}

// forged is an announcement with fields that no agent would send.
func forged(t testing.TB, inst, target string, addr [4]byte, port uint16, text ...string) []byte {
	t.Helper()
	n := dnsmessage.MustNewName
	m := dnsmessage.Message{Header: dnsmessage.Header{Response: true}}
	add := func(name string, body dnsmessage.ResourceBody) {
		m.Answers = append(m.Answers,
			dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: n(name), Class: dnsmessage.ClassINET, TTL: 60},
				Body: body})
	}
	add(Members+local, &dnsmessage.PTRResource{PTR: n(inst + "." + Members + local)})
	add(inst+"."+Members+local, &dnsmessage.SRVResource{Port: port, Target: n(target)})
	add(inst+"."+Members+local, &dnsmessage.TXTResource{TXT: text})
	add(target, &dnsmessage.AResource{A: addr})
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestForgeries(t *testing.T) {
	ok := []string{"v=1", "cluster=" + clusterA, "ca=" + pinA, "host=spark9"}
	at := [4]byte{10, 0, 0, 9}
	with := func(i int, text string) []string {
		out := append([]string{}, ok...)
		out[i] = text
		return out
	}
	for what, c := range map[string]struct {
		packet []byte
		found  int
	}{
		"as it should be":        {forged(t, "x", "y.local.", at, 1, ok...), 1},
		"twice a key":            {forged(t, "x", "y.local.", at, 1, append(ok, "host=\x1b[31m")...), 1},
		"a key nobody knows":     {forged(t, "x", "y.local.", at, 1, append(ok, "weather=fine")...), 1},
		"a later version":        {forged(t, "x", "y.local.", at, 1, with(0, "v=2")...), 0},
		"no version":             {forged(t, "x", "y.local.", at, 1, ok[1:]...), 0},
		"a host with an escape":  {forged(t, "x", "y.local.", at, 1, with(3, "host=a\x1b]0;b\x07")...), 0},
		"a host of two lines":    {forged(t, "x", "y.local.", at, 1, with(3, "host=a\nsudo x")...), 0},
		"a cluster that is none": {forged(t, "x", "y.local.", at, 1, with(1, "cluster=home")...), 0},
		"a CA that is none":      {forged(t, "x", "y.local.", at, 1, with(2, "ca="+pinA+"=")...), 0},
		"our own loopback":       {forged(t, "x", "y.local.", [4]byte{127, 0, 0, 1}, 1, ok...), 0},
		"no port":                {forged(t, "x", "y.local.", at, 0, ok...), 0},
		"a name outside .local":  {forged(t, "x", "example.org.", at, 1, ok...), 0},
		"too much text": {forged(t, "x", "y.local.", at, 1,
			append(ok, strings.Repeat("a", 250), strings.Repeat("b", 250), strings.Repeat("c", 250),
				strings.Repeat("d", 250))...), 0},
	} {
		if got := heard(t, newFinder("eth0", Members), map[string][]byte{"10.0.0.9:5353": c.packet}); len(got) != c.found {
			t.Errorf("%s: found %+v", what, got)
		}
	}
	f := newFinder("eth0", Members)
	f.take(forged(t, "x", "y.local.", at, 1, ok...), addrPort("10.0.0.9:9999"))
	if got := f.found(); len(got) != 0 {
		t.Errorf("an answer that any program could have sent counts: %+v", got)
	}
}

// What one sender says completes and alters nothing of another's.
func TestSendersAreKeptApart(t *testing.T) {
	a := announced(t, member("spark1", "10.0.0.1:7940"))
	f := newFinder("eth0", Members)
	f.take(a.packet, addrPort("10.0.0.1:5353"))
	thief := forged(t, strings.TrimSuffix(a.inst, "."+Members+local), "thief.local.", [4]byte{10, 0, 0, 66}, 7940,
		"v=1", "cluster="+clusterA, "ca="+pinB, "host=spark1")
	f.take(thief, addrPort("10.0.0.66:5353"))
	want := []Cluster{
		{clusterA, pinA, []Found{{"spark1", addrPort("10.0.0.1:7940")}}},
		{clusterA, pinB, []Found{{"spark1", addrPort("10.0.0.66:7940")}}},
	}
	if diff := cmp.Diff(want, Clusters(f.found()),
		cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// One that says very much leaves room for others.
func TestOneSenderCannotFillAll(t *testing.T) {
	f := newFinder("eth0", SSH)
	n := dnsmessage.MustNewName
	for i := range 100 {
		m := dnsmessage.Message{Header: dnsmessage.Header{Response: true}}
		for j := range 60 {
			name := "x" + strings.Repeat("y", i%50) + string(rune('a'+j%26)) + strings.Repeat("z", i/50+j/26)
			m.Answers = append(m.Answers,
				dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: n(SSH + local), Class: dnsmessage.ClassINET, TTL: 60},
					Body: &dnsmessage.PTRResource{PTR: n(name + "." + SSH + local)}})
		}
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		f.take(b, addrPort("10.0.0.66:5353"))
	}
	if f.kept > maxSaid {
		t.Errorf("%d records of one sender are kept", f.kept)
	}
	if q := f.missing(); len(q) > maxAsked {
		t.Errorf("%d questions are asked for it", len(q))
	}
	f.take(sshAnswer(t, "spark1", "spark1.local.", [4]byte{10, 0, 0, 1}), addrPort("10.0.0.1:5353"))
	if got := f.found(); len(got) != 1 || got[0].Host != "spark1.local" {
		t.Errorf("found %+v", got)
	}
}

// sshAnswer is what avahi says of its ssh.service, in a packet.
func sshAnswer(t testing.TB, inst, target string, addr [4]byte) []byte {
	t.Helper()
	n := dnsmessage.MustNewName
	m := dnsmessage.Message{Header: dnsmessage.Header{Response: true, Authoritative: true}}
	h := func(name string, class dnsmessage.Class) dnsmessage.ResourceHeader {
		return dnsmessage.ResourceHeader{Name: n(name), Class: class, TTL: 120}
	}
	m.Answers = []dnsmessage.Resource{{Header: h(SSH+local, dnsmessage.ClassINET),
		Body: &dnsmessage.PTRResource{PTR: n(inst + "." + SSH + local)}}}
	m.Additionals = []dnsmessage.Resource{
		{Header: h(inst+"."+SSH+local, dnsmessage.ClassINET|topBit), Body: &dnsmessage.TXTResource{TXT: []string{""}}},
		{Header: h(inst+"."+SSH+local, dnsmessage.ClassINET|topBit),
			Body: &dnsmessage.UnknownResource{Type: 47, Data: []byte{0, 1, 2}}}, // NSEC
		{Header: h(inst+"."+SSH+local, dnsmessage.ClassINET|topBit),
			Body: &dnsmessage.SRVResource{Port: 22, Target: n(target)}},
		{Header: h(target, dnsmessage.ClassINET|topBit), Body: &dnsmessage.AResource{A: addr}},
		{Header: h(target, dnsmessage.ClassINET|topBit),
			Body: &dnsmessage.AAAAResource{AAAA: netip.MustParseAddr("fe80::1").As16()}},
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What another program's answer leaves out is asked for, and what cannot be shown is not.
func TestAnswersInParts(t *testing.T) {
	n := dnsmessage.MustNewName
	part := func(r ...dnsmessage.Resource) []byte {
		b, err := (&dnsmessage.Message{Header: dnsmessage.Header{Response: true}, Answers: r}).Pack()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	h := func(name string) dnsmessage.ResourceHeader {
		return dnsmessage.ResourceHeader{Name: n(name), Class: dnsmessage.ClassINET, TTL: 60}
	}
	asked := func(f *finder) (out []string) {
		for _, q := range f.missing() {
			out = append(out, q.Type.String()+" "+q.Name.String())
		}
		return out
	}
	f, from := newFinder("eth0", SSH), addrPort("10.0.0.7:5353")
	inst, target := "Zeta's \x1b[31mSpark._ssh._tcp.local.", "zeta\u202es\x07.local."
	for _, step := range []struct {
		packet []byte
		want   []string
	}{
		{part(dnsmessage.Resource{Header: h("_SSH._tcp.LOCAL."), Body: &dnsmessage.PTRResource{PTR: n(inst)}}),
			[]string{"TypeSRV " + lower(inst)}},
		{part(dnsmessage.Resource{Header: h(inst), Body: &dnsmessage.SRVResource{Port: 2222, Target: n(target)}}),
			[]string{"TypeA " + target, "TypeAAAA " + target}},
		{part(dnsmessage.Resource{Header: h(target), Body: &dnsmessage.AResource{A: [4]byte{10, 0, 0, 8}}},
			dnsmessage.Resource{Header: h(target), Body: &dnsmessage.AResource{A: [4]byte{10, 0, 0, 7}}}), nil},
	} {
		f.take(step.packet, from)
		if diff := cmp.Diff(step.want, asked(f)); diff != "" {
			t.Errorf("asked for, -want +got:\n%s", diff)
		}
	}
	got := f.found()
	if len(got) != 1 || got[0].Host != "zeta?s?.local" || got[0].Addr != addrPort("10.0.0.7:2222") ||
		got[0].Link != "eth0" {
		t.Errorf("found %+v", got)
	}
}

func TestAsks(t *testing.T) {
	a := announced(t, member("Spark.1", "10.0.0.1:7940"))
	n := dnsmessage.MustNewName
	query := func(change func(*dnsmessage.Message), asked ...dnsmessage.Question) []byte {
		m := dnsmessage.Message{Questions: asked}
		if change != nil {
			change(&m)
		}
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	q := func(name string, typ dnsmessage.Type, class dnsmessage.Class) dnsmessage.Question {
		return dnsmessage.Question{Name: n(name), Type: typ, Class: class}
	}
	knows := func(inst string, ttl uint32) func(*dnsmessage.Message) {
		return func(m *dnsmessage.Message) {
			m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: n(Members + local),
				Class: dnsmessage.ClassINET, TTL: ttl}, Body: &dnsmessage.PTRResource{PTR: n(inst)}}}
		}
	}
	ptr := q("_Sparkrun._tcp.local.", dnsmessage.TypePTR, dnsmessage.ClassINET)
	if a.inst != "spark-1-0f3a9c12."+Members+local {
		t.Errorf("the instance is %s", a.inst)
	}
	for what, c := range map[string]struct {
		packet []byte
		want   bool
	}{
		"browsing":           {query(nil, ptr), true},
		"by unicast, please": {query(nil, q(Members+local, dnsmessage.TypePTR, dnsmessage.ClassINET|topBit)), true},
		"any type":           {query(nil, q(Members+local, dnsmessage.TypeALL, dnsmessage.ClassANY)), true},
		"after others":       {query(nil, q(SSH+local, dnsmessage.TypePTR, dnsmessage.ClassINET), ptr), true},
		"our server":         {query(nil, q(a.inst, dnsmessage.TypeSRV, dnsmessage.ClassINET)), true},
		"our address": {query(nil,
			q("spark-1-0f3a9c12.local.", dnsmessage.TypeA, dnsmessage.ClassINET)), true},
		"all kinds":                {query(nil, q(kinds, dnsmessage.TypePTR, dnsmessage.ClassINET)), true},
		"browsing, knows us":       {query(knows(a.inst, 100), ptr), false},
		"browsing, half forgotten": {query(knows(a.inst, 59), ptr), true},
		"browsing, knows another":  {query(knows("other."+Members+local, 100), ptr), true},
		"knows us, asks for address": {query(knows(a.inst, 100), ptr,
			q("spark-1-0f3a9c12.local.", dnsmessage.TypeA, dnsmessage.ClassINET)), true},
		"another service":     {query(nil, q(SSH+local, dnsmessage.TypePTR, dnsmessage.ClassINET)), false},
		"the host's own name": {query(nil, q("spark.1.local.", dnsmessage.TypeA, dnsmessage.ClassINET)), false},
		"another class":       {query(nil, q(Members+local, dnsmessage.TypePTR, dnsmessage.ClassCHAOS)), false},
		"an answer":           {query(func(m *dnsmessage.Message) { m.Response = true }, ptr), false},
		"another opcode":      {query(func(m *dnsmessage.Message) { m.OpCode = 5 }, ptr), false},
		"nothing":             {query(nil), false},
		"not DNS":             {[]byte("GET / HTTP/1.1\r\n\r\n"), false},
		"more than will be looked at": {query(nil,
			append(many(q(SSH+local, dnsmessage.TypePTR, dnsmessage.ClassINET), maxQuestions), ptr)...), false},
	} {
		if got := a.asks(c.packet); got != c.want {
			t.Errorf("%s: asks is %v", what, got)
		}
	}
}

func many[T any](v T, n int) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = v
	}
	return out
}

func FuzzPackets(f *testing.F) {
	a := announced(f, member("spark1", "10.0.0.1:7940"))
	f.Add(a.packet)
	f.Add(a.goodbye)
	f.Add(sshAnswer(f, "spark1", "spark1.local.", [4]byte{10, 0, 0, 1}))
	f.Add(forged(f, "x", "y.local.", [4]byte{10, 0, 0, 9}, 1, "v=1", "cluster="+clusterA, "ca="+pinA, "host=spark9"))
	f.Add([]byte("\x00\x00\x84\x00\x00\x00\xff\xff\x00\x00\xff\xff\xc0\x0c"))
	f.Fuzz(func(t *testing.T, packet []byte) {
		a.asks(packet)
		for _, service := range []string{Members, SSH} {
			f := newFinder("eth0", service)
			f.take(packet, addrPort("10.0.0.1:5353"))
			f.take(packet, addrPort("10.0.0.1:5353"))
			if f.kept > 2*maxRecords || len(f.missing()) > maxAsked {
				t.Errorf("%d records kept, %d questions", f.kept, len(f.missing()))
			}
			found := f.found()
			for _, i := range found {
				if i.Host != printable(i.Host) || !usable(i.Addr.Addr()) || i.Addr.Port() == 0 {
					t.Errorf("found %+v", i)
				}
			}
			for _, c := range Clusters(found) {
				if (Member{Cluster: c.ID, CA: c.CA, Host: c.Members[0].Host, Addr: c.Members[0].Addr}).check() != nil {
					t.Errorf("cluster %+v", c)
				}
			}
		}
	})
}
