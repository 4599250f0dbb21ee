package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// plug is a port with a link and the subnets of its twins: 192.168.SUBNET.0/24
// and the next.
type plug struct{ port, subnet int }

// sparks are ready machines of a cluster with these plugs each.
func sparks(plugs ...[]plug) wire.Status {
	st := wire.Status{Cluster: "3f2a", Leader: "spark1", Self: "spark1"}
	for i, ports := range plugs {
		n := wire.NodeStatus{ID: launcher.NodeID(fmt.Sprintf("id%d", i+1)), Host: fmt.Sprintf("spark%d", i+1), State: "ready",
			Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})}
		n.Inventory = envgen.Inventory{Host: n.Host,
			NICs: []envgen.NIC{{Name: "enP7s7", Up: true, Carrier: new(true), Physical: true,
				Addresses: []netip.Prefix{netip.PrefixFrom(n.Addr, 24)}}}}
		for _, p := range ports {
			for twin, names := range [][2]string{{"rocep1s0f%d", "enp1s0f%[1]dnp%[1]d"},
				{"roceP2p1s0f%d", "enP2p1s0f%[1]dnp%[1]d"}} {
				hca, nic := fmt.Sprintf(names[0], p.port), fmt.Sprintf(names[1], p.port)
				addr := netip.AddrFrom4([4]byte{192, 168, byte(p.subnet + twin), byte(i + 1)})
				at := &envgen.PCIAddress{Domain: uint32(2 * twin), Bus: 1, Function: uint8(p.port)}
				n.Inventory.Devices = append(n.Inventory.Devices, envgen.HCA{Name: hca, PCI: at, State: envgen.StateActive,
					LinkLayer: envgen.LayerEthernet, Netdev: nic,
					GIDs: []envgen.GID{{Index: 3, Type: envgen.GIDTypeRoCEv2, Addr: netip.AddrFrom16(addr.As16()), Netdev: nic}}})
				n.Inventory.NICs = append(n.Inventory.NICs,
					envgen.NIC{Name: nic, PCI: at, PCIVendor: envgen.VendorMellanox, MTU: 9000, Up: true,
						Carrier: new(true), Physical: true, Addresses: []netip.Prefix{netip.PrefixFrom(addr, 24)}})
			}
		}
		st.Nodes = append(st.Nodes, n)
	}
	return st
}

// unlikePair is cabled from port 0 of spark1 to port 1 of spark2.
func unlikePair() wire.Status { return sparks([]plug{{0, 100}}, []plug{{1, 100}}) }

func ring() wire.Status {
	return sparks([]plug{{0, 10}, {1, 30}}, []plug{{0, 20}, {1, 10}}, []plug{{0, 30}, {1, 20}})
}

func envOf(t *testing.T, st wire.Status, args ...string) (code int, out, err string) {
	t.Helper()
	c := &apptest.FakeCluster{OnStatus: func(wire.StatusRequest) (wire.Status, error) { return st, nil }}
	return cli(t, apptest.Agent(c), append([]string{"env"}, args...)...)
}

func TestEnvFormats(t *testing.T) {
	for name, args := range map[string][]string{
		"env.sh":     {"--format", "shell"},
		"env.env":    {"--node", "spark2", "--format", "docker"},
		"env.json":   {"--on", "spark2,spark1", "--format", "json", "--nccl", "2.20.5"},
		"env.txt":    nil,
		"env1.txt":   {"--nodes", "1"},
		"envold.env": {"--format", "docker", "--nccl", "2.20.5"},
	} {
		code, o, e := envOf(t, unlikePair(), args...)
		if code != 0 || e != "" {
			t.Errorf("env %v: code %d, stderr %q", args, code, e)
		}
		apptest.Golden(t, filepath.Join("env", name), o)
	}
}

