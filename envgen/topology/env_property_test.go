package topology

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sparkrun/sparkrun/envgen"
)

// emitted are all the variables that may come out. Whatever else circulates in notes is bogus (NCCL_TIMEOUT,
// NCCL_NCHANNELS), is not NCCL's (MN_IF_NAME), does nothing on GB10 (NCCL_DMABUF_ENABLE, NCCL_NET_GDR_LEVEL), or is
// chosen better by NCCL itself (NCCL_IB_TC, NCCL_IB_TIMEOUT, NCCL_PROTO).
var emitted = []string{
	"NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_HCA", "NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_GID_INDEX",
	"NCCL_IB_SUBNET_AWARE_ROUTING", "NCCL_IB_SUBNET_PREFIX_LEN", "NCCL_IB_MERGE_NICS", "NCCL_ALGO", "NCCL_IB_DISABLE",
	"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES",
	"OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include",
}

// allLibraries are libraries, and one of which nothing is known.
func allLibraries() (all []*library) {
	all = []*library{nil}
	for i := range libraries {
		all = append(all, &libraries[i])
	}
	return all
}

func (l *library) place(inv envgen.Inventory, e envgen.Entry, nodes int) envgen.Place {
	p := envgen.Place{Inventory: inv, Entry: e, Nodes: nodes}
	if l != nil {
		p.NCCL, p.SubnetAware = &l.version, l.fork
	}
	return p
}

// Whatever the cluster and the release of NCCL: nothing bogus comes out, nothing that the node's hardware contradicts,
// and the same whenever it is asked for.
func TestPropertyEnv(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, 16)
		if rapid.Bool().Draw(t, "sound") {
			in, _ = drawSound(t)
		}
		in = distinctHosts(in)
		var hosts []string
		for _, n := range in.Nodes {
			if rapid.IntRange(0, 3).Draw(t, "left out") < 3 {
				hosts = append(hosts, n.Host)
			}
		}
		if len(hosts) == 0 {
			return
		}
		topo := derive2(t, in)
		again := shuffled(in, rapid.Uint64().Draw(t, "seed"))
		views := inOrder(topo, in, hosts...)
		m, err := topo.Meet(views)
		if err != nil {
			return // a node without any address
		}
		other := inOrder(derive2(t, again), again, hosts...)
		m2, err := derive2(t, again).Meet(other)
		if err != nil {
			t.Fatalf("in another order: %v", err)
		}
		for _, l := range allLibraries() {
			fabric := 0
			for i, e := range m.Entries {
				vars := envgen.Env(l.place(views[i].Inventory, e, len(views)))
				checkEnv(t, l, views[i].Inventory, e, len(views), vars)
				if valuesOf(vars)["NCCL_NET"] != "" {
					fabric++
				}
				if diff := cmp.Diff(vars, envgen.Env(l.place(other[i].Inventory, m2.Entries[i], len(views)))); diff != "" {
					t.Fatalf("%s in another order (-want +got):\n%s", e.Host, diff)
				}
			}
			if fabric != 0 && fabric != len(views) {
				t.Fatalf("%d of %d nodes use the fabric: the others would wait for them for ever", fabric, len(views))
			}
		}
	})
}

// distinctHosts lets a host name be a node's: jobs are placed by them here.
func distinctHosts(in Input) Input {
	in.Nodes = slices.Clone(in.Nodes)
	for i := range in.Nodes {
		in.Nodes[i].Host = fmt.Sprintf("%s-%02d", in.Nodes[i].Host, i)
	}
	return in
}

