package topology

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sparkrun/sparkrun/envgen"
)

var update = flag.Bool("update", false, "write the golden files anew")

var byValue = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func golden(t *testing.T, file, got string) {
	t.Helper()
	file = filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (write it with -update)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

func derive(t testing.TB, in Input) envgen.Topology {
	t.Helper()
	topo, err := Derive(in)
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// clusters are the fixtures that are whole pictures, by name.
func clusters(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	var found []string
	for _, f := range files {
		found = append(found, strings.TrimSuffix(filepath.Base(f), ".txt"))
	}
	return found
}

func TestTopologyGoldens(t *testing.T) {
	for _, name := range clusters(t) {
		t.Run(name, func(t *testing.T) {
			f := load(t, name+".txt")
			topo := derive(t, f.in)
			golden(t, name+".golden", f.about+"\n"+describe(topo))
		})
	}
}

// describe writes a topology out, so that a golden reads like a report.
func describe(t envgen.Topology) string {
	var b strings.Builder
	host := map[string]string{}
	for _, n := range t.Nodes {
		host[n.ID] = n.Host
	}
	hosts := func(ids []string) string {
		var words []string
		for _, id := range ids {
			words = append(words, host[id])
		}
		return strings.Join(words, " ")
	}
	fmt.Fprintf(&b, "shape: %s\nwhy: %s\norder: %s\n", t.Shape, t.Why, hosts(t.Order))
	if len(t.Groups) > 1 {
		for _, g := range t.Groups {
			fmt.Fprintf(&b, "group: %s: %s\n", g.Shape, hosts(g.Nodes))
		}
	}
	for _, n := range t.Nodes {
		fmt.Fprintf(&b, "\nnode %s reached at %s on %s (%s)\n", n.Host, n.Addr, n.NIC, n.Network)
		for _, p := range n.Ports {
			var devices []string
			for _, d := range p.Devices {
				devices = append(devices, d.HCA)
			}
			fmt.Fprintf(&b, "  port %s %s: %s: %s\n", p.Slot, p.Role, strings.Join(devices, " "), p.Why)
		}
	}
	end := func(node, slot string) string { return host[node] + "/" + slot }
	for i, l := range t.Links {
		var ends []string
		for _, e := range l.Ends {
			ends = append(ends, end(e.Node, e.Slot))
		}
		speed := "?"
		if l.SpeedMbps != nil {
			speed = fmt.Sprint(*l.SpeedMbps)
		}
		fmt.Fprintf(&b, "\nlink %d %s up=%v seen=%v switched=%v via=%q %s Mb/s: %s\n", i, l.Role, l.Up, l.Seen, l.Switched, l.Via, speed, strings.Join(ends, " "))
		for _, lane := range t.Lanes {
			if lane.Link != i {
				continue
			}
			fmt.Fprintf(&b, "  lane %s spoilt=%v:", lane.Subnet, lane.Spoilt)
			for _, e := range lane.Ends {
				fmt.Fprintf(&b, " %s %s=%s", host[e.Node], e.Path.HCA, e.Path.Addr)
			}
			b.WriteString("\n")
		}
	}
	writeFindings(&b, t.Findings)
	return b.String()
}

func writeFindings(b *strings.Builder, findings []envgen.Finding) {
	for _, f := range findings {
		fmt.Fprintf(b, "\n%s %s %s %s %s\n  %s\n  evidence: %s\n  remedy: %s\n", f.Severity, f.Code, f.Host, f.Port, f.Device, f.Text, f.Evidence, f.Remedy)
	}
}
