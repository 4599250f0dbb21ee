package fabric

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
)

// ether is all cables and switches of a test: whoever is on the same one hears the others.
type ether struct {
	mu    sync.Mutex
	on    map[*socket]string // the cable's or the switch's name; absent without one
	sent  []sent             // every probe frame, in order
	tap   func(from, to *socket) bool
	begin time.Time
}

// sent is one frame as it was on the wire.
type sent struct {
	at      time.Duration
	from    *socket
	wire    string
	payload []byte
}

// socket is a NIC's end of a cable.
type socket struct {
	ether *ether
	host  *testHost
	name  string
	mac   mac
	wires map[*memWire]uint16
	fail  error // for the next Open
	// opened counts how often it was opened for probes; broken makes its wires break at once.
	opened int
	broken bool
}

// memWire is a Wire in memory.
type memWire struct {
	socket *socket
	in     chan packet
	broken chan struct{}
	once   sync.Once
	err    error
}

type packet struct {
	from    mac
	payload []byte
}

func newEther() *ether { return &ether{on: map[*socket]string{}, begin: time.Now()} }

func (w *memWire) Send(payload []byte) error {
	e := w.socket.ether
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sent = append(e.sent, sent{time.Since(e.begin), w.socket, e.on[w.socket], bytes.Clone(payload)})
	e.deliver(w.socket, e.on[w.socket], EtherTypeProbe, packet{w.socket.mac, bytes.Clone(payload)})
	return nil
}

// deliver needs e.mu. from may be nil: a non-member.
func (e *ether) deliver(from *socket, wire string, etherType uint16, p packet) {
	if wire == "" {
		return
	}
	for to, on := range e.on {
		if to == from || on != wire || e.tap != nil && !e.tap(from, to) {
			continue
		}
		for w, kind := range to.wires {
			if kind == etherType {
				select {
				case w.in <- p:
				default: // the socket's buffer is full
				}
			}
		}
	}
}

// inject puts a frame on a wire that no host sent.
func (e *ether) inject(wire string, etherType uint16, from mac, payload []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	// As on a real wire, short frames arrive with padding.
	payload = append(bytes.Clone(payload), make([]byte, max(0, 46-len(payload)))...)
	e.deliver(nil, wire, etherType, packet{from, payload})
}

func (e *ether) frames() []sent {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]sent(nil), e.sent...)
}

func (w *memWire) Receive(buf []byte) (int, [6]byte, error) {
	select {
	case p := <-w.in:
		return copy(buf, p.payload), p.from, nil
	case <-w.broken:
		return 0, [6]byte{}, w.err
	default:
		return 0, [6]byte{}, ErrNoFrame
	}
}

func (w *memWire) fail(err error) {
	w.once.Do(func() {
		w.err = err
		close(w.broken)
	})
}

func (w *memWire) Close() error {
	w.fail(net.ErrClosed)
	w.socket.ether.mu.Lock()
	defer w.socket.ether.mu.Unlock()
	delete(w.socket.wires, w)
	return nil
}

// testHost is a machine with NICs, and the probe that runs on it.
type testHost struct {
	t     *testing.T
	ether *ether
	id    string
	name  string
	log   bytes.Buffer

	mu      sync.Mutex
	keys    [][]byte
	inv     envgen.Inventory
	sockets map[string]*socket
	probe   *Probe
	stop    context.CancelCauseFunc
	done    chan error
	news    []envgen.Cabling
}

var sparkNICs = []struct{ nic, hca, pci string }{
	{"enp1s0f0np0", "rocep1s0f0", "0000:01:00.0"}, {"enP2p1s0f0np0", "roceP2p1s0f0", "0002:01:00.0"},
	{"enp1s0f1np1", "rocep1s0f1", "0000:01:00.1"}, {"enP2p1s0f1np1", "roceP2p1s0f1", "0002:01:00.1"},
}

// The four NICs of a Spark by port, for short.
var (
	port0 = []string{"enp1s0f0np0", "enP2p1s0f0np0"}
	port1 = []string{"enp1s0f1np1", "enP2p1s0f1np1"}
)

const (
	slot0 = "01:00.0"
	slot1 = "01:00.1"
)

// secret is a key of 32 bytes.
func secret(s string) []byte { return []byte(strings.Repeat(s, 32)[:32]) }

// spark makes a GB10 machine without cables whose probe runs.
func (e *ether) spark(t *testing.T, name string) *testHost {
	h := e.host(t, name)
	serial := byte(len(name)) + name[len(name)-1]
	for i, n := range sparkNICs {
		h.add(n.nic, n.hca, n.pci, mac{2, 0, 0, 0, serial, byte(i)})
	}
	h.start()
	return h
}

// host makes a machine without NICs whose probe does not run yet.
func (e *ether) host(t *testing.T, name string) *testHost {
	h := &testHost{t: t, ether: e, id: "id-" + name, name: name, keys: [][]byte{secret("k")}, sockets: map[string]*socket{}}
	h.inv.Host = name
	t.Cleanup(h.halt)
	return h
}

func (h *testHost) add(nic, hca, pci string, m mac) {
	addr, err := envgen.ParsePCIAddress(pci)
	if err != nil {
		h.t.Fatal(err)
	}
	h.sockets[nic] = &socket{ether: h.ether, host: h, name: nic, mac: m, wires: map[*memWire]uint16{}}
	h.inv.NICs = append(h.inv.NICs, envgen.NIC{Name: nic, PCI: &addr, PCIVendor: envgen.VendorMellanox, MAC: m.String(),
		Up: true, Carrier: new(false), Kind: "device", Physical: true})
	h.inv.Devices = append(h.inv.Devices, envgen.HCA{Name: hca, PCI: &addr, LinkLayer: envgen.LayerEthernet, Netdev: nic})
}

