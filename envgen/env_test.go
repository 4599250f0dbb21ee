package envgen

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func values(vars []Var) map[string]string {
	m := map[string]string{}
	for _, v := range vars {
		m[v.Name] = v.Value
	}
	return m
}

// Env follows the hardware of the moment, not that of the placement.
func TestEnvUsesWhatIsThereNow(t *testing.T) {
	pair := views(clusters["pair-one-cable"].nodes)
	m, err := Meet(pair)
	if err != nil {
		t.Fatal(err)
	}
	now := pair[0].Inventory
	for name, tc := range map[string]struct {
		now  Inventory
		want map[string]string
	}{
		"twin went down": {
			changeHCA(now, "roceP2p1s0f0", func(h *HCA) { h.State = StateDown }),
			map[string]string{"NCCL_NET": "IB", "NCCL_IB_HCA": "=rocep1s0f0"},
		},
		"twin lost its address": {
			change(now, "enP2p1s0f0np0", func(n *NIC) { n.Addresses = nil }),
			map[string]string{"NCCL_NET": "IB", "NCCL_IB_HCA": "=rocep1s0f0"},
		},
		"twin lost its GID": {
			changeHCA(now, "roceP2p1s0f0", func(h *HCA) { h.GIDs = h.GIDs[:2] }),
			map[string]string{"NCCL_NET": "IB", "NCCL_IB_HCA": "=rocep1s0f0"},
		},
		"no device left": {
			Inventory{Host: now.Host, NICs: now.NICs},
			map[string]string{"NCCL_NET": "", "NCCL_IB_HCA": "", "NCCL_IB_DISABLE": ""},
		},
		"interface renamed": {
			change(now, "enp1s0f0np0", func(n *NIC) { n.Name = "fast0" }),
			map[string]string{"NCCL_SOCKET_IFNAME": "=fast0", "GLOO_SOCKET_IFNAME": "fast0", "NCCL_IB_HCA": "=roceP2p1s0f0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := values(Env(Place{Inventory: tc.now, Entry: m.Entries[0], Nodes: 2}))
			for k, want := range tc.want {
				if got[k] != want {
					t.Errorf("%s = %q, want %q", k, got[k], want)
				}
			}
		})
	}
}

// A variable that is set and not listed would be carried to nodes that want another value.
func TestNCCLVariablesListsWhatIsSet(t *testing.T) {
	set := map[string]bool{}
	note := func(vars []Var) {
		for _, v := range vars {
			if strings.HasPrefix(v.Name, "NCCL_") {
				set[v.Name] = true
			}
		}
	}
	for _, c := range clusters {
		m, err := Meet(views(c.nodes))
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range m.Entries {
			note(Env(Place{Inventory: c.nodes[i], Entry: e, Nodes: len(c.nodes), NCCL: c.nccl}))
		}
	}
	for _, place := range []Place{{Nodes: 4}, {Nodes: 3, NCCL: &NCCLVersion{2, 28, 9}, SubnetAware: true}} {
		note(ringProfile(place, nil).vars)
	}
	if d := cmp.Diff(slices.Sorted(maps.Keys(set)), slices.Sorted(slices.Values(NCCLVariables()))); d != "" {
		t.Error(d)
	}
}

func TestEnvNCCLVersions(t *testing.T) {
	pair := views(clusters["pair-one-cable"].nodes)
	m, err := Meet(pair)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		nccl  *NCCLVersion
		index string
		v2    string
	}{
		"unknown": {nil, "", "2"},
		"2.20.5":  {&NCCLVersion{2, 20, 5}, "3", ""},
		"2.21.0":  {&NCCLVersion{2, 21, 0}, "", "2"},
		"2.30.7":  {&NCCLVersion{2, 30, 7}, "", "2"},
	} {
		got := values(Env(Place{Inventory: pair[0].Inventory, Entry: m.Entries[0], Nodes: 2, NCCL: tc.nccl}))
		if got["NCCL_IB_GID_INDEX"] != tc.index || got["NCCL_IB_ROCE_VERSION_NUM"] != tc.v2 {
			t.Errorf("NCCL %s: index %q, version %q; want %q, %q", name,
				got["NCCL_IB_GID_INDEX"], got["NCCL_IB_ROCE_VERSION_NUM"], tc.index, tc.v2)
		}
	}
}

func TestParseNCCLVersion(t *testing.T) {
	for text, want := range map[string]NCCLVersion{
		"2.28.9": {2, 28, 9}, "2.28.3+cuda13.0": {2, 28, 3}, "v2.28.9-1": {2, 28, 9}, "2.21": {2, 21, 0},
		"22809": {2, 28, 9}, "2708": {2, 7, 8},
	} {
		got, err := ParseNCCLVersion(text)
		if err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "2", "two", "2.28.9999", "2.x", "1234567", "2.28.9 "} {
		if got, err := ParseNCCLVersion(text); err == nil {
			t.Errorf("%q: %v, want an error", text, got)
		}
	}
}

func FuzzParseNCCLVersion(f *testing.F) {
	for _, s := range []string{"2.28.9", "22809", "2708", "v2.28.9-1", "2.21+x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := ParseNCCLVersion(text)
		if err != nil {
			return
		}
		again, err := ParseNCCLVersion(v.String())
		if err != nil {
			t.Fatalf("%q gives %v, which does not parse: %v", text, v, err)
		}
		if diff := cmp.Diff(v, again); diff != "" {
			t.Fatal(diff)
		}
	})
}
