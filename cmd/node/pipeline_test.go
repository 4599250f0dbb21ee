package node

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/sparkrun/sparkrun/cmd/node/rollout"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/fabric"
	"github.com/sparkrun/sparkrun/envgen/fabric/fabrictest"
	"github.com/sparkrun/sparkrun/envgen/netplan"
	"github.com/sparkrun/sparkrun/envgen/topology"
)

var update = flag.Bool("update", false, "write the golden files anew")

// The whole path of a fabric, case by case: from what the machines' kernels show to inventories, the topology with its
// findings, every rank's environment, the netplan files and the pictures.
//
// A case of testdata/pipeline is a txtar file: "-- cluster --" has the cabling, and each further part is a machine in
// fabrictest's words, by host name. The cabling's words:
//
//	cable HOST/N HOST/N      the ports hear each other; any name of a port will do
//	switch HOST/N ...        every port hears every other
//	stranger HOST/N MAC      a host that is no member asks there
//	silent HOST              no probe runs there; trouble HOST WHY: it cannot
//	looking HOST             its probe has not listened long enough
//	unknown HOST/N NAME      a member that nobody knows is cabled there
//	clone HOST/N MAC         a copy of this machine is
//	fabric-port HOST NAME... the user's word; management HOST ADDR is another
//	measured HOST/HCA GBPS   what a bandwidth test said
//	rename HOST NAME         a node with another's name
//
// "-- later HOST --" changes a machine ten seconds after its counters were read, and
// "-- want HOST/KIND --" is text that others published for such a machine, and that must come out equal: ibdev2netdev
// by its text, netplan by its values.
func TestPipelineGoldens(t *testing.T) {
	files, err := filepath.Glob("testdata/pipeline/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			r := loadPipeline(t, file)
			got := r.walk(t)
			golden := strings.TrimSuffix(file, ".txtar") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatalf("%v (write it with -update)", err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for name, want := range r.want {
				if strings.HasSuffix(name, "/netplan") {
					if diff := cmp.Diff(asYAML(t, want), asYAML(t, got.part(name))); diff != "" {
						t.Errorf("%s (-published +got):\n%s", name, diff)
					}
				} else if diff := cmp.Diff(want, got.part(name)); diff != "" {
					t.Errorf("%s (-published +got):\n%s", name, diff)
				}
			}
		})
	}
}

// parts are what comes out, as a txtar file.
type parts []struct{ name, text string }

func (p *parts) add(name, text string) { *p = append(*p, struct{ name, text string }{name, text}) }

func (p parts) part(name string) string {
	for _, q := range p {
		if q.name == name {
			return q.text
		}
	}
	return ""
}

func (p parts) String() string {
	var b strings.Builder
	for _, q := range p {
		fmt.Fprintf(&b, "-- %s --\n%s\n", q.name, strings.TrimSuffix(q.text, "\n"))
	}
	return b.String()
}

func asYAML(t *testing.T, text string) (value any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	return value
}

// pipeline is a case: the machines as a cluster sees them.
type pipeline struct {
	in    topology.Input
	views []envgen.NodeView
	want  map[string]string
}

// script is the text of a case.
type script struct {
	cluster []string
	hosts   []string
	lines   map[string][]string // by host
	later   map[string][]string // what changed ten seconds after the first reading of the counters
	want    map[string]string
}

// readScript reads a case. One that begins with "-- base --" and the name of another adds to its machines; where it has
// a cluster of its own, that one counts.
func readScript(t *testing.T, file string) *script {
	t.Helper()
	s := &script{lines: map[string][]string{}, later: map[string][]string{}, want: map[string]string{}}
	for _, p := range fabrictest.Parts(t, file) {
		want, wanted := strings.CutPrefix(p.Name, "want ")
		later, isLater := strings.CutPrefix(p.Name, "later ")
		switch {
		case p.Name == "base":
			s = readScript(t, filepath.Join("testdata/pipeline", p.Lines[0]+".txtar"))
		case p.Name == "cluster":
			s.cluster = p.Lines
		case wanted:
			s.want[want] = strings.Join(p.Lines, "\n") + "\n"
		case isLater:
			s.later[later] = p.Lines
		default:
			if s.lines[p.Name] == nil {
				s.hosts = append(s.hosts, p.Name)
			}
			s.lines[p.Name] = append(s.lines[p.Name], p.Lines...)
		}
	}
	return s
}

