package fabric

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/fabric/fabrictest"
)

// byValue lets cmp look at the comparable types with hidden fields.
var byValue = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

var update = flag.Bool("update", false, "write the golden files anew")

func TestReadGoldens(t *testing.T) {
	fixtures, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(fixtures) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	for _, file := range fixtures {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			inv, err := loadFixture(t, name).reader(t, nil).Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.MarshalIndent(inv, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden := "testdata/" + name + ".golden.json"
			if *update {
				if err := os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatalf("%v (write it with -update)", err)
			}
			if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// What is read must serve the rules: the right management, the right device on the fabric.
func TestReadServesTheRules(t *testing.T) {
	for name, want := range map[string]struct{ mgmt, hca, ports string }{
		"spark-one-cable":   {"enP7s7", "=rocep1s0f0,roceP2p1s0f0", "rocep1s0f0+roceP2p1s0f0 rocep1s0f1+roceP2p1s0f1"},
		"spark-two-cables":  {"enP7s7", "=rocep1s0f0,roceP2p1s0f0,rocep1s0f1,roceP2p1s0f1", "rocep1s0f0+roceP2p1s0f0 rocep1s0f1+roceP2p1s0f1"},
		"spark-mlx5-names":  {"eth0", "=mlx5_3,mlx5_1", "mlx5_3+mlx5_1 mlx5_2+mlx5_0"},
		"no-hca":            {"eth0", "", ""},
		"server-mlx5":       {"eno1np0", "=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7", "mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7"},
		"infiniband":        {"eno1", "", "mlx5_0"},
		"virtual-functions": {"", "", "mlx5_0"},
		"rxe":               {"eth0", "=rocep1s0f0", "rocep1s0f0 rxe9"},
		"rxe-vm":            {"enP7s7", "=roceP2p1s0f0,roceP2p1s0f1,rocep1s0f1", "roceP2p1s0f0 roceP2p1s0f1 rocep1s0f0 rocep1s0f1"},
		"bond-and-vlan":     {"", "=mlx5_bond_0,roceP2p1s0f0", "mlx5_bond_0+roceP2p1s0f0"},
	} {
		t.Run(name, func(t *testing.T) {
			inv, err := loadFixture(t, name).reader(t, nil).Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			choice, err := envgen.Management(inv, "")
			if choice.NIC != want.mgmt || (err == nil) != (want.mgmt != "") {
				t.Errorf("management %q, %v; want %q", choice.NIC, err, want.mgmt)
			}
			var ports []string
			for _, p := range envgen.Ports(inv) {
				var twins []string
				for _, h := range p.Twins {
					twins = append(twins, h.Name)
				}
				ports = append(ports, strings.Join(twins, "+"))
			}
			if got := strings.Join(ports, " "); got != want.ports {
				t.Errorf("ports %q, want %q", got, want.ports)
			}
			// Its peer is the same machine with every address one up.
			peer := inv
			peer.Host = "peer"
			peer.NICs, peer.Devices = nil, nil
			for _, n := range inv.NICs {
				var up []netip.Prefix
				for _, p := range n.Addresses {
					up = append(up, netip.PrefixFrom(p.Addr().Next(), p.Bits()))
				}
				n.Addresses = up
				peer.NICs = append(peer.NICs, n)
			}
			for _, h := range inv.Devices {
				h.GIDs = append([]envgen.GID(nil), h.GIDs...)
				for i := range h.GIDs {
					h.GIDs[i].Addr = h.GIDs[i].Addr.Next()
				}
				peer.Devices = append(peer.Devices, h)
			}
			mgmt := func(inv envgen.Inventory, fallback string) netip.Addr {
				if c, err := envgen.Management(inv, ""); err == nil {
					return c.Addr
				}
				return netip.MustParseAddr(fallback)
			}
			m, err := envgen.Meet([]envgen.NodeView{
				{ID: "1", Host: "spark1", Mgmt: mgmt(inv, "10.99.0.1"), Inventory: inv},
				{ID: "2", Host: "peer", Mgmt: mgmt(peer, "10.99.0.2"), Inventory: peer},
			})
			if err != nil {
				t.Fatal(err)
			}
			hca := ""
			for _, v := range envgen.Env(envgen.Place{Inventory: inv, Entry: m.Entries[0], Nodes: 2}) {
				if v.Name == "NCCL_IB_HCA" {
					hca = v.Value
				}
			}
			if hca != want.hca {
				t.Errorf("NCCL_IB_HCA %q, want %q (%s)", hca, want.hca, m.Why)
			}
		})
	}
}

// The reader gives the same facts from a folder, by its own fast way and through os.DirFS, which a captured tree may
// come as.
func TestReadThroughAnyFS(t *testing.T) {
	for _, name := range []string{"spark-one-cable", "bond-and-vlan", "no-hca", "rxe"} {
		fx := loadFixture(t, name)
		root := fx.Plant(t)
		want, err := fx.reader(t, nil).Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, tree := range []fs.FS{dirFS(root), os.DirFS(root)} {
			r, err := New(Config{FS: tree, Hostname: func() (string, error) { return "spark1", nil },
				Links: func(context.Context) ([]Link, error) { return fx.links, nil }})
			if err != nil {
				t.Fatal(err)
			}
			got, err := r.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, byValue); diff != "" {
				t.Errorf("%s (-in memory +%T):\n%s", name, tree, diff)
			}
		}
	}
}

// vanishing takes a part of the tree away at the n-th look at it. Devices are read side by side, so that whose look that
// is differs from run to run.
type vanishing struct {
	mu   sync.Mutex // also of the tree
	tree fabrictest.Tree
	left int
	gone func()
}

func look[T any](v *vanishing, ask func() (T, error)) (T, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.left--; v.left == 0 {
		v.gone()
	}
	return ask()
}

// Open gives what was there at the look: an open folder keeps its names, a file its content.
func (v *vanishing) Open(name string) (fs.File, error) {
	return look(v, func() (fs.File, error) { return v.tree.Open(name) })
}

func (v *vanishing) ReadFile(name string) ([]byte, error) {
	return look(v, func() ([]byte, error) { return v.tree.ReadFile(name) })
}

func (v *vanishing) ReadLink(name string) (string, error) {
	return look(v, func() (string, error) { return v.tree.ReadLink(name) })
}

func (v *vanishing) Lstat(name string) (fs.FileInfo, error) {
	return look(v, func() (fs.FileInfo, error) { return v.tree.Lstat(name) })
}

// A card that is pulled out, or whose driver is unloaded, at any moment of a read: its devices are there as they were,
// or not at all, and never without their PCI address, as if they were others.
func TestReadWhileDevicesVanish(t *testing.T) {
	whole, err := loadFixture(t, "spark-one-cable").reader(t, nil).Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for n := 1; ; n++ {
		fx := loadFixture(t, "spark-one-cable")
		v := &vanishing{tree: fx.FS(), left: n, gone: func() {
			for _, line := range []string{"gone class/infiniband/roceP2p1s0f0", "gone class/net/enP2p1s0f0np0", "gone devices/pci0002:00/0002:01:00.0"} {
				if err := fx.Line(line); err != nil {
					t.Error(err)
				}
			}
		}}
		inv, err := fx.reader(t, v).Read(t.Context())
		if err != nil {
			t.Fatalf("gone at look %d: %v", n, err)
		}
		for _, h := range inv.Devices {
			want, _ := whole.Device(h.Name)
			if diff := cmp.Diff(want, h, byValue); diff != "" {
				t.Fatalf("gone at look %d, %s is read in part (-want +got):\n%s", n, h.Name, diff)
			}
		}
		if seen[len(inv.Devices)] = true; v.left > 0 {
			break
		}
	}
	if !seen[3] || !seen[4] || len(seen) != 2 {
		t.Errorf("numbers of devices read: %v, want 3 and 4", seen)
	}
}

func TestReadErrors(t *testing.T) {
	broken := errors.New("no netlink here")
	for name, tc := range map[string]struct {
		cfg  Config
		want string
	}{
		"links":    {Config{Links: func(context.Context) ([]Link, error) { return nil, broken }}, "read interfaces of box: no netlink here"},
		"hostname": {Config{Hostname: func() (string, error) { return "", broken }}, "read hostname"},
	} {
		cfg := tc.cfg
		cfg.Sysfs = t.TempDir()
		if cfg.Hostname == nil {
			cfg.Hostname = func() (string, error) { return "box", nil }
		}
		r, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Read(t.Context()); !errors.Is(err, broken) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %q", name, err, tc.want)
		}
	}
}

func TestNewErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		cfg  Config
		want string
	}{
		"no root":     {Config{Sysfs: "/nowhere/sys"}, "/nowhere/sys"},
		"a file":      {Config{Sysfs: file}, "not a directory"},
		"no links":    {Config{FS: struct{ fs.FS }{os.DirFS("/")}}, "symbolic links"},
		"negative":    {Config{Sysfs: t.TempDir(), Debounce: -time.Second}, "-1s"},
		"never again": {Config{Sysfs: t.TempDir(), Reread: -1}, "negative"},
	} {
		if _, err := New(tc.cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tc.want)
		}
	}
}

