package netplan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// twins are all fabric interfaces of a node.
func (n Node) twins() (out []Twin) {
	for _, p := range n.Ports {
		out = append(out, p.Twins...)
	}
	return out
}

// mentionCases are other files beside spark1's of a pair on port 1: enp1s0f1np1 with 192.168.177.11/24.
var mentionCases = []struct {
	name, path, theirs string
	// want is blank where nothing is said, else how and effects; a ! in front means that it blocks.
	want []string
}{
	{"NVIDIA's installer file does not name it", "/etc/netplan/00-installer-config.yaml", `network: {version: 2, ethernets: {enP7s7: {dhcp4: true}}}`, nil},
	{"a renderer for all", "/etc/netplan/01-network-manager-all.yaml", `network: {version: 2, renderer: NetworkManager}`, nil},
	{"another address later", "/etc/netplan/99-dgx-cluster.yaml", `network: {ethernets: {enp1s0f1np1: {mtu: 9000, addresses: [10.0.0.1/24]}}}`,
		[]string{"!enp1s0f1np1 by name: adds 10.0.0.1/24 to 192.168.177.11/24, for netplan adds address lists up"}},
	{"another address earlier adds up all the same", "/etc/netplan/10-x.yaml", `network: {ethernets: {enp1s0f1np1: {addresses: [10.0.0.1/24]}}}`,
		[]string{"!enp1s0f1np1 by name: adds 10.0.0.1/24 to 192.168.177.11/24, for netplan adds address lists up"}},
	{"the same again", "/etc/netplan/99-x.yaml", `network: {ethernets: {enp1s0f1np1: {addresses: [192.168.177.11/24]}}}`,
		[]string{"enp1s0f1np1 by name: repeats what ours says"}},
	{"later values win", "/etc/netplan/99-x.yaml", `network: {ethernets: {enP2p1s0f1np1: {dhcp4: yes, mtu: 1500, link-local: [ipv4], routes: []}}}`,
		[]string{"!enP2p1s0f1np1 by name: sets dhcp4 to yes after our no, and wins; sets link-local to [ipv4] after our [], and wins; sets mtu to 1500 after our 9000, and wins; its routes stay in force"}},
	{"earlier values give way", "/etc/netplan/10-x.yaml", `network: {ethernets: {enP2p1s0f1np1: {dhcp4: yes, dhcp6: yes, mtu: 1500}}}`,
		[]string{"enP2p1s0f1np1 by name: its dhcp4 yes gives way to our no; its dhcp6 yes gives way to our no; its mtu 1500 gives way to our 9000"}},
	{"by MAC, first by name", "/etc/netplan/50-x.yaml", `network: {ethernets: {cx7: {match: {macaddress: "4C:BB:47:2E:01:01"}, dhcp4: true}}}`,
		[]string{"!enp1s0f1np1 by MAC 4C:BB:47:2E:01:01: networkd takes 10-netplan-cx7 before 10-netplan-enp1s0f1np1 and ignores ours"}},
	{"by MAC, last by name", "/etc/netplan/50-x.yaml", `network: {ethernets: {zz: {match: {macaddress: "4c:bb:47:2e:01:01"}}}}`,
		[]string{"enp1s0f1np1 by MAC 4c:bb:47:2e:01:01: networkd takes our 10-netplan-enp1s0f1np1 before 10-netplan-zz and ignores the latter here"}},
	{"by MAC and renamed", "/etc/netplan/50-x.yaml", `network: {ethernets: {zz: {match: {macaddress: "4c:bb:47:2e:01:01"}, set-name: fast0}}}`,
		[]string{"!enp1s0f1np1 by MAC 4c:bb:47:2e:01:01: networkd takes our 10-netplan-enp1s0f1np1 before 10-netplan-zz and ignores the latter here; renames it to fast0, which ours does not name"}},
	{"by pattern", "/etc/netplan/50-x.yaml", `network: {ethernets: {all-en: {match: {name: "enp1*"}}}}`,
		[]string{"!enp1s0f1np1 by the pattern enp1*: networkd takes 10-netplan-all-en before 10-netplan-enp1s0f1np1 and ignores ours"}},
	{"by driver", "/etc/netplan/50-x.yaml", `network: {ethernets: {all-en: {match: {driver: "mlx5*", name: "*f1np1"}}}}`,
		[]string{
			"!enp1s0f1np1 by the pattern *f1np1: networkd takes 10-netplan-all-en before 10-netplan-enp1s0f1np1 and ignores ours",
			"!enP2p1s0f1np1 by the pattern *f1np1: networkd takes 10-netplan-all-en before 10-netplan-enP2p1s0f1np1 and ignores ours",
		}},
	{"another driver", "/etc/netplan/50-x.yaml", `network: {ethernets: {all-en: {match: {driver: r8127}}}}`, nil},
	{"a profile of NetworkManager", "/etc/netplan/90-NM-1.yaml", `network: {ethernets: {NM-1: {renderer: NetworkManager, match: {name: enp1s0f1np1}, dhcp4: true}}}`,
		[]string{"!enp1s0f1np1 by name: NetworkManager gets two profiles for it (NM-1 and enp1s0f1np1) and may choose either"}},
	{"its id, another interface's match", "/etc/netplan/10-x.yaml", `network: {ethernets: {enp1s0f1np1: {match: {macaddress: "00:00:00:00:00:01"}}}}`,
		[]string{"!enp1s0f1np1 as the id of another interface: its match would give our settings to whatever it matches"}},
	{"a part of a bond", "/etc/netplan/60-bond.yaml", `network: {ethernets: {x: {match: {macaddress: "4c:bb:47:2e:01:01"}}}, bonds: {bond0: {interfaces: [x, enP2p1s0f1np1]}}}`,
		[]string{
			"enp1s0f1np1 by MAC 4c:bb:47:2e:01:01: networkd takes our 10-netplan-enp1s0f1np1 before 10-netplan-x and ignores the latter here",
			"!enp1s0f1np1 as a member of bond0: makes it a part of bond0, and addresses on a part are not used",
			"!enP2p1s0f1np1 as a member of bond0: makes it a part of bond0, and addresses on a part are not used",
		}},
	{"below a VLAN", "/etc/netplan/60-vlan.yaml", `network: {vlans: {v9: {id: 9, link: enp1s0f1np1}}}`,
		[]string{"enp1s0f1np1 as what v9 lies on: v9 stays on top of it"}},
	{"under another kind", "/etc/netplan/60-x.yaml", `network: {bridges: {enp1s0f1np1: {}}}`,
		[]string{"!enp1s0f1np1 by name: defines it under bridges: netplan refuses both"}},
	{"hidden by /run", "/run/netplan/40-cx7.yaml", `network: {}`,
		[]string{
			"!enp1s0f1np1 by its own name: hides our file: of files with one name netplan reads the one in /run",
			"!enP2p1s0f1np1 by its own name: hides our file: of files with one name netplan reads the one in /run",
		}},
	{"hidden by ours", "/lib/netplan/40-cx7.yaml", `network: {ethernets: {enp1s0f1np1: {mtu: 1500}}}`, nil},
}