func (h *testHost) open(nic envgen.NIC, etherType uint16) (Wire, error) {
	h.ether.mu.Lock()
	defer h.ether.mu.Unlock()
	s := h.sockets[nic.Name]
	if s.fail != nil {
		return nil, s.fail
	}
	w := &memWire{socket: s, in: make(chan packet, 256), broken: make(chan struct{})}
	s.wires[w] = etherType
	if etherType == EtherTypeProbe {
		s.opened++
	}
	if s.broken {
		w.fail(syscall.ENETDOWN)
	}
	return w, nil
}

func (h *testHost) start() {
	h.t.Helper()
	var err error
	h.probe, err = NewProbe(ProbeConfig{Cluster: "c1", Node: h.id, Host: h.name, Boot: "boot-" + h.name, Open: h.open,
		Log: slog.New(slog.NewTextHandler(io.Writer(&h.log), nil)), Keys: func() ([][]byte, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			if len(h.keys) == 0 {
				return nil, fmt.Errorf("read keys: no such file")
			}
			return h.keys, nil
		}})
	if err != nil {
		h.t.Fatal(err)
	}
	h.run()
}

func (h *testHost) run() {
	ctx, stop := context.WithCancelCause(context.Background())
	h.stop, h.done = stop, make(chan error, 1)
	probe, done := h.probe, h.done
	probe.Follow(h.inventory())
	go func() {
		done <- probe.Run(ctx, func(c envgen.Cabling) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.news = append(h.news, c)
		})
	}()
}

func (h *testHost) halt() {
	if h.stop != nil {
		h.stop(errStopped)
		if err := <-h.done; err != errStopped {
			h.t.Errorf("Run of %s gave %v, want the cause", h.name, err)
		}
		h.stop = nil
	}
}

func (h *testHost) setKeys(keys ...[]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keys = keys
}

// inventory is a copy, for the probe keeps it.
func (h *testHost) inventory() envgen.Inventory {
	inv := h.inv
	inv.NICs, inv.Devices = slices.Clone(inv.NICs), slices.Clone(inv.Devices)
	return inv
}

// told is what the probe said last, as the cluster gets it.
func (h *testHost) told() envgen.Cabling {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.news) == 0 {
		return envgen.Cabling{}
	}
	return *h.inv.WithCabling(h.news[len(h.news)-1]).Cabling
}

// changes is how often the probe has said something new.
func (h *testHost) changes() int {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.news)
}

// plug puts NICs on a cable or switch; "" pulls them. Carrier follows when two or more are on it, but for a switch,
// which is called sw...: there it is the NIC's own.
func (e *ether) plug(wire string, h *testHost, nics ...string) {
	e.mu.Lock()
	for _, n := range nics {
		delete(e.on, h.sockets[n])
		if wire != "" {
			e.on[h.sockets[n]] = wire
		}
	}
	e.mu.Unlock()
	e.carry(h)
}

// cable joins a port of one machine with one of another: both twins of each share the wire.
func (e *ether) cable(wire string, a *testHost, an []string, b *testHost, bn []string) {
	e.plug(wire, a, an...)
	e.plug(wire, b, bn...)
	e.carry(a)
}

// cut pulls a direct cable: both ends lose their carrier.
func (e *ether) cut(a *testHost, an []string, b *testHost, bn []string) {
	e.plug("", a, an...)
	e.plug("", b, bn...)
}

// carry tells a machine which of its NICs have a carrier.
func (e *ether) carry(h *testHost) {
	e.mu.Lock()
	for i, n := range h.inv.NICs {
		h.inv.NICs[i].Carrier = new(e.on[h.sockets[n.Name]] != "")
	}
	e.mu.Unlock()
	if h.probe != nil {
		h.probe.Follow(h.inventory())
	}
}

// words are a machine's sightings: our NIC, then the neighbour's host, NIC, and what is special about it.
func words(c envgen.Cabling) (lines []string) {
	for _, s := range c.Sightings {
		line := fmt.Sprintf("%s %s %s %s", s.Slot, s.NIC, s.Peer.Host, s.Peer.NIC)
		if s.Clone {
			line += " clone"
		}
		lines = append(lines, line)
	}
	return lines
}

// cables is what the cluster makes of all sightings, as "host slot - host slot".
func cables(hosts ...*testHost) (lines []string) {
	var views []envgen.NodeView
	name := map[string]string{}
	for _, h := range hosts {
		views = append(views, envgen.NodeView{ID: h.id, Host: h.name, Inventory: h.inv.WithCabling(h.told())})
		name[h.id] = h.name
	}
	for _, c := range envgen.Cables(views) {
		lines = append(lines, fmt.Sprintf("%s %s - %s %s", name[c.A.Node], c.A.Port, name[c.B.Node], c.B.Port))
	}
	return lines
}

// checkBeat fails where a physical port sent two frames within less than two seconds.
func (e *ether) checkBeat(t *testing.T) {
	t.Helper()
	last := map[string]time.Duration{}
	for _, s := range e.frames() {
		slot := ""
		for _, c := range envgen.CableNICs(s.from.host.inv) {
			if c.NIC.Name == s.from.name {
				slot = c.Slot
			}
		}
		port := s.from.host.id + " " + s.from.host.name + " " + slot
		if before, spoke := last[port]; spoke && s.at-before < probeBeat {
			t.Fatalf("%s sent at %v and %v: two frames within %v", port, before, s.at, s.at-before)
		}
		last[port] = s.at
	}
}
