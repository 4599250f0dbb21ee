package gateway_test

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// join makes a member; net is what it tells of its network, if it does.
func (w *world) join(id launcher.NodeID, host, addr, net string) {
	n := rendezvous.Node{ID: id, Host: host, Addr: netip.AddrPortFrom(netip.MustParseAddr(addr), 7940)}
	w.apply(rendezvous.Entry{Kind: rendezvous.KindToken, Token: &rendezvous.Token{ID: string(id), Role: "node", Uses: 1,
		Expires: time.Now().Add(time.Hour)}})
	if err := w.apply(rendezvous.Entry{Kind: rendezvous.KindJoin, At: time.Now(),
		Join: &rendezvous.Join{TokenID: string(id), Node: n}}); err != nil {
		w.t.Fatal(err)
	}
	m := rendezvous.Member{Node: n}
	if net != "" {
		m.Inventory.NICs = []envgen.NIC{{Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix(net)}}}
	}
	w.roster.Store(append(slices.Clone(w.roster.Load()), m))
}

var root = wire.Caller{Host: "spark1", User: &wire.User{Name: "root"}}

// changes asks the leader for a change.
func (w *world) changes(c rendezvous.GatewayChange) error {
	_, err := wire.ChangeGateway.Call(w.t.Context(), w.here.As(root), c)
	return err
}

func (w *world) shows() *wire.GatewayCA {
	w.t.Helper()
	g, err := wire.ShowGateway.Call(w.t.Context(), w.here.As(root), wire.Empty{})
	if err != nil {
		w.t.Fatal(err)
	}
	return g.CA
}

