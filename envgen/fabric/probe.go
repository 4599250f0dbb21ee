package fabric

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"reflect"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher/plain"
)

// ProbeConfig says who probes and with which keys.
type ProbeConfig struct {
	// Cluster is the cluster's id, Node this node's, Host its name: 1 to 64 bytes of printable text each. Frames
	// with another cluster's id come from non-members.
	Cluster string
	Node    string
	Host    string
	// Boot is the id of this boot of the machine (Reader.BootID). Only a digest of it is sent.
	Boot string
	// Keys gives the cluster's secrets, at least one: the first signs, all are accepted. It is called again
	// every KeysEvery, so that a rotation needs no restart.
	Keys func() ([][]byte, error)
	// KeysEvery: 0 means 30 s. That long after a new key was added everywhere, it may become the first.
	KeysEvery time.Duration
	// Open opens a NIC for one EtherType; nil means a packet socket, which needs CAP_NET_RAW.
	Open func(nic envgen.NIC, etherType uint16) (Wire, error)
	// Log gets what keeps the probe from working; nil discards.
	Log *slog.Logger
}

// Probe finds out what is cabled to what: on each of the node's fabric NICs it tells members at the other end which
// port of which node this is, and learns the same from them.
type Probe struct {
	cfg    ProbeConfig
	mu     sync.Mutex
	latest envgen.Inventory
	poke   chan struct{}
}

// NewProbe checks the configuration. It sends nothing; Run does.
func NewProbe(cfg ProbeConfig) (*Probe, error) {
	for _, text := range []struct{ what, value string }{{"cluster", cfg.Cluster}, {"node", cfg.Node}, {"host", cfg.Host}} {
		if text.value == "" || len(text.value) > maxText || !plain.Is(text.value) {
			return nil, fmt.Errorf("configure cable probe: %s %q: want 1 to %d bytes of printable text", text.what,
				text.value, maxText)
		}
	}
	if cfg.Keys == nil || cfg.KeysEvery < 0 {
		return nil, errors.New("configure cable probe: want a source of keys and a time that is not negative")
	}
	if cfg.KeysEvery == 0 {
		cfg.KeysEvery = 30 * time.Second
	}
	if cfg.Open == nil {
		cfg.Open = openPacketWire
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Probe{cfg: cfg, poke: make(chan struct{}, 1)}, nil
}

// Follow takes the node's inventory whenever that has changed: Run then opens the fabric NICs that have a carrier
// and closes the others. It never blocks; any goroutine may call it, also before Run.
func (p *Probe) Follow(inv envgen.Inventory) {
	p.mu.Lock()
	p.latest = inv
	p.mu.Unlock()
	select {
	case p.poke <- struct{}{}:
	default: // a wake-up is pending, and will find this inventory
	}
}

// Run probes until ctx ends and returns its cause. It calls changed with what is known at first and after each
// change, from one goroutine, one call at a time. What the kernel refuses is reported once, in Cabling.Trouble and
// in the log; it never ends Run.
func (p *Probe) Run(ctx context.Context, changed func(envgen.Cabling)) error {
	r := &probing{
		cfg: p.cfg, changed: changed,
		ears: map[string]*openEar{}, ours: map[session]string{}, ports: map[string]time.Time{}, own: map[mac]bool{},
		retry: map[string]time.Time{}, said: map[string]bool{}, dirty: true,
		// A predecessor of this agent may have sent just now.
		quietUntil: time.Now().Add(probeBeat),
	}
	defer r.closeAll()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-p.poke:
			p.mu.Lock()
			r.inv = p.latest
			p.mu.Unlock()
			r.follow(time.Now())
		case <-timer.C:
		}
		timer.Reset(time.Until(r.tick(time.Now())))
	}
}

const (
	// tellDelay combines simultaneous changes, as when a switch comes up.
	tellDelay = 100 * time.Millisecond
	// reopenDelay is the pause before a NIC whose socket broke is opened again.
	reopenDelay = probeBeat
	// Nothing wakes the probe when a frame arrives: on a switch each of many neighbours sends one in two seconds. It
	// looks at its sockets whenever it does something anyhow, and no later than lookEvery after the last look;
	// quickLook for as long as a new neighbour takes after the last change.
	lookEvery = time.Second
	quickLook = 100 * time.Millisecond
	// atOnce is how many frames of one socket are taken in a look: as many as a fabric of our size can send. In a
	// flood the kernel drops the rest, which costs nothing.
	atOnce = 512
)