func TestMentions(t *testing.T) {
	plan := mustMake(t, pair1())
	ours, err := Parse(Source{Path, []byte(plan.Files[0].Text)})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range mentionCases {
		t.Run(tc.name, func(t *testing.T) {
			docs, unread := ParseAll([]Source{{tc.path, []byte(tc.theirs)}, {"/etc/netplan/40-other.yaml", nil}})
			if len(unread) > 0 {
				t.Fatal(unread)
			}
			var got []string
			for _, m := range Mentions(append(docs, ours), ours, spark(1).twins()) {
				line := fmt.Sprintf("%s %s: %s", m.NIC, m.How, strings.Join(m.Effects, "; "))
				if m.Blocks {
					line = "!" + line
				}
				got = append(got, line)
				if m.Path != tc.path || m.Line != 1 {
					t.Errorf("found at %s:%d", m.Path, m.Line)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTouches(t *testing.T) {
	for _, tc := range []struct{ name, ours, other, want string }{
		{"the fabric alone", `{ethernets: {enp1s0f0np0: {mtu: 9000}}}`, `{ethernets: {enP7s7: {dhcp4: yes}}}`, ""},
		{"by name", `{ethernets: {enP7s7: {mtu: 9000}}}`, ``, "enP7s7 (by name)"},
		{"by MAC", `{ethernets: {x: {match: {macaddress: "AA:00:00:00:00:01"}}}}`, ``, "enP7s7 (by MAC AA:00:00:00:00:01)"},
		{"by a match in another file", `{ethernets: {x: {mtu: 9000}}}`, `{ethernets: {x: {match: {name: "enP7*"}}}}`, "enP7s7 (by the pattern enP7*)"},
		{"below its VLAN", `{ethernets: {enp1s0f0np0: {mtu: 9000}}}`, `{vlans: {enP7s7: {id: 7, link: enp1s0f0np0}}}`, "enp1s0f0np0, which enP7s7 is made of"},
		{"below a bond below its bridge", `{ethernets: {enp1s0f0np0: {mtu: 9000}}}`, `{bonds: {b: {interfaces: [enp1s0f0np0]}}, bridges: {enP7s7: {interfaces: [b]}}}`,
			"enp1s0f0np0, which enP7s7 is made of"},
		{"made of itself", `{ethernets: {a: {}}}`, `{bonds: {b: {interfaces: [a, c]}, c: {interfaces: [b]}}}`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ours, err := Parse(Source{Path, []byte("network: " + tc.ours)})
			if err != nil {
				t.Fatal(err)
			}
			other, err := Parse(Source{"/etc/netplan/00.yaml", []byte("network: " + tc.other)})
			if tc.other == "" {
				other, err = Document{}, nil
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := touches(ours, []Document{other, ours}, Twin{NIC: "enP7s7", MAC: "aa:00:00:00:00:01"}); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