func checkEnv(t *rapid.T, l *library, inv envgen.Inventory, e envgen.Entry, nodes int, vars []envgen.Var) {
	t.Helper()
	env := valuesOf(vars)
	if len(env) != len(vars) {
		t.Fatalf("a variable comes twice: %v", vars)
	}
	for _, v := range vars {
		if !slices.Contains(emitted, v.Name) || v.Value == "" || v.Source == "" || strings.ContainsAny(v.Value+v.Source, "\n\x00") {
			t.Fatalf("%+v should not be there, or lacks its value or source", v)
		}
	}
	old := l != nil && l.version.Before(envgen.NCCLVersion{Major: 2, Minor: 21})
	ring := e.Shape == envgen.ShapeRing
	if env["NCCL_NET"] == "" {
		for _, name := range []string{"NCCL_NET_PLUGIN", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_SUBNET_AWARE_ROUTING", "NCCL_IB_MERGE_NICS", "NCCL_ALGO"} {
			if env[name] != "" {
				t.Fatalf("%s=%s without NCCL_NET", name, env[name])
			}
		}
	} else if env["NCCL_IB_DISABLE"] != "" || nodes == 1 {
		t.Fatalf("NCCL_NET=%s with NCCL_IB_DISABLE=%s for %d nodes", env["NCCL_NET"], env["NCCL_IB_DISABLE"], nodes)
	}
	checkHCAs(t, inv, e, env)
	if env["NCCL_IB_GID_INDEX"] != "" && (!old || ring) {
		t.Fatalf("a pinned GID index for %v in shape %s", l, e.Shape)
	}
	if (env["NCCL_IB_ROCE_VERSION_NUM"] != "") != (env["NCCL_NET"] != "" && !old) {
		t.Fatalf("NCCL_IB_ROCE_VERSION_NUM=%q for %v with NCCL_NET=%q", env["NCCL_IB_ROCE_VERSION_NUM"], l, env["NCCL_NET"])
	}
	if routed := env["NCCL_IB_SUBNET_AWARE_ROUTING"] != ""; routed != (env["NCCL_NET"] != "" && ring) {
		t.Fatalf("subnet aware routing %v in shape %s", routed, e.Shape)
	}
	if l != nil && ring && !l.fork && l.version.Before(envgen.NCCLVersion{Major: 2, Minor: 30, Patch: 7}) && env["NCCL_NET"] != "" {
		t.Fatalf("%v would hang in a ring", l)
	}
	name := env["GLOO_SOCKET_IFNAME"]
	if env["NCCL_SOCKET_IFNAME"] != "="+name {
		t.Fatalf("NCCL meets on %q, gloo on %q", env["NCCL_SOCKET_IFNAME"], name)
	}
	if nic, ok := inv.NIC(name); !ok || !slices.ContainsFunc(nic.Addresses, func(p netip.Prefix) bool { return p.Addr() == e.Addr || nic.Loopback && p.Contains(e.Addr) }) {
		t.Fatalf("%q has not the address %s", name, e.Addr)
	}
}

// checkHCAs wants every device that is named to be there, ACTIVE, RoCE, and with a row for an address of its own.
func checkHCAs(t *rapid.T, inv envgen.Inventory, e envgen.Entry, env map[string]string) {
	t.Helper()
	list := env["NCCL_IB_HCA"]
	if (list != "") != (env["NCCL_NET"] == "IB") {
		t.Fatalf("NCCL_NET=%q with NCCL_IB_HCA=%q", env["NCCL_NET"], list)
	}
	if list == "" {
		return
	}
	names, exact := strings.CutPrefix(list, "=")
	for _, name := range strings.Split(names, ",") {
		h, ok := inv.Device(name)
		if !exact || !ok || !h.Active() || !h.RoCE() || h.PhysFn != nil {
			t.Fatalf("NCCL_IB_HCA=%s names %+v", list, h)
		}
		if !slices.ContainsFunc(e.Paths, func(p envgen.Path) bool { return p.HCA == name }) {
			t.Fatalf("%s has no path in %+v", name, e.Paths)
		}
		row := slices.IndexFunc(h.GIDs, func(g envgen.GID) bool {
			pinned := env["NCCL_IB_GID_INDEX"]
			return g.Type == envgen.GIDTypeRoCEv2 && g.Addr.Is4In6() && (pinned == "" || pinned == strconv.Itoa(g.Index))
		})
		if row < 0 {
			t.Fatalf("%s has no RoCE v2 row for an IPv4 address (index %q): %+v", name, env["NCCL_IB_GID_INDEX"], h.GIDs)
		}
	}
}