// probing is the state of one Run; only its goroutine uses it.
type probing struct {
	cfg     ProbeConfig
	changed func(envgen.Cabling)

	inv    envgen.Inventory
	own    map[mac]bool // of all our interfaces
	keys   *keyring
	keysAt time.Time // when to call Keys again
	ears   map[string]*openEar
	ours   map[session]string   // our open sessions -> slot
	ports  map[string]time.Time // slot -> earliest next frame
	retry  map[string]time.Time // NIC -> earliest next attempt

	quietUntil time.Time
	quickUntil time.Time // looks are quick
	buf        [maxFrame]byte

	denied  bool // by the kernel, permanently
	trouble string
	said    map[string]bool

	dirty  bool
	tellAt time.Time
	last   *envgen.Cabling
}

// openEar is an ear and its sockets.
type openEar struct {
	*ear
	wires []Wire // the probe's first
}

// look takes what has arrived.
func (r *probing) look(now time.Time) {
	for _, e := range r.ears {
		for i, w := range e.wires {
			if err := r.drain(e, w, i > 0, now); err != nil {
				// Set down or removed: the inventory will say so. After any other error it is opened
				// again.
				r.cfg.Log.Debug("lost the cable probe's socket", "nic", e.nic.Name, "err", err)
				r.close(e)
				r.retry[e.nic.Name] = now.Add(reopenDelay)
				break
			}
		}
	}
}

func (r *probing) drain(e *openEar, w Wire, arp bool, now time.Time) error {
	for range atOnce {
		size, from, err := w.Receive(r.buf[:])
		switch {
		case errors.Is(err, ErrNoFrame):
			return nil
		case err != nil:
			return err
		}
		r.take(e, arp, r.buf[:size], from, now)
	}
	return nil
}

// take evaluates a frame.
func (r *probing) take(e *openEar, arp bool, payload []byte, from mac, now time.Time) {
	if arp {
		r.notice(e, from, envgen.NonMemberARP, now)
		return
	}
	f, err := r.keys.open(payload)
	switch {
	case err == nil:
		r.dirty = e.hear(f, r.cfg.Node, r.ours, now) || r.dirty
	case errors.Is(err, errNotProbe):
	case errors.Is(err, errOtherCluster):
		r.notice(e, from, envgen.NonMemberProbe, now)
	default: // forged, newer or broken: ignored
		r.sayOnce("drop a cable probe", e.nic.Name+from.String()+err.Error(), "nic", e.nic.Name, "from", from, "err", err)
	}
}

// notice handles a frame that proves nothing, except one from a twin or another port of
// ours on the same switch.
func (r *probing) notice(e *openEar, from mac, how string, now time.Time) {
	if !r.own[from] {
		r.dirty = e.notice(from, how, now) || r.dirty
	}
}

// follow opens and closes NICs by the inventory.
func (r *probing) follow(now time.Time) {
	clear(r.own)
	for _, n := range r.inv.NICs {
		if m, err := net.ParseMAC(n.MAC); err == nil && len(m) == len(mac{}) {
			r.own[mac(m)] = true
		}
	}
	want := map[string]envgen.CableNIC{}
	for _, c := range envgen.CableNICs(r.inv) {
		if c.NIC.HasCarrier() {
			want[c.NIC.Name] = c
		}
	}
	for name, e := range r.ears {
		c, still := want[name]
		samePCI := reflect.DeepEqual(c.NIC.PCI, e.nic.PCI)
		if !still || c.Slot != e.slot || c.NIC.MAC != e.nic.MAC || !samePCI {
			r.close(e)
		}
	}
	for name := range r.retry {
		if _, still := want[name]; !still {
			delete(r.retry, name)
		}
	}
	for slot, at := range r.ports {
		if at.Before(now) {
			delete(r.ports, slot)
		}
	}
}

// openMissing opens the NICs that have a carrier and no socket, and gives the time of the next
// attempt.
func (r *probing) openMissing(now time.Time) (next time.Time) {
	if r.denied || r.keys == nil {
		return next
	}
	for _, c := range envgen.CableNICs(r.inv) {
		name := c.NIC.Name
		if !c.NIC.HasCarrier() || r.ears[name] != nil {
			continue
		}
		if at := r.retry[name]; at.After(now) {
			next = sooner(next, at)
			continue
		}
		err := r.open(c, now)
		switch {
		case isDenied(err): // trying again is useless
			r.denied, r.dirty = true, true
			r.trouble = "the cable probe may not open packet sockets: run the agent as root or with CAP_NET_RAW, and allow " +
				"it AF_PACKET"
			r.cfg.Log.Warn("cannot probe cables; cabling stays unknown", "remedy", r.trouble, "err", err)
			return time.Time{}
		case err != nil:
			r.retry[name] = now.Add(reopenDelay)
			next = sooner(next, r.retry[name])
			r.sayOnce("cannot probe a cable yet", name+err.Error(), "nic", name, "err", err)
		}
	}
	return next
}

