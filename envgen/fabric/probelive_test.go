package fabric

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/scripts/apart"
)

// liveHost is a node whose NICs are real interfaces of this network namespace.
type liveHost struct {
	probe *Probe
	nics  []string
	mu    sync.Mutex
	last  envgen.Cabling
	stop  context.CancelFunc
	done  chan error
}

func goLive(t *testing.T, name string, nics ...string) *liveHost {
	t.Helper()
	h := &liveHost{nics: nics, done: make(chan error, 1)}
	var err error
	h.probe, err = NewProbe(ProbeConfig{Cluster: "c1", Node: "id-" + name, Host: name, Boot: "b",
		Keys: func() ([][]byte, error) { return [][]byte{secret("k")}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	h.look(t)
	ctx, stop := context.WithCancel(t.Context())
	h.stop = stop
	go func() {
		h.done <- h.probe.Run(ctx, func(c envgen.Cabling) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.last = c
		})
	}()
	return h
}

// look shows the probe the node's interfaces as they are now.
func (h *liveHost) look(t *testing.T) {
	t.Helper()
	links, err := kernelLinks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var inv envgen.Inventory
	for _, l := range links {
		if slices.Contains(h.nics, l.Name) {
			inv.NICs = append(inv.NICs, envgen.NIC{Name: l.Name, MAC: l.MAC, Up: l.Up, Carrier: l.Carrier, Kind: "device",
				Physical: true, PCIVendor: envgen.VendorMellanox})
		}
	}
	h.probe.Follow(inv)
}

func (h *liveHost) sees() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(words(h.last), ", ")
}

func awaitSight(t *testing.T, h *liveHost, what, want string) {
	t.Helper()
	begin := time.Now()
	for h.sees() != want {
		if time.Since(begin) > 60*time.Second {
			t.Fatalf("%s: sees %q, want %q", what, h.sees(), want)
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Logf("%s: known after %v", what, time.Since(begin).Round(time.Millisecond))
}

// TestProbeLive probes real interfaces, a cable (a veth pair) and a switch (a bridge), in a namespace of its own.
func TestProbeLive(t *testing.T) {
	apart.Run(t, "TestProbeInsideNamespace", unix.CLONE_NEWNET)
}

func TestProbeInsideNamespace(t *testing.T) {
	if !apart.Inside() {
		return // run by TestProbeLive
	}
	defer goleak.VerifyNone(t)
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	link := func(name string) netlink.Link {
		t.Helper()
		l, err := netlink.LinkByName(name)
		do(err)
		return l
	}
	pair := func(a, b string) {
		t.Helper()
		do(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: a}, PeerName: b}))
		do(netlink.LinkSetUp(link(a)))
		do(netlink.LinkSetUp(link(b)))
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "sw"}}
	do(netlink.LinkAdd(bridge))
	do(netlink.LinkSetUp(bridge))
	for _, nic := range []string{"as", "bs", "cs"} {
		pair(nic, nic+"-far")
		do(netlink.LinkSetMaster(link(nic+"-far"), bridge))
	}
	pair("a0", "b0")

	// Somebody listens on the cable and takes the times.
	tap, err := openPacketWire(envgen.NIC{Name: "b0"}, EtherTypeProbe)
	do(err)
	var times []time.Time
	untap, tapped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(tapped)
		for buf := make([]byte, maxFrame); ; {
			select {
			case <-untap:
				return
			case <-time.After(10 * time.Millisecond):
			}
			if _, _, err := tap.Receive(buf); err == nil {
				times = append(times, time.Now())
			}
		}
	}()

	a, b, c := goLive(t, "spark1", "a0", "as"), goLive(t, "spark2", "b0", "bs"), goLive(t, "spark3", "cs")
	awaitSight(t, a, "a cable and a switch", "a0 a0 spark2 b0, as as spark2 bs, as as spark3 cs")
	awaitSight(t, b, "the other end", "b0 b0 spark1 a0, bs bs spark1 as, bs bs spark3 cs")
	awaitSight(t, c, "on the switch", "cs cs spark1 as, cs cs spark2 bs")

	do(netlink.LinkSetDown(link("b0")))
	begin := time.Now()
	a.look(t)
	b.look(t)
	awaitSight(t, a, "cable pulled", "as as spark2 bs, as as spark3 cs")
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("a pulled cable is known after %v, want within 1 s on a quiet machine", took)
	}
	close(untap)
	<-tapped
	tap.Close()
	if len(times) < 2 {
		t.Errorf("%d frames on the cable", len(times))
	}
	for i := 1; i < len(times); i++ {
		if gap := times[i].Sub(times[i-1]); gap < probeBeat-200*time.Millisecond { // when they were read, not sent
			t.Errorf("two frames within %v", gap)
		}
	}

	// Set down and up again without a word to the probe: its socket breaks, and is opened anew.
	do(netlink.LinkSetUp(link("b0")))
	a.look(t)
	b.look(t)
	awaitSight(t, a, "plugged in again", "a0 a0 spark2 b0, as as spark2 bs, as as spark3 cs")
	do(netlink.LinkSetDown(link("a0")))
	awaitSight(t, a, "a socket broke", "as as spark2 bs, as as spark3 cs")
	do(netlink.LinkSetUp(link("a0")))
	awaitSight(t, a, "and was opened anew", "a0 a0 spark2 b0, as as spark2 bs, as as spark3 cs")

	do(netlink.LinkDel(link("a0"))) // with the socket open
	awaitSight(t, a, "the NIC gone", "as as spark2 bs, as as spark3 cs")

	// A host that only asks for an IPv4 address is heard.
	arp, err := openPacketWire(envgen.NIC{Name: "bs"}, EtherTypeARP)
	do(err)
	addr, err := netlink.ParseAddr("10.9.8.1/24")
	do(err)
	do(netlink.AddrAdd(link("cs"), addr))
	conn, err := net.Dial("udp", "10.9.8.2:9")
	do(err)
	_, err = conn.Write([]byte("who"))
	do(err)
	conn.Close()
	_, from, err := arp.Receive(make([]byte, 100))
	for wait := time.Now().Add(time.Minute); errors.Is(err, ErrNoFrame) && time.Now().Before(wait); {
		time.Sleep(10 * time.Millisecond)
		_, from, err = arp.Receive(make([]byte, 100))
	}
	if err != nil || mac(from).String() != link("cs").Attrs().HardwareAddr.String() {
		t.Errorf("heard %v, %v", mac(from), err)
	}
	arp.Close()
	if _, _, err := arp.Receive(make([]byte, 100)); err == nil || errors.Is(err, ErrNoFrame) {
		t.Error("a closed socket receives")
	}
	if _, err := openPacketWire(envgen.NIC{Name: "a0"}, EtherTypeProbe); err == nil || isDenied(err) {
		t.Errorf("a NIC that is gone: %v", err)
	}

	for _, h := range []*liveHost{a, b, c} {
		h.stop()
		if err := <-h.done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// TestProbeUnprivileged shows that what an agent without the right gets is what Probe takes for that.
func TestProbeUnprivileged(t *testing.T) {
	if os.Getenv(asNobody) != "" {
		if _, err := openPacketWire(envgen.NIC{Name: "lo"}, EtherTypeProbe); !isDenied(err) {
			t.Errorf("got %v", err)
		}
		return
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestProbeUnprivileged$", "-test.v")
	cmd.Env = append(os.Environ(), asNobody+"=1")
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "PASS: TestProbeUnprivileged") {
		t.Fatalf("%v\n%s", err, out)
	}
}
