package netplan

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestParse(t *testing.T) {
	got, err := Parse(Source{"/etc/netplan/x.yaml", []byte(`network:
  version: 2
  renderer: NetworkManager
  ethernets:
    enp1s0f0np0:
      dhcp4: YES
      dhcp6: off
      link-local: []
      mtu: "9000"
      addresses: [10.0.0.1/24, 10.0.0.1/24, {"fe80::1/64": {label: a}}]
      nameservers: {addresses: [1.1.1.1]}
      new-in-2030: [1, {a: b}]
    NM-1: {renderer: networkd, match: {name: "enP*", macaddress: "4C:bb:47:2e:01:00", driver: [mlx5_core]}, set-name: fast0}
    any:
      match: {}
  bonds:
    bond0: {interfaces: [enp1s0f0np0, NM-1]}
  vlans:
    v3: {id: 3, link: any}
---
network: {ethernets: {second: {mtu: 1}}}
`)})
	if err != nil {
		t.Fatal(err)
	}
	file := "/etc/netplan/x.yaml"
	want := Document{Path: file, Renderer: "NetworkManager", Definitions: []Definition{
		{Path: file, Line: 5, Section: "ethernets", ID: "enp1s0f0np0", DHCP4: new(true), DHCP6: new(false), LinkLocal: []string{}, MTU: new(9000),
			Addresses: []netip.Prefix{pfx("10.0.0.1/24"), pfx("fe80::1/64")}, Others: []string{"nameservers", "new-in-2030"}},
		{Path: file, Line: 13, Section: "ethernets", ID: "NM-1", Renderer: "networkd", SetName: "fast0",
			Match: &Match{Name: "enP*", MAC: "4C:bb:47:2e:01:00", Drivers: []string{"mlx5_core"}}},
		{Path: file, Line: 14, Section: "ethernets", ID: "any", Match: &Match{}},
		{Path: file, Line: 17, Section: "bonds", ID: "bond0", Members: []string{"enp1s0f0np0", "NM-1"}},
		{Path: file, Line: 19, Section: "vlans", ID: "v3", Link: "any", Others: []string{"id"}},
	}}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, empty := range []string{"", "# nothing\n", "---\n"} {
		if doc, err := Parse(Source{"x", []byte(empty)}); err != nil || len(doc.Definitions) > 0 {
			t.Errorf("%q: %v %v", empty, doc, err)
		}
	}
}

func TestParseSaysWhereItIsWrong(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"an alias", "network:\n  ethernets:\n    a: &x {mtu: 1}\n    b: *x\n", "line 4: an alias (*x)"},
		{"a merge", "network:\n  ethernets:\n    a: &x {mtu: 1}\n    b: {<<: *x}\n", "line 4: an alias"},
		{"a truth value", "network:\n  ethernets:\n    a: {dhcp4: perhaps}\n", `line 3: "perhaps": want yes or no`},
		{"an address without length", "network: {ethernets: {a: {addresses: [10.0.0.1]}}}", `address "10.0.0.1"`},
		{"one address for a list", "network: {ethernets: {a: {addresses: 10.0.0.1/24}}}", "want a list"},
		{"an MTU in words", "network: {ethernets: {a: {mtu: jumbo}}}", `mtu "jumbo": want a number`},
		{"beside network", "network: {}\nnetplan: {}\n", `line 2: "netplan" beside network`},
		{"indentation", "network:\n  ethernets:\n    a:\n", "check the indentation"},
		{"a list", "- network\n", "want a mapping"},
		{"no YAML", "network: [\n", "parse /etc/netplan/x.yaml"},
		{"depth", "network: {ethernets: {a: " + strings.Repeat("[", 40) + strings.Repeat("]", 40) + "}}", "nested deeper"},
		{"size", "#" + strings.Repeat("x", maxFile), "more than 1048576"},
		{"values", "network: {ethernets: {a: {routes: [" + strings.Repeat("1,", maxNodes) + "1]}}}", "more than 20000 values"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse(Source{"/etc/netplan/x.yaml", []byte(tc.text)})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want ...%s...", err, tc.want)
			}
		})
	}
}

func TestInOrder(t *testing.T) {
	var got []string
	for _, s := range InOrder([]Source{{Path: "/etc/netplan/40-cx7.yaml"}, {Path: "/lib/netplan/00-x.yaml"}, {Path: "/run/netplan/40-cx7.yaml"},
		{Path: "/etc/netplan/00-x.yaml"}, {Path: "/etc/netplan/9.yaml"}, {Path: "/run/netplan/50.yaml"}}) {
		got = append(got, s.Path)
	}
	want := []string{"/etc/netplan/00-x.yaml", "/run/netplan/40-cx7.yaml", "/run/netplan/50.yaml", "/etc/netplan/9.yaml"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzParse(f *testing.F) {
	for _, topo := range topologies {
		plan, err := Make(topo.in)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(plan.Files[0].Text), []byte(plan.Files[1].Text))
	}
	for _, m := range mentionCases {
		f.Add([]byte(m.theirs), []byte("network: {version: 2, renderer: NetworkManager}"))
	}
	f.Add([]byte("network: {ethernets: {a: &x {mtu: 1}, b: *x}}"), []byte("%YAML 1.1\n---\n- !!binary x\n"))
	ours := mustMake(f, pair1()).Files[0].Text
	nics := spark(1).twins()
	f.Fuzz(func(t *testing.T, a, b []byte) {
		sources := []Source{{"/etc/netplan/10-a.yaml", a}, {"/run/netplan/90-b.yaml", b}, {Path, a}}
		docs, unread := ParseAll(sources)
		if len(docs)+len(unread) != len(sources) {
			t.Errorf("%d files make %d read and %d unread", len(sources), len(docs), len(unread))
		}
		own, err := Parse(Source{Path, []byte(ours)})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range Mentions(docs, own, nics) {
			if m.Path == Path || len(m.Effects) == 0 || m.Line < 1 || m.Remedy == "" {
				t.Errorf("mention %+v", m)
			}
		}
		for _, c := range Changes(sources, &ours, nics) {
			if len(c.Words) == 0 {
				t.Errorf("%s changes in no way", c.NIC)
			}
		}
		if words := Changes([]Source{{Path, a}}, new(string(a)), nics); len(words) > 0 {
			t.Errorf("a file changes itself: %v", words)
		}
		touches(own, docs, Twin{NIC: "enP7s7"})
		if diff := Unified("a", "b", string(a), string(b)); (diff == "") != (string(a) == string(b)) {
			t.Errorf("%q and %q differ by %q", a, b, diff)
		}
	})
}