func TestBootID(t *testing.T) {
	file := filepath.Join(t.TempDir(), "boot_id")
	r, err := New(Config{Sysfs: t.TempDir(), BootIDPath: file})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.BootID(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}
	for content, want := range map[string]string{"1bb1b3a3-0e52-4d6d-b5a4-0d3e3a6d2a11\n": "1bb1b3a3-0e52-4d6d-b5a4-0d3e3a6d2a11", "\n": ""} {
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := r.BootID()
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v", content, got, err)
		}
	}
}

// BenchmarkRead reads a Spark with full-size GID tables from a real folder; the goal is 5 ms on two processors.
func BenchmarkRead(b *testing.B) {
	fx := loadFixture(b, "spark-one-cable")
	for _, dev := range []string{"rocep1s0f0", "rocep1s0f1", "roceP2p1s0f0", "roceP2p1s0f1"} {
		for row := 8; row < 256; row++ {
			if err := fx.Line(fmt.Sprintf("file class/infiniband/%s/ports/1/gids/%d 0000:0000:0000:0000:0000:0000:0000:0000", dev, row)); err != nil {
				b.Fatal(err)
			}
		}
	}
	r, err := New(Config{Sysfs: fx.Plant(b), Links: func(context.Context) ([]Link, error) { return fx.links, nil }})
	if err != nil {
		b.Fatal(err)
	}
	began, reads := processorTime(b), 0
	for b.Loop() {
		if _, err := r.Read(b.Context()); err != nil {
			b.Fatal(err)
		}
		reads++
	}
	// On a busy machine the clock tells of its neighbours.
	b.ReportMetric(float64((processorTime(b)-began).Microseconds())/1000/float64(reads), "cpu-ms/op")
}

func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