func loadPipeline(t *testing.T, file string) *pipeline {
	t.Helper()
	s := readScript(t, file)
	r := &pipeline{want: s.want}
	counters := map[string][]envgen.Counters{}
	for _, host := range s.hosts {
		r.views = append(r.views, readMachine(t, host, s, counters))
	}
	var words [][]string
	for _, line := range s.cluster {
		line, _, _ = strings.Cut(line, "#")
		if w := strings.Fields(line); len(w) > 0 {
			words = append(words, w)
		}
	}
	for _, w := range words {
		r.cabling(t, w)
	}
	for i := range r.views {
		v := &r.views[i]
		if c := v.Inventory.Cabling; c != nil {
			v.Inventory = v.Inventory.WithCabling(*c)
		}
	}
	r.in = topology.Observed(r.views)
	for i := range r.in.Nodes {
		r.in.Nodes[i].Counters = counters[r.in.Nodes[i].Host]
	}
	for _, w := range words {
		r.known(t, w)
	}
	return r
}

// readMachine plants a machine and reads it as an agent would.
func readMachine(t *testing.T, host string, s *script, counters map[string][]envgen.Counters) envgen.NodeView {
	t.Helper()
	h := fabrictest.New()
	plant := func(lines []string) {
		t.Helper()
		for i, line := range lines {
			if err := h.Line(line); err != nil {
				t.Fatalf("%s, line %d: %s: %v", host, i+1, line, err)
			}
		}
	}
	plant(s.lines[host])
	reader, err := fabric.New(fabric.Config{
		FS:       h.FS(),
		Hostname: func() (string, error) { return host, nil },
		Links: func(context.Context) (links []fabric.Link, _ error) {
			for _, l := range h.Links {
				links = append(links, fabric.Link(l))
			}
			return links, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	before := reader.Counters()
	plant(s.later[host])
	after := reader.Counters()
	after.At = before.At.Add(10 * time.Second)
	counters[host] = after.Since(before)
	inv, err := reader.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	inv.Cabling = &envgen.Cabling{}
	for _, n := range envgen.CableNICs(inv) {
		inv.Cabling.Probed = append(inv.Cabling.Probed, n.NIC.Name)
	}
	slices.Sort(inv.Cabling.Probed)
	view := envgen.NodeView{ID: "id-" + host, Host: host, Inventory: inv}
	if choice, err := envgen.Management(inv, ""); err == nil {
		view.Mgmt = choice.Addr
	}
	return view
}

// cabling makes of one line of the cluster what the probes would tell of it.
func (r *pipeline) cabling(t *testing.T, words []string) {
	t.Helper()
	host, _, _ := strings.Cut(words[1], "/")
	switch words[0] {
	case "cable", "switch":
		for i, a := range words[1:] {
			for j, b := range words[1:] {
				if i != j {
					r.hear(t, a, b)
				}
			}
		}
	case "stranger":
		inv := &r.view(t, host).Inventory
		for _, n := range r.port(t, words[1]) {
			inv.Cabling.NonMembers = append(inv.Cabling.NonMembers, envgen.NonMember{NIC: n.NIC.Name, Slot: n.Slot, MAC: words[2], Heard: envgen.NonMemberARP})
		}
	case "unknown": // a member that nobody else knows
		inv := &r.view(t, host).Inventory
		for _, n := range r.port(t, words[1]) {
			inv.Cabling.Sightings = append(inv.Cabling.Sightings, envgen.Sighting{NIC: n.NIC.Name, Slot: n.Slot, Peer: envgen.Neighbour{
				Node: "id-" + words[2], Host: words[2], NIC: "enp1s0f0np0", Slot: "01:00.0", MAC: "4c:bb:47:00:00:42"}})
		}
	case "clone": // a machine copied with its state answers
		v := r.view(t, host)
		for _, n := range r.port(t, words[1]) {
			v.Inventory.Cabling.Sightings = append(v.Inventory.Cabling.Sightings, envgen.Sighting{NIC: n.NIC.Name, Slot: n.Slot, Clone: true, Peer: envgen.Neighbour{
				Node: v.ID, Host: v.Host, NIC: n.NIC.Name, Slot: n.Slot, MAC: words[2], Boot: "0123456789abcdef"}})
		}
	case "looking": // its probe works, and has not listened long enough
		r.view(t, host).Inventory.Cabling = &envgen.Cabling{}
	case "silent":
		r.view(t, host).Inventory.Cabling = nil
	case "trouble":
		r.view(t, host).Inventory.Cabling = &envgen.Cabling{Trouble: strings.Join(words[2:], " ")}
	case "fabric-port":
		r.view(t, host).Inventory.FabricPorts = words[2:]
	case "management":
		r.view(t, host).Mgmt = netip.MustParseAddr(words[2])
	case "measured", "rename": // see known
	default:
		t.Fatalf("no such word as %q", words[0])
	}
}

// known adds what does not travel in an inventory.
func (r *pipeline) known(t *testing.T, words []string) {
	t.Helper()
	host, device, _ := strings.Cut(words[1], "/")
	for i := range r.in.Nodes {
		n := &r.in.Nodes[i]
		switch {
		case n.Host != host:
		case words[0] == "measured":
			var gbps float64
			if _, err := fmt.Sscan(words[2], &gbps); err != nil {
				t.Fatal(err)
			}
			n.Measured = append(n.Measured, envgen.Measurement{HCA: device, Gbps: gbps, By: "ib_write_bw"})
		case words[0] == "rename":
			n.Host = words[2]
		}
	}
}

// hear lets every interface of port a hear every one of b, as twins do.
func (r *pipeline) hear(t *testing.T, a, b string) {
	t.Helper()
	hostA, _, _ := strings.Cut(a, "/")
	hostB, _, _ := strings.Cut(b, "/")
	c, far := r.view(t, hostA).Inventory.Cabling, r.view(t, hostB)
	if c == nil || far.Inventory.Cabling == nil {
		return
	}
	for _, mine := range r.port(t, a) {
		for _, theirs := range r.port(t, b) {
			if theirs.NIC.HasCarrier() {
				c.Sightings = append(c.Sightings, envgen.Sighting{NIC: mine.NIC.Name, Slot: mine.Slot, Peer: envgen.Neighbour{
					Node: far.ID, Host: far.Host, NIC: theirs.NIC.Name, Slot: theirs.Slot, PCI: theirs.NIC.PCI, MAC: theirs.NIC.MAC}})
			}
		}
	}
}

func (r *pipeline) view(t *testing.T, host string) *envgen.NodeView {
	t.Helper()
	for i := range r.views {
		if r.views[i].Host == host {
			return &r.views[i]
		}
	}
	t.Fatalf("no host %s", host)
	return nil
}

// port returns the interfaces of HOST/NAME.
func (r *pipeline) port(t *testing.T, text string) (nics []envgen.CableNIC) {
	t.Helper()
	host, name, _ := strings.Cut(text, "/")
	inv := r.view(t, host).Inventory
	ports := envgen.Ports(inv)
	at, ok := envgen.PortsByName(ports)[name]
	if !ok {
		t.Fatalf("%s has no port %s", host, name)
	}
	for _, n := range envgen.CableNICs(inv) {
		if n.Slot == ports[at].Slot {
			nics = append(nics, n)
		}
	}
	return nics
}

func (r *pipeline) walk(t *testing.T) (out parts) {
	t.Helper()
	for _, v := range r.views {
		out.add(v.Host+"/inventory", inventoryText(t, v.Inventory))
		out.add(v.Host+"/ibdev2netdev", envgen.IBDev2Netdev(v.Inventory))
		out.add(v.Host+"/show_gids", envgen.ShowGIDs(v.Inventory))
	}
	topo, err := topology.Derive(r.in)
	if err != nil {
		t.Fatal(err)
	}
	out.add("topology", topologyText(t, topo))
	out.add("findings", findingsText(topo.Findings))
	r.environments(t, topo, &out)
	r.netplans(t, topo, &out)
	out.add("map", topology.Map(topo, 100))
	out.add("svg", string(topology.SVG(topo)))
	return out
}

// jsonLines writes values one a line.
func jsonLines[T any](t *testing.T, b *strings.Builder, name string, values ...T) {
	t.Helper()
	for _, v := range values {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(b, "%s %s\n", name, text)
	}
}

func inventoryText(t *testing.T, inv envgen.Inventory) string {
	t.Helper()
	var b strings.Builder
	jsonLines(t, &b, "device", inv.Devices...)
	jsonLines(t, &b, "nic", inv.NICs...)
	return b.String()
}

func topologyText(t *testing.T, topo envgen.Topology) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "shape %s: %s\norder %s\n", topo.Shape, topo.Why, strings.Join(topo.Order, " "))
	for _, n := range topo.Nodes {
		fmt.Fprintf(&b, "node %s %s: management %s on %s, reached at %s on %s (%s)\n", n.ID, n.Host, n.Mgmt, n.MgmtNIC, n.Addr, n.NIC, n.Network)
		for _, p := range n.Ports {
			fmt.Fprintf(&b, "  port %s %s: %s\n", p.Slot, p.Role, p.Why)
		}
	}
	jsonLines(t, &b, "group", topo.Groups...)
	jsonLines(t, &b, "link", topo.Links...)
	jsonLines(t, &b, "lane", topo.Lanes...)
	return b.String()
}

func findingsText(findings []envgen.Finding) string {
	var b strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&b, "%s %s %s %s %s\n  %s\n  evidence: %s\n  remedy: %s\n", f.Severity, f.Code, f.Host, f.Port, f.Device, f.Text, f.Evidence, f.Remedy)
	}
	return b.String()
}

