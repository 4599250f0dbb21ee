package netplan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestUnified(t *testing.T) {
	seq := func(from, to int) string {
		var b strings.Builder
		for i := from; i <= to; i++ {
			b.WriteString(strings.Repeat("x", i) + "\n")
		}
		return b.String()
	}
	for _, tc := range []struct{ name, from, to, want string }{
		{"the same", "a\n", "a\n", ""},
		{"a new file", "", "a\nb\n", "--- old\n+++ new\n@@ -0,0 +1,2 @@\n+a\n+b\n"},
		{"a file that goes", "a\n", "", "--- old\n+++ new\n@@ -1,1 +0,0 @@\n-a\n"},
		{"one line", "a\nb\nc\n", "a\nB\nc\n", "--- old\n+++ new\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"},
		{"no newline at the end", "a\nb", "a\nb\n", "--- old\n+++ new\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n"},
		{"two places far apart", seq(1, 12), "new\n" + seq(2, 11) + "end\n",
			"--- old\n+++ new\n@@ -1,4 +1,4 @@\n-x\n+new\n xx\n xxx\n xxxx\n@@ -9,4 +9,4 @@\n xxxxxxxxx\n xxxxxxxxxx\n xxxxxxxxxxx\n-xxxxxxxxxxxx\n+end\n"},
		{"two places near each other", seq(1, 8), "new\n" + seq(2, 7) + "end\n",
			"--- old\n+++ new\n@@ -1,8 +1,8 @@\n-x\n+new\n xx\n xxx\n xxxx\n xxxxx\n xxxxxx\n xxxxxxx\n-xxxxxxxx\n+end\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Unified("old", "new", tc.from, tc.to)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	// Beyond the table's bound the middle is replaced whole.
	big := strings.Repeat("a\nb\n", 3000)
	got := edits(lines("same\nx\n"+big), lines("same\nz\n"+strings.ReplaceAll(big, "b", "c")))
	if len(got) != 1+2*6001 || got[0].kind != ' ' || got[1].kind != '-' || got[len(got)-1].kind != '+' {
		t.Errorf("%d edits of a large text", len(got))
	}
}

// The lines of a comparison are both texts.
func TestPropertyEditsAreBothTexts(t *testing.T) {
	text := rapid.SliceOfN(rapid.SampledFrom([]string{"a\n", "b\n", "c\n", "\n"}), 0, 12)
	rapid.Check(t, func(t *rapid.T) {
		from, to := text.Draw(t, "from"), text.Draw(t, "to")
		var old, fresh string
		for _, e := range edits(from, to) {
			if e.kind != '+' {
				old += e.text
			}
			if e.kind != '-' {
				fresh += e.text
			}
		}
		if old != strings.Join(from, "") || fresh != strings.Join(to, "") {
			t.Errorf("edits make %q and %q", old, fresh)
		}
	})
}

func TestChangesInWords(t *testing.T) {
	ours := mustMake(t, pair1()).Files[0].Text
	for _, tc := range []struct {
		name    string
		sources []Source
		text    *string
		want    []Change
	}{
		{"from nothing", nil, &ours, []Change{
			{"enp1s0f1np1", []string{"is configured by netplan from now on", "gets 192.168.177.11/24", "MTU is set to 9000"}},
			{"enP2p1s0f1np1", []string{"is configured by netplan from now on", "gets 192.168.178.11/24", "MTU is set to 9000"}},
		}},
		{"as it is", []Source{{Path, []byte(ours)}}, &ours, nil},
		{"from the link-local form", []Source{{Path, []byte("network: {ethernets: {enp1s0f1np1: {link-local: [ipv4]}, enp1s0f0np0: {link-local: [ipv4]}}}")}}, &ours, []Change{
			{"enp1s0f0np0", []string{"is no longer configured by netplan"}},
			{"enp1s0f1np1", []string{"gets 192.168.177.11/24", "MTU is set to 9000", "link-local [ipv4] becomes []"}},
			{"enP2p1s0f1np1", []string{"is configured by netplan from now on", "gets 192.168.178.11/24", "MTU is set to 9000"}},
		}},
		{"beside another file", []Source{{"/etc/netplan/99-x.yaml", []byte("network: {ethernets: {enp1s0f1np1: {dhcp4: on, dhcp6: on, addresses: [10.0.0.1/24], mtu: 1500}}}")}}, &ours, []Change{
			{"enp1s0f1np1", []string{"gets 192.168.177.11/24", "link-local [ipv6] becomes []"}},
			{"enP2p1s0f1np1", []string{"is configured by netplan from now on", "gets 192.168.178.11/24", "MTU is set to 9000"}},
		}},
		{"what the old text alone configures is lost", []Source{{Path, []byte("network: {ethernets: {enP7s7: {addresses: [192.168.0.2/24], routes: []}}}")}}, nil, []Change{
			{"enP7s7", []string{"is no longer configured by netplan", "loses 192.168.0.2/24"}},
		}},
		{"lists and truth values", []Source{{Path, []byte("network: {ethernets: {enp1s0f1np1: {dhcp4: on, dhcp6: on, addresses: [10.0.0.1/24], mtu: 1500, routes: []}}}")}},
			new("network: {ethernets: {enp1s0f1np1: {}}}"), []Change{
				{"enp1s0f1np1", []string{"loses 10.0.0.1/24", "MTU 1500 is no longer set", "DHCP for IPv4 yes becomes no", "DHCP for IPv6 yes becomes no", "loses its routes"}},
			}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Changes(tc.sources, tc.text, spark(1).twins())); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
