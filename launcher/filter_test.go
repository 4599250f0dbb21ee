package launcher

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A filter admits what was planned and what its own nodes have now, no other member's; what is not told now stays.
func TestReaddress(t *testing.T) {
	addrs := func(text string) (out []netip.Addr) {
		for _, a := range strings.Fields(text) {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	f := Filter{Members: addrs("10.0.0.1 fe80::1%p0 10.0.0.2"), Nodes: []NodeID{"a", "b"}}
	for _, step := range []struct {
		told    map[NodeID]string
		changed bool
		admits  string
	}{
		{map[NodeID]string{"a": "10.0.0.1 fe80::1%p0", "b": "10.0.0.2", "c": "10.0.0.3"}, false,
			"10.0.0.1 fe80::1%p0 10.0.0.2"},
		{map[NodeID]string{"a": "10.0.0.8 fe80::8%p1", "b": "10.0.0.2"}, true,
			"10.0.0.1 fe80::1%p0 10.0.0.2 10.0.0.8 fe80::8"},
		{map[NodeID]string{"b": "::ffff:10.0.0.9"}, true, "10.0.0.1 fe80::1%p0 10.0.0.2 10.0.0.8 fe80::8 10.0.0.9"},
		{nil, false, "10.0.0.1 fe80::1%p0 10.0.0.2 10.0.0.8 fe80::8 10.0.0.9"},
		{map[NodeID]string{"a": "10.0.0.7", "b": "10.0.0.9"}, true, "10.0.0.1 fe80::1%p0 10.0.0.2 10.0.0.7 10.0.0.9"},
		{map[NodeID]string{"a": "10.0.0.1", "b": "10.0.0.2"}, true, "10.0.0.1 fe80::1%p0 10.0.0.2"},
	} {
		told := map[NodeID][]netip.Addr{}
		for id, text := range step.told {
			told[id] = addrs(text)
		}
		now, changed := f.Readdress(told)
		if changed != step.changed {
			t.Errorf("told %v: changed is %v", step.told, changed)
		}
		if diff := cmp.Diff(addrs(step.admits), now.Admits(),
			cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("told %v (-want +got):\n%s", step.told, diff)
		}
		f = now
	}
	old := Filter{Members: addrs("10.0.0.1")} // of a leader that tells no nodes
	if now, changed := old.Readdress(map[NodeID][]netip.Addr{"a": addrs("10.0.0.8")}); changed || len(now.Admits()) != 1 {
		t.Errorf("without nodes: %v", now)
	}
}

// A service's port follows the cluster's members: who joins is let in, who is silent stays, who is removed goes.
func TestReaddressServes(t *testing.T) {
	at := func(text string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(text)} }
	f := Filter{Members: at("10.0.0.1"), Nodes: []NodeID{"a"}, Served: []Ports{{8000, 8000}}}
	for _, step := range []struct {
		told    map[NodeID][]netip.Addr
		changed bool
		want    map[NodeID][]netip.Addr
	}{
		{map[NodeID][]netip.Addr{"a": at("10.0.0.1"), "b": at("10.0.0.2")}, true,
			map[NodeID][]netip.Addr{"a": at("10.0.0.1"), "b": at("10.0.0.2")}},
		{map[NodeID][]netip.Addr{"a": at("10.0.0.1"), "b": nil}, false,
			map[NodeID][]netip.Addr{"a": at("10.0.0.1"), "b": at("10.0.0.2")}},
		{nil, false, map[NodeID][]netip.Addr{"a": at("10.0.0.1"), "b": at("10.0.0.2")}},
		{map[NodeID][]netip.Addr{"a": at("10.0.0.1"), "c": at("10.0.0.3")}, true,
			map[NodeID][]netip.Addr{"a": at("10.0.0.1"), "c": at("10.0.0.3")}},
	} {
		now, changed := f.Readdress(step.told)
		if d := cmp.Diff(step.want, now.Cluster, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" ||
			changed != step.changed {
			t.Errorf("told %v: changed is %v (-want +got):\n%s", step.told, changed, d)
		}
		if d := cmp.Diff([]string{"10.0.0.1"}, []string{now.Admits()[0].String()}); d != "" || len(now.Admits()) != 1 {
			t.Errorf("told %v: the job's other ports admit %v", step.told, now.Admits())
		}
		f = now
	}
}

func TestParsePorts(t *testing.T) {
	for text, want := range map[string]Ports{"8000": {8000, 8000}, "1-65535": {1, 65535}, "8000-8001": {8000, 8001}} {
		got, err := ParsePorts(text)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", text, err, diff)
		}
		b, err := json.Marshal(got)
		var back Ports
		if err != nil || json.Unmarshal(b, &back) != nil || back != want {
			t.Errorf("%s: through JSON: %s, %v", text, b, err)
		}
	}
	for _, text := range []string{"", "0", "65536", "http", "8001-8000", "1-", "-1", "1-2-3"} {
		if p, err := ParsePorts(text); err == nil {
			t.Errorf("%q: taken for %s", text, p)
		}
	}
}
