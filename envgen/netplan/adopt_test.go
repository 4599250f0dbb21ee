package netplan

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// holding reads "nic addr addr" lines into what a node has.
func holding(lines ...string) (out []Held) {
	for _, l := range lines {
		words := strings.Fields(l)
		h := Held{NIC: words[0]}
		for _, w := range words[1:] {
			h.Addresses = append(h.Addresses, pfx(w))
		}
		out = append(out, h)
	}
	return out
}

func TestAdopt(t *testing.T) {
	reserve := func(in Input, prefix string) Input {
		in.Reserved = []Reserved{{pfx(prefix), "docker0"}}
		return in
	}
	for _, tc := range []struct {
		name string
		in   Input
		held map[string][]Held
		why  string
		want map[string]string
	}{
		{"nothing there", pair1(), nil, "", map[string]string{
			"spark1 enp1s0f1np1": "192.168.177.11/24", "spark1 enP2p1s0f1np1": "192.168.178.11/24",
			"spark2 enp1s0f1np1": "192.168.177.12/24", "spark2 enP2p1s0f1np1": "192.168.178.12/24"}},
		{"crossed lanes and link-local leftovers", pair1(), map[string][]Held{
			"id-1": holding("enp1s0f1np1 169.254.3.4/16 fe80::1/64 10.1.0.5/28", "enP2p1s0f1np1 10.2.0.5/28"),
			"id-2": holding("enp1s0f1np1 10.2.0.6/28", "enP2p1s0f1np1 10.1.0.6/28 10.1.0.6/28"),
		}, "", map[string]string{
			"spark1 enp1s0f1np1": "10.1.0.5/28", "spark1 enP2p1s0f1np1": "10.2.0.5/28",
			"spark2 enp1s0f1np1": "10.2.0.6/28", "spark2 enP2p1s0f1np1": "10.1.0.6/28"}},
		{"one node has none yet, its number is taken", pair1(), map[string][]Held{
			"id-1": holding("enp1s0f1np1 10.1.0.12/24", "enP2p1s0f1np1 10.2.0.1/24"),
		}, "", map[string]string{
			"spark1 enp1s0f1np1": "10.1.0.12/24", "spark1 enP2p1s0f1np1": "10.2.0.1/24",
			"spark2 enp1s0f1np1": "10.1.0.13/24", "spark2 enP2p1s0f1np1": "10.2.0.12/24"}},
		{"a subnet for two", pair1(), map[string][]Held{
			"id-1": holding("enp1s0f1np1 10.1.0.1/30"), "id-2": holding("enp1s0f1np1 10.1.0.2/30"),
		}, "", map[string]string{
			"spark1 enp1s0f1np1": "10.1.0.1/30", "spark1 enP2p1s0f1np1": "192.168.177.11/24",
			"spark2 enp1s0f1np1": "10.1.0.2/30", "spark2 enP2p1s0f1np1": "192.168.177.12/24"}},
		{"twins in one subnet", pair1(), map[string][]Held{"id-1": holding("enp1s0f1np1 10.1.0.1/24", "enP2p1s0f1np1 10.1.0.2/24")},
			"the twins of port 1 of spark1 are both in 10.1.0.0/24", nil},
		{"two addresses", pair1(), map[string][]Held{"id-1": holding("enp1s0f1np1 10.1.0.1/24 10.1.0.2/24")}, "has two IPv4 addresses", nil},
		{"one address twice", pair1(), map[string][]Held{"id-1": holding("enp1s0f1np1 10.1.0.1/24"), "id-2": holding("enp1s0f1np1 10.1.0.1/24")},
			"port 1 of spark1 and port 1 of spark2 both have 10.1.0.1", nil},
		{"the peer elsewhere", pair1(), map[string][]Held{
			"id-1": holding("enp1s0f1np1 10.1.0.1/24", "enP2p1s0f1np1 10.2.0.1/24"), "id-2": holding("enp1s0f1np1 10.3.0.1/24"),
		}, "3 subnets for 2 twins", nil},
		{"another prefix length", pair1(), map[string][]Held{"id-1": holding("enp1s0f1np1 10.1.0.1/24"), "id-2": holding("enp1s0f1np1 10.1.0.2/16")},
			"somebody else's", nil},
		{"docker's", reserve(pair1(), "172.17.0.0/16"), map[string][]Held{"id-1": holding("enp1s0f1np1 172.17.3.1/24")}, "somebody else's", nil},
		{"a host route", pair1(), map[string][]Held{"id-1": holding("enp1s0f1np1 10.1.0.1/32")}, "joins nobody", nil},
		{"one subnet over two cables", pair2(), map[string][]Held{
			"id-1": holding("enp1s0f0np0 10.1.0.1/24", "enp1s0f1np1 10.1.0.2/24"),
			"id-2": holding("enp1s0f0np0 10.1.0.3/24", "enp1s0f1np1 10.1.0.4/24"),
		}, "somebody else's", nil},
		{"both ports on a switch", onSwitch(2, 0, 1), map[string][]Held{
			"id-1": holding("enp1s0f0np0 10.1.0.1/24", "enp1s0f1np1 10.2.0.1/24"),
		}, "on one switch with another port", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			adopted, why, err := Adopt(tc.in, tc.held)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(why, "\n"); tc.why == "" && got != "" || !strings.Contains(got, tc.why) {
				t.Errorf("why: %q, want ...%s...", got, tc.why)
			}
			tc.in.Previous = &adopted
			plan := mustMake(t, tc.in)
			sound(t, tc.in, plan)
			if tc.want == nil {
				return
			}
			if diff := cmp.Diff(tc.want, addresses(plan)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAdoptKeepsWhatIsRemembered(t *testing.T) {
	in := pair1()
	before := mustMake(t, in)
	in.Previous = &before.Allocation
	adopted, why, err := Adopt(in, map[string][]Held{"id-1": holding("enp1s0f1np1 10.9.9.9/24")})
	if err != nil || len(why) > 0 {
		t.Fatal(err, why)
	}
	if diff := cmp.Diff(before.Allocation, adopted, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestHeldByFiles(t *testing.T) {
	got := HeldBy([]Source{
		{"/etc/netplan/40-cx7.yaml", []byte("network: {ethernets: {enp1s0f1np1: {addresses: [10.1.0.1/24]}}}")},
		{"/etc/netplan/50.yaml", []byte(`network: {ethernets: {enp1s0f1np1: {addresses: [10.3.0.1/24]}, zz: {match: {macaddress: "4c:bb:47:2e:01:11"}, addresses: [10.2.0.1/24]}}}`)},
	}, spark(1).twins())
	want := holding("enp1s0f1np1 10.1.0.1/24 10.3.0.1/24", "enP2p1s0f1np1 10.2.0.1/24")
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}