func (r *probing) open(c envgen.CableNIC, now time.Time) error {
	m, err := net.ParseMAC(c.NIC.MAC)
	if err != nil || len(m) != len(mac{}) {
		return fmt.Errorf("open %s: bad MAC %q", c.NIC.Name, c.NIC.MAC)
	}
	e := &openEar{ear: newEar(c, mac(m), newSession())}
	e.young, e.youngUntil = true, now.Add(silenceSpeaks)
	for _, etherType := range []uint16{EtherTypeProbe, EtherTypeARP} {
		w, err := r.cfg.Open(c.NIC, etherType)
		if err != nil {
			for _, w := range e.wires {
				w.Close()
			}
			return err
		}
		e.wires = append(e.wires, w)
	}
	delete(r.retry, c.NIC.Name)
	r.ears[c.NIC.Name], r.ours[e.session] = e, e.slot
	r.dirty = true
	return nil
}

// sayOnce logs each warning once, for a bounded number of keys.
func (r *probing) sayOnce(message, key string, args ...any) {
	if r.said[key] || len(r.said) >= 100 {
		return
	}
	r.said[key] = true
	r.cfg.Log.Warn(message, args...)
}

func (r *probing) close(e *openEar) {
	delete(r.ears, e.nic.Name)
	delete(r.ours, e.session)
	r.dirty = true
	for _, w := range e.wires {
		w.Close()
	}
}

func (r *probing) closeAll() {
	for _, e := range r.ears {
		r.close(e)
	}
}

// tick does what is due and gives the time when something is due next; zero if nothing
// is.
func (r *probing) tick(now time.Time) (next time.Time) {
	if !r.keysAt.After(now) {
		r.loadKeys()
		r.keysAt = now.Add(r.cfg.KeysEvery)
	}
	next = sooner(r.keysAt, r.openMissing(now))
	r.look(now)
	for _, e := range r.ears {
		at, changed := e.expire(now)
		r.dirty = r.dirty || changed
		next = sooner(next, at)
	}
	next = sooner(next, r.send(now))
	if r.dirty {
		r.quickUntil = now.Add(silenceSpeaks)
	}
	switch {
	case len(r.ears) == 0:
	case now.Before(r.quickUntil):
		next = sooner(next, now.Add(quickLook))
	default:
		next = sooner(next, now.Add(lookEvery))
	}
	if !r.dirty {
		return next
	}
	if r.tellAt.IsZero() {
		r.tellAt = now
		if r.last != nil { // the first state is told without delay
			r.tellAt = now.Add(tellDelay)
		}
	}
	if r.tellAt.After(now) {
		return sooner(next, r.tellAt)
	}
	r.dirty, r.tellAt = false, time.Time{}
	r.tell()
	return next
}

// send sends for each port whose beat has come, on the twin that has been silent for longest. A NIC that came up
// sends at once if its port has been silent for a beat, otherwise at the port's next beat; so does one with a new
// neighbour.
func (r *probing) send(now time.Time) (next time.Time) {
	turn := map[string]*openEar{}
	twins := map[string]int{}
	for name, e := range r.ears {
		twins[e.slot]++
		first := turn[e.slot]
		if first == nil || e.lastSent.Before(first.lastSent) || e.lastSent.Equal(first.lastSent) && name < first.nic.Name {
			turn[e.slot] = e
		}
	}
	for slot, e := range turn {
		if at := later(r.quietUntil, r.ports[slot]); at.After(now) {
			next = sooner(next, at)
			continue
		}
		r.ports[slot] = now.Add(probeBeat + rand.N(probeJitter))
		next = sooner(next, r.ports[slot])
		f := e.next(frame{node: r.cfg.Node, host: r.cfg.Host, boot: shortDigest(r.cfg.Boot)}, twins[slot], now)
		if err := e.wires[0].Send(r.keys.seal(f)); err != nil {
			// It is lost, as on a wire. If the socket is broken, Receive reports it
			// too.
			r.cfg.Log.Debug("cable probe not sent", "nic", e.nic.Name, "err", err)
		}
	}
	return next
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (r *probing) loadKeys() {
	secrets, err := r.cfg.Keys()
	var keys *keyring
	if err == nil {
		keys, err = newKeyring(r.cfg.Cluster, secrets)
	}
	if err != nil {
		r.sayOnce("cannot load the cable probe's keys", err.Error(), "err", err)
		if r.keys == nil { // otherwise the old keys are kept
			r.trouble, r.dirty = err.Error(), true
		}
		return
	}
	if r.keys == nil {
		r.trouble, r.dirty = "", true
	}
	r.keys = keys
}

func (r *probing) tell() {
	c := envgen.Cabling{Trouble: r.trouble}
	for _, e := range r.ears {
		e.cabling(&c)
	}
	sortCabling(&c)
	if r.last == nil || !reflect.DeepEqual(*r.last, c) {
		r.last = &c
		r.changed(c)
	}
}