func parse(t *testing.T, text string) *x509.Certificate {
	t.Helper()
	block, rest := pem.Decode([]byte(text))
	if block == nil || len(rest) > 0 {
		t.Fatalf("no certificate: %q", text)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// signed asks for a member's certificate: it gives the names and addresses.
func (w *world) signed(id launcher.NodeID, addrs ...string) (string, error) {
	w.t.Helper()
	key, err := trust.NewKey()
	if err != nil {
		w.t.Fatal(err)
	}
	r := wire.SignGatewayRequest{}
	if r.CSR, err = trust.NewCSR(key, "bank.example.com"); err != nil {
		w.t.Fatal(err)
	}
	for _, a := range addrs {
		r.Addrs = append(r.Addrs, netip.MustParseAddr(a))
	}
	res, err := wire.SignGateway.Call(w.t.Context(), w.here.As(wire.Caller{Node: id, Host: "any"}), r)
	if err != nil {
		return "", err
	}
	cert, err := x509.ParseCertificate(res.Cert)
	if err != nil {
		w.t.Fatal(err)
	}
	text := strings.Join(cert.DNSNames, " ")
	for _, at := range cert.IPAddresses {
		text += " " + at.String()
	}
	return text, nil
}

// The CA is bound to the cluster's names and networks, a member gets its own names and those of all, and who joins
// later is told of until the CA is made to know it.
func TestAuthority(t *testing.T) {
	w := newWorld(t)
	w.join("n1", "spark1", "10.0.0.1", "10.0.0.1/24")
	w.join("n2", "Spark2.lab.example", "10.0.0.2", "")
	w.join("n3", "spark3", "10.7.0.3", "") // it is away
	defer w.lead()()
	if got := w.shows(); got != nil {
		t.Errorf("before: %+v", got)
	}
	if _, err := w.signed("n1", "10.0.0.1"); !errors.Is(err, rendezvous.ErrNoGatewayCA) {
		t.Errorf("without a CA: %v", err)
	}
	if err := w.changes(rendezvous.GatewayChange{DropCA: true}); !errors.Is(err, rendezvous.ErrNoGatewayCA) {
		t.Errorf("rm without a CA: %v", err)
	}
	for _, name := range []string{"", "*.example.com", "a b", "https://x", "10.0.0", "-x"} {
		if err := w.changes(rendezvous.GatewayChange{CA: &rendezvous.GatewayCA{Names: []string{name}}}); !errors.Is(err,
			launcher.ErrInvalid) {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if err := w.changes(rendezvous.GatewayChange{CA: &rendezvous.GatewayCA{Names: []string{"Models.example.com", "192.0.2.7"},
		Cert: []byte("forged"), Key: []byte("forged")}}); err != nil {
		t.Fatal(err)
	}
	vip := netip.MustParsePrefix("10.0.0.100/24")
	if err := w.apply(rendezvous.GatewayChange{VirtualIP: &vip}.Entry()); err != nil {
		t.Fatal(err)
	}
	first := w.shows()
	if d := cmp.Diff([]string{"models.example.com", "spark1", "spark1.local", "spark2.lab.example", "spark3",
		"spark3.local", "10.0.0.0/24", "10.7.0.3/32", "192.0.2.7/32"}, first.Permits); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"models.example.com", "192.0.2.7"}, first.Names); d != "" || len(first.Missing) > 0 {
		t.Error(d, first.Missing)
	}
	const all = "models.example.com 192.0.2.7 10.0.0.100"
	for name, tt := range map[string]struct {
		id    launcher.NodeID
		addrs []string
		want  string
	}{
		"its own address":             {"n1", []string{"10.0.0.1"}, "spark1 spark1.local " + all + " 10.0.0.1"},
		"a new one of its network":    {"n1", []string{"10.0.0.9"}, "spark1 spark1.local " + all + " 10.0.0.9"},
		"one of another network":      {"n1", []string{"10.8.0.9"}, "spark1 spark1.local " + all},
		"another member's":            {"n3", []string{"10.0.0.1"}, "spark3 spark3.local " + all},
		"a host name with its domain": {"n2", nil, "spark2.lab.example " + all},
	} {
		if got, err := w.signed(tt.id, tt.addrs...); got != tt.want || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, err := w.signed("n9"); err == nil {
		t.Error("it signs for one that is no member")
	}

	w.join("n4", "spark4", "10.9.0.4", "10.9.0.4/24")
	if got := w.shows(); !slices.Equal(got.Missing, []string{"spark4"}) {
		t.Errorf("missing %q", got.Missing)
	}
	if got, err := w.signed("n4", "10.9.0.4"); got != all || err != nil {
		t.Errorf("before the CA knows it: %q, %v", got, err)
	}
	if err := w.changes(rendezvous.GatewayChange{CA: &rendezvous.GatewayCA{Names: []string{"llm.example.com"}}}); err != nil {
		t.Fatal(err)
	}
	wider := w.shows()
	if !slices.Equal(wider.Names, append(first.Names, "llm.example.com")) || len(wider.Missing) > 0 {
		t.Errorf("%+v", wider)
	}
	if !cmp.Equal(parse(t, first.Cert).RawSubjectPublicKeyInfo, parse(t, wider.Cert).RawSubjectPublicKeyInfo) {
		t.Error("more names have changed the CA's key")
	}
	if err := w.changes(rendezvous.GatewayChange{DropCA: true}); err != nil || w.shows() != nil {
		t.Errorf("rm: %v", err)
	}
}

// The key is where the record is, and nowhere else: no map for members has it, nor what users are shown. A leader without
// the key that seals it says what helps.
func TestAuthorityKeyStaysSealed(t *testing.T) {
	w := newWorld(t)
	w.join("n1", "spark1", "10.0.0.1", "10.0.0.1/24")
	defer w.lead()()
	if err := w.changes(rendezvous.GatewayChange{CA: &rendezvous.GatewayCA{}}); err != nil {
		t.Fatal(err)
	}
	settings, _ := w.record.Gateway()
	ca, err := trust.OpenGatewayCA(w.seals, settings.CA.Key)
	if err != nil || parse(t, w.shows().Cert).Equal(ca.Cert) == false {
		t.Errorf("what is sealed: %v", err)
	}
	stop := errors.New("stop")
	err = wire.FollowGateway.Call(t.Context(), w.here.As(wire.Caller{Node: "n1"}), wire.Empty{},
		func(m rendezvous.GatewayMap) error {
			if m.Gateway.CA == nil || len(m.Gateway.CA.Key) > 0 || !m.Gateway.CA.Equal(settings.CA) {
				t.Errorf("members are told %+v", m.Gateway.CA)
			}
			return stop
		})
	if !errors.Is(err, stop) {
		t.Error(err)
	}
	if w.seals, err = trust.NewSealer(trust.Keyring{trust.NewGossipKey(0)}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := w.signed("n1"); !errors.Is(err, trust.ErrSealed) || !strings.Contains(err.Error(), "gateway ca rm") {
		t.Errorf("with another key: %v", err)
	}
}