// The releases of NCCL that matter: not known, one that cannot choose a GID, one of each later kind.
var pipelineLibraries = []struct {
	name string
	nccl *envgen.NCCLVersion
	fork bool
}{
	{"unknown", nil, false},
	{"2.20.5", &envgen.NCCLVersion{Major: 2, Minor: 20, Patch: 5}, false},
	{"2.28.9", &envgen.NCCLVersion{Major: 2, Minor: 28, Patch: 9}, false},
	{"2.28.9, the ring fork", &envgen.NCCLVersion{Major: 2, Minor: 28, Patch: 9}, true},
	{"2.30.7", &envgen.NCCLVersion{Major: 2, Minor: 30, Patch: 7}, false},
}

// environments writes what each rank of a job on all nodes gets; releases that get the same stand together.
func (r *pipeline) environments(t *testing.T, topo envgen.Topology, out *parts) {
	t.Helper()
	byID := map[string]envgen.NodeView{}
	for _, v := range r.views {
		byID[v.ID] = v
	}
	var views []envgen.NodeView
	for _, id := range topo.RankOrder(slices.Collect(maps.Keys(byID))) {
		views = append(views, byID[id])
	}
	m, err := topo.Meet(views)
	if err != nil {
		t.Fatal(err)
	}
	out.add("meeting", fmt.Sprintf("%s, %s: %s", m.Kind, m.Entries[0].Shape, m.Why))
	texts := map[string][]string{}
	var order []string
	for _, l := range pipelineLibraries {
		var b strings.Builder
		for i, e := range m.Entries {
			fmt.Fprintf(&b, "rank %d %s %s\n", i, e.Host, e.Addr)
			for _, v := range envgen.Env(envgen.Place{Inventory: views[i].Inventory, Entry: e, Nodes: len(views), NCCL: l.nccl, SubnetAware: l.fork}) {
				fmt.Fprintf(&b, "  %s=%s\t# %s\n", v.Name, v.Value, v.Source)
			}
		}
		if text := b.String(); texts[text] == nil {
			order = append(order, text)
		}
		texts[b.String()] = append(texts[b.String()], l.name)
	}
	for _, text := range order {
		out.add("env, NCCL "+strings.Join(texts[text], " / "), text)
	}
}

// netplans writes the files that follow, with the addresses that are there left as they are.
func (r *pipeline) netplans(t *testing.T, topo envgen.Topology, out *parts) {
	t.Helper()
	held := map[string][]netplan.Held{}
	for _, v := range r.views {
		for _, nic := range envgen.CableNICs(v.Inventory) {
			h := netplan.Held{NIC: nic.NIC.Name}
			for _, a := range nic.NIC.Addresses {
				if a.Addr().Is4() && !a.Addr().IsLinkLocalUnicast() {
					h.Addresses = append(h.Addresses, a)
				}
			}
			held[v.ID] = append(held[v.ID], h)
		}
	}
	plan, err := rollout.Addresses(topo, r.views, nil, nil, held)
	if errors.Is(err, rollout.ErrNoCabling) {
		out.add("netplan", err.Error())
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range plan.Files {
		out.add(f.Host+"/netplan", f.Text)
	}
	if len(plan.Notes) > 0 {
		out.add("netplan notes", strings.Join(plan.Notes, "\n"))
	}
}
