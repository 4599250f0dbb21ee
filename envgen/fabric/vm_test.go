//go:build vm

package fabric

// These run as root on a machine with Soft RoCE devices, on which they may change addresses: scripts/vm_test builds
// them with -tags vm and runs them in a virtual machine. They hold the reader against what the kernel and the RDMA
// tools say there.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
)

// vmNetdev is what addresses come to and go from; nothing else of the test machine may need it.
const vmNetdev = "enp1s0f0np0"

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

// kernelGIDs reads the GID tables with nothing of the package: what must be found.
func kernelGIDs(t *testing.T, device string) []envgen.GID {
	t.Helper()
	port := "/sys/class/infiniband/" + device + "/ports/1/"
	var gids []envgen.GID
	for i := 0; ; i++ {
		text, err := os.ReadFile(port + "gids/" + strconv.Itoa(i))
		if errors.Is(err, os.ErrNotExist) {
			return gids
		}
		if err != nil {
			t.Fatal(err)
		}
		addr, err := netip.ParseAddr(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		kind, err := os.ReadFile(port + "gid_attrs/types/" + strconv.Itoa(i))
		if addr == netip.IPv6Unspecified() {
			if !errors.Is(err, syscall.EINVAL) {
				t.Errorf("the type of the empty row %d of %s reads as %q, %v; the kernel of our trees says EINVAL", i, device, kind, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		netdev, err := os.ReadFile(port + "gid_attrs/ndevs/" + strconv.Itoa(i))
		if err != nil {
			t.Fatal(err)
		}
		gids = append(gids, envgen.GID{Index: i, Type: strings.TrimSpace(string(kind)), Addr: addr, Netdev: strings.TrimSpace(string(netdev))})
	}
}

// vmDevice is what the RDMA tools tell of a device.
type vmDevice struct {
	Name, NodeGUID, SysImageGUID, State, LinkLayer string
	GIDs                                           []string // "index address type"
}

var (
	devinfoField = regexp.MustCompile(`^\s*([a-z_]+):\s+(.*\S)\s*$`)
	devinfoGID   = regexp.MustCompile(`^\s*GID\[\s*(\d+)\]:\s+(\S+?)(?:, (.*\S))?\s*$`)
)

// devinfo reads ibv_devinfo -v of one device: "hca_id: rocep1s0f0", "state: PORT_ACTIVE (4)", "GID[  0]: fe80::5054:ff:fe12:3456, RoCE v2".
func devinfo(t *testing.T, device string) vmDevice {
	t.Helper()
	var d vmDevice
	for line := range strings.Lines(run(t, "ibv_devinfo", "-v", "-d", device)) {
		if m := devinfoGID.FindStringSubmatch(line); m != nil {
			d.GIDs = append(d.GIDs, m[1]+" "+netip.MustParseAddr(m[2]).String()+" "+m[3])
			continue
		}
		m := devinfoField.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		switch m[1] {
		case "hca_id":
			d.Name = m[2]
		case "node_guid":
			d.NodeGUID = m[2]
		case "sys_image_guid":
			d.SysImageGUID = m[2]
		case "state":
			d.State, _, _ = strings.Cut(strings.TrimPrefix(m[2], "PORT_"), " ")
		case "link_layer":
			d.LinkLayer = m[2]
		}
	}
	return d
}

// differences holds one reading against ibv_devinfo -v and the kernel's table, for some devices (a table of rxe has
// 1024 rows, which take seconds on an emulated machine), and against rdma link for all.
func differences(t *testing.T, inv envgen.Inventory, netdevs ...string) string {
	t.Helper()
	var all strings.Builder
	links := map[string]string{}
	for _, h := range inv.Devices {
		links[h.Name] = h.State + " " + h.Netdev
		if !slices.Contains(netdevs, h.Netdev) {
			continue
		}
		ours := vmDevice{Name: h.Name, NodeGUID: h.NodeGUID, SysImageGUID: h.SysImageGUID, State: h.State, LinkLayer: h.LinkLayer}
		for _, g := range h.GIDs {
			ours.GIDs = append(ours.GIDs, fmt.Sprintf("%d %s %s", g.Index, g.Addr, g.Type))
		}
		if diff := cmp.Diff(kernelGIDs(t, h.Name), h.GIDs, byValue); diff != "" {
			fmt.Fprintf(&all, "GID table of %s (-kernel +ours):\n%s\n", h.Name, diff)
		}
		if diff := cmp.Diff(devinfo(t, h.Name), ours); diff != "" {
			fmt.Fprintf(&all, "ibv_devinfo -v of %s (-tool +ours):\n%s\n", h.Name, diff)
		}
	}
	var told []struct{ Ifname, State, Netdev string }
	if err := json.Unmarshal([]byte(run(t, "rdma", "-j", "link")), &told); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, l := range told {
		want[l.Ifname] = l.State + " " + l.Netdev
	}
	if diff := cmp.Diff(want, links); diff != "" {
		fmt.Fprintf(&all, "rdma link (-tool +ours):\n%s\n", diff)
	}
	return all.String()
}

// agree waits until the reader and all of the tools say the same: one may be asked before a step of the kernel and
// the next one after it, a link-local address that comes late for one.
func agree(t *testing.T, r *Reader, netdevs ...string) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); ; {
		inv, err := r.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		diff := differences(t, inv, netdevs...)
		if diff == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(diff)
		}
	}
}

func TestVMReaderAgreesWithTheTools(t *testing.T) {
	r, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	inv, err := r.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(inv.Devices) != 4 {
		t.Fatalf("%d RDMA devices, want the four of a Spark", len(inv.Devices))
	}
	agree(t, r, "enp1s0f0np0", "enP2p1s0f0np0", "enp1s0f1np1", "enP2p1s0f1np1")
	if mgmt, err := envgen.Management(inv, ""); err != nil || mgmt.NIC != "enP7s7" {
		t.Errorf("management %q, %v; want enP7s7", mgmt.NIC, err)
	}
}

// What makes rxe unlike mlx5, so that a kernel that changes it is noticed here.
func TestVMRxeIsAsOurTreesSay(t *testing.T) {
	devices, err := filepath.Glob("/sys/class/infiniband/*")
	if err != nil || len(devices) == 0 {
		t.Fatalf("no RDMA devices: %v", err)
	}
	for i, d := range devices {
		if _, err := os.Lstat(d + "/device"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s/device: %v; want none", d, err)
		}
		if parent, err := os.ReadFile(d + "/parent"); err != nil || !strings.HasPrefix(string(parent), "en") {
			t.Errorf("%s/parent reads %q, %v; want the interface's name", d, parent, err)
		}
		if i > 0 {
			continue // the tables are alike, and long
		}
		for _, g := range kernelGIDs(t, filepath.Base(d)) {
			if g.Type != "RoCE v2" {
				t.Errorf("row %d of %s is %q; want RoCE v2 only", g.Index, d, g.Type)
			}
		}
	}
}

// Addresses, the MTU and the link come and go under a running reader; after each step its news agrees with the tools.
func TestVMReaderFollows(t *testing.T) {
	r, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	news := make(chan envgen.Inventory, 100)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, func(inv envgen.Inventory) { news <- inv }) }()
	defer func() {
		cancel()
		<-ended
	}()

	gid := func(text string) func(envgen.Inventory) bool {
		return func(inv envgen.Inventory) bool {
			for _, h := range inv.Devices {
				if h.Netdev == vmNetdev && slices.ContainsFunc(h.GIDs, func(g envgen.GID) bool { return g.Addr == netip.MustParseAddr(text) }) {
					return true
				}
			}
			return false
		}
	}
	not := func(f func(envgen.Inventory) bool) func(envgen.Inventory) bool {
		return func(inv envgen.Inventory) bool { return !f(inv) }
	}
	state := func(want string) func(envgen.Inventory) bool {
		return func(inv envgen.Inventory) bool {
			i := slices.IndexFunc(inv.Devices, func(h envgen.HCA) bool { return h.Netdev == vmNetdev })
			return i >= 0 && inv.Devices[i].State == want
		}
	}
	mtu := func(want int) func(envgen.Inventory) bool {
		return func(inv envgen.Inventory) bool {
			i := slices.IndexFunc(inv.NICs, func(n envgen.NIC) bool { return n.Name == vmNetdev })
			return i >= 0 && inv.NICs[i].MTU == want
		}
	}
	ip := func(t *testing.T, args string) { run(t, "ip", strings.Fields(args+" dev "+vmNetdev)...) }
	restore := func() { // also what a run that was killed has left
		_ = exec.Command("ip", "addr", "del", "10.99.0.1/24", "dev", vmNetdev).Run()
		_ = exec.Command("ip", "addr", "del", "fd99::1/64", "dev", vmNetdev).Run()
		_ = exec.Command("ip", "link", "set", vmNetdev, "up", "mtu", "9000").Run()
	}
	restore()
	defer restore()

	<-news // the first reading
	for _, step := range []struct {
		name, change string
		want         func(envgen.Inventory) bool
	}{
		{"IPv4 comes", "addr add 10.99.0.1/24", gid("::ffff:10.99.0.1")},
		{"IPv6 comes", "addr add fd99::1/64 nodad", gid("fd99::1")},
		{"IPv4 goes", "addr del 10.99.0.1/24", not(gid("::ffff:10.99.0.1"))},
		{"IPv4 comes again, to another row or the same", "addr add 10.99.0.1/24", gid("::ffff:10.99.0.1")},
		{"IPv6 goes", "addr del fd99::1/64", not(gid("fd99::1"))},
		{"IPv4 goes again", "addr del 10.99.0.1/24", not(gid("::ffff:10.99.0.1"))},
		{"MTU shrinks", "link set mtu 1500", mtu(1500)},
		{"MTU grows", "link set mtu 9000", mtu(9000)},
		{"the link goes down", "link set down", state("DOWN")},
		{"the link comes up", "link set up", state("ACTIVE")},
	} {
		ok := t.Run(step.name, func(t *testing.T) {
			start := time.Now()
			ip(t, step.change)
			deadline := time.After(60 * time.Second)
			for {
				select {
				case inv := <-news:
					if !step.want(inv) {
						continue
					}
					t.Logf("told after %d ms", time.Since(start).Milliseconds())
				case err := <-ended:
					t.Fatalf("Run ended: %v", err)
				case <-deadline:
					t.Fatal("not told within 60 s")
				}
				break
			}
			agree(t, r, vmNetdev)
		})
		if !ok {
			break
		}
	}
}