// What the NCCL of the ranks can do in a ring decides whether they may touch
// RoCE at all.
func TestEnvOfARing(t *testing.T) {
	for nccl, want := range map[string][]string{
		"": {"NCCL_NET=IB", "NCCL_IB_HCA==rocep1s0f0,roceP2p1s0f0,rocep1s0f1,roceP2p1s0f1",
			"NCCL_IB_MERGE_NICS=1", "NCCL_SOCKET_IFNAME==enP7s7"},
		"2.30.7":                                  {"NCCL_IB_SUBNET_AWARE_ROUTING=1", "NCCL_IB_MERGE_NICS=1"},
		"2.28.9":                                  {"NCCL_IB_DISABLE=1"},
		"22809 --nccl-subnet-aware":               {"NCCL_IB_SUBNET_AWARE_ROUTING=1", "NCCL_IB_MERGE_NICS=0"},
		"2.28.9 --on spark1,spark2":               {"NCCL_NET=IB", "NCCL_IB_HCA==rocep1s0f0,roceP2p1s0f0"},
		"2.28.9 --on spark1,spark3":               {"NCCL_NET=IB", "NCCL_IB_HCA==rocep1s0f1,roceP2p1s0f1"},
		"2.20.5 --nodes 2":                        {"NCCL_IB_GID_INDEX=3", "NCCL_NET=IB"},
		"2.28.9 --nodes 1":                        {"GLOO_SOCKET_IFNAME=enP7s7"},
		"2.31.0 --exclude spark2":                 {"NCCL_IB_HCA==rocep1s0f1,roceP2p1s0f1"},
		"2.31.0 --node spark3 --on spark3,spark2": {"NCCL_IB_HCA==rocep1s0f1,roceP2p1s0f1"},
	} {
		args := []string{"--format", "docker"}
		if nccl != "" {
			args = append(args, append([]string{"--nccl"}, strings.Fields(nccl)...)...)
		}
		code, o, e := envOf(t, ring(), args...)
		if code != 0 || e != "" {
			t.Errorf("--nccl %s: code %d, stderr %q", nccl, code, e)
		}
		for _, w := range want {
			if !strings.Contains("\n"+o, "\n"+w+"\n") {
				t.Errorf("--nccl %s: %q is not in\n%s", nccl, w, o)
			}
		}
		if strings.Contains(o, "NCCL_IB_DISABLE=1") && strings.Contains(o, "NCCL_NET=IB") {
			t.Errorf("--nccl %s: IB is asked for and disabled:\n%s", nccl, o)
		}
	}
}

func TestEnvRefuses(t *testing.T) {
	alone := unlikePair()
	alone.Leader, alone.Problem = "", "spark2 does not answer"
	for _, tt := range []struct {
		st   wire.Status
		args []string
		code int
		want string
	}{
		{unlikePair(), []string{"--format", "yaml"}, 2, "want table, shell, docker, json"},
		{unlikePair(), []string{"--nccl", "new"}, 2, "want 2.28.9"},
		{unlikePair(), []string{"--on", "spark2"}, 2, "spark1 has no part in a job on spark2: name one of them with --node"},
		{unlikePair(), []string{"--nodes", "3"}, 1, "3 nodes wanted, 2 ready"},
		{unlikePair(), []string{"--on", "spark9"}, 1, `host "spark9" is not in this cluster`},
		{alone, nil, 1, "no leader: spark2 does not answer"},
	} {
		code, o, e := envOf(t, tt.st, tt.args...)
		if code != tt.code || !strings.Contains(e, tt.want) || o != "" {
			t.Errorf("env %v: code %d, stdout %q, stderr %q; want %d with %q", tt.args, code, o, e, tt.code, tt.want)
		}
	}
}

// A broken fabric is told beside the variables, which leave it alone.
func TestEnvTellsFindings(t *testing.T) {
	st := unlikePair()
	for i := range st.Nodes[1].Inventory.Devices {
		st.Nodes[1].Inventory.Devices[i].State = envgen.StateDown
		st.Nodes[1].Inventory.NICs[i+1].Carrier = new(false)
	}
	code, o, e := envOf(t, st, "--format", "json")
	if code != 0 || !strings.Contains(e, "error: spark2 01:00.1 rocep1s0f1: ") || !strings.Contains(e, "[no-link]") {
		t.Errorf("code %d, stderr %q", code, e)
	}
	var p struct {
		Network  string
		Vars     []envgen.Var
		Findings []envgen.Finding
	}
	if err := json.Unmarshal([]byte(o), &p); err != nil {
		t.Fatal(err)
	}
	if p.Network != "management" || len(p.Findings) == 0 {
		t.Errorf("got %+v", p)
	}
	for _, v := range p.Vars {
		if v.Name == "NCCL_NET" || v.Name == "NCCL_IB_HCA" {
			t.Errorf("%s=%s where no RDMA device reaches anybody", v.Name, v.Value)
		}
	}
}

func TestLaunchTellsFindings(t *testing.T) {
	f := envgen.Finding{Code: "no-link", Severity: envgen.SeverityWarning, Host: "spark2", Port: "01:00.0",
		Text: "port 0 has no link", Remedy: "sparkrun fabric --map"}
	p := apptest.Planned(1)
	p.Findings = []envgen.Finding{f}
	g := &apptest.FakeRunner{OnLaunch: apptest.Tells(p, apptest.Started("a"), apptest.Ended(apptest.Completed))}
	code, _, e := cli(t, apptest.Agent(g, &apptest.FakeCluster{}), "launch", "exec", "--force", "--",
		"true")
	if want := "sparkrun: warning: spark2 01:00.0: port 0 has no link [no-link] (remedy: sparkrun fabric --map)\n"; code != 0 || e != want {
		t.Errorf("code %d, stderr %q, want %q", code, e, want)
	}
}
