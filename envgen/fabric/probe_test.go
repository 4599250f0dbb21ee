package fabric

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
)

func wantWords(t *testing.T, h *testHost, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, words(h.told())); diff != "" {
		t.Errorf("%s sees (-want +got):\n%s", h.name, diff)
	}
}

func wantCables(t *testing.T, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cables (-want +got):\n%s", diff)
	}
}

func TestProbePair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEther()
		a, b := e.spark(t, "spark1"), e.spark(t, "spark2")
		time.Sleep(time.Minute)
		wantWords(t, a)
		if n := len(e.frames()); n != 0 {
			t.Errorf("%d frames without any carrier", n)
		}
		e.cable("c", a, port0, b, port0)    // both twins of a port hear both of the other
		time.Sleep(4400 * time.Millisecond) // port to port
		wantCables(t, cables(a, b), "spark1 01:00.0 - spark2 01:00.0")
		time.Sleep(2*(probeBeat+probeJitter) + 2*quickLook) // twin to twin
		wantWords(t, a,
			"01:00.0 enP2p1s0f0np0 spark2 enP2p1s0f0np0", "01:00.0 enP2p1s0f0np0 spark2 enp1s0f0np0",
			"01:00.0 enp1s0f0np0 spark2 enP2p1s0f0np0", "01:00.0 enp1s0f0np0 spark2 enp1s0f0np0")
		wantCables(t, cables(a, b), "spark1 01:00.0 - spark2 01:00.0")
		got := a.told()
		if diff := cmp.Diff(slices.Sorted(slices.Values(port0)), got.Probed); diff != "" {
			t.Errorf("probed (-want +got):\n%s", diff)
		}
		s := got.Sightings[1]
		if s.Peer.Node != "id-spark2" || s.Peer.Slot != slot0 || s.Peer.PCI.String() != "0000:01:00.0" || s.Peer.MAC != b.sockets[port0[0]].mac.String() ||
			len(s.Peer.Boot) != 16 || s.Since.IsZero() {
			t.Errorf("got %+v", s)
		}

		told := a.changes() + b.changes() // and then nothing new, however many frames there are
		frames := len(e.frames())
		time.Sleep(time.Hour)
		if now := a.changes() + b.changes(); now != told {
			t.Errorf("told %d times in an hour without change", now-told)
		}
		if n := len(e.frames()) - frames; n < 2*1714 || n > 2*1800 {
			t.Errorf("%d frames in an hour on one cable, want one each 2.0 to 2.1 s and end", n)
		}
		e.checkBeat(t)
	})
}

func TestProbeSingleTwin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEther()
		a, b := e.spark(t, "spark1"), e.spark(t, "spark2")
		e.cable("c", a, port0[:1], b, port1[1:])
		time.Sleep(4400 * time.Millisecond) // alone it has the port's beat for itself
		wantWords(t, a, "01:00.0 enp1s0f0np0 spark2 enP2p1s0f1np1")
		wantWords(t, b, "01:00.1 enP2p1s0f1np1 spark1 enp1s0f0np0")
		// The twin comes late: the first one's sightings last through the slower beat.
		told := len(a.told().Sightings)
		e.plug("c", a, port0[1])
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			if now := len(a.told().Sightings); now < told {
				t.Fatalf("lost a sighting to the twin: %q", words(a.told()))
			}
		}
		wantWords(t, a, "01:00.0 enP2p1s0f0np0 spark2 enP2p1s0f1np1", "01:00.0 enp1s0f0np0 spark2 enP2p1s0f1np1")
		e.checkBeat(t)
	})
}

func TestProbeShapes(t *testing.T) {
	for _, c := range []struct {
		name string
		wire func(e *ether, h []*testHost)
		want []string
	}{
		{"two cables", func(e *ether, h []*testHost) {
			e.cable("c0", h[0], port0, h[1], port0)
			e.cable("c1", h[0], port1, h[1], port1)
		}, []string{"spark1 01:00.0 - spark2 01:00.0", "spark1 01:00.1 - spark2 01:00.1"}},
		{"ring", func(e *ether, h []*testHost) {
			e.cable("c0", h[0], port0, h[1], port1)
			e.cable("c1", h[1], port0, h[2], port1)
			e.cable("c2", h[2], port0, h[0], port1)
		}, []string{"spark1 01:00.0 - spark2 01:00.1", "spark1 01:00.1 - spark3 01:00.0", "spark2 01:00.0 - spark3 01:00.1"}},
		{"switch", func(e *ether, h []*testHost) {
			for _, h := range h {
				e.plug("sw", h, port0...)
			}
		}, []string{"spark1 01:00.0 - spark2 01:00.0", "spark1 01:00.0 - spark3 01:00.0", "spark2 01:00.0 - spark3 01:00.0"}},
		{"a cable from a machine to itself", func(e *ether, h []*testHost) {
			e.cable("c0", h[0], port0, h[0], port1)
		}, []string{"spark1 01:00.0 - spark1 01:00.1"}},
		{"a port with itself, as behind a switch alone", func(e *ether, h []*testHost) {
			e.plug("sw", h[0], port0...)
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEther()
				hosts := []*testHost{e.spark(t, "spark1"), e.spark(t, "spark2"), e.spark(t, "spark3")}
				c.wire(e, hosts)
				time.Sleep(10 * time.Second)
				wantCables(t, cables(hosts...), c.want...)
				for _, h := range hosts {
					for _, s := range h.told().Sightings {
						if s.Clone {
							t.Errorf("%s took its own port for a clone: %+v", h.name, s)
						}
					}
				}
				e.checkBeat(t)
			})
		})
	}
}

// More neighbours than a frame has room for are echoed in turn, and the announced time says so: all are seen, by all,
// without a break.
func TestEarEchoesInTurn(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	at := func(name string, i int) *ear {
		return newEar(envgen.CableNIC{NIC: envgen.NIC{Name: name}, Slot: name}, mac{2, byte(i >> 8), byte(i)}, session(i))
	}
	hub := at("hub", 1)
	var rim []*ear
	for i := range 3*maxEchoes - 5 {
		rim = append(rim, at(fmt.Sprint("rim", i), i+2))
	}
	broken := 0
	for beat := range 60 {
		now = now.Add(probeBeat)
		for _, e := range rim {
			hub.hear(e.next(frame{node: e.slot}, 1, now), "hub", nil, now)
		}
		f := hub.next(frame{node: "hub"}, 1, now)
		if beat > 0 && f.every != 3*probeBeat {
			t.Fatalf("%d neighbours are echoed every %v", len(rim), f.every)
		}
		for _, e := range rim {
			e.hear(f, e.slot, nil, now)
		}
		if beat < 6 {
			continue
		}
		for _, e := range append([]*ear{hub}, rim...) {
			if _, changed := e.expire(now); changed {
				broken++
			}
			var c envgen.Cabling
			e.cabling(&c)
			if want := map[bool]int{true: len(rim), false: 1}[e == hub]; len(c.Sightings) != want {
				t.Fatalf("beat %d: %s sees %d of %d", beat, e.slot, len(c.Sightings), want)
			}
		}
	}
	if broken > 0 {
		t.Errorf("%d sightings broke", broken)
	}
}

func TestProbeCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEther()
		a, b, c := e.spark(t, "spark1"), e.spark(t, "spark2"), e.spark(t, "spark3")
		e.cable("c", a, port0, b, port0)
		time.Sleep(10 * time.Second)
		e.cut(a, port0, b, port0)
		wantWords(t, a) // by the inventory, at once
		time.Sleep(tellDelay)
		synctest.Wait()
		for _, h := range []*testHost{a, b} {
			if last := h.news[len(h.news)-1]; len(last.Sightings) != 0 || len(last.Probed) != 0 {
				t.Errorf("%s still says %+v", h.name, last)
			}
		}
		frames := len(e.frames())
		time.Sleep(10 * time.Second)
		if n := len(e.frames()); n != frames {
			t.Errorf("%d frames into pulled cables", n-frames)
		}

		// Plugged in elsewhere.
		e.cable("c", a, port0, c, port1)
		time.Sleep(10 * time.Second)
		wantCables(t, cables(a, b, c), "spark1 01:00.0 - spark3 01:00.1")
		e.checkBeat(t)
	})
}

// Behind a switch only the one whose cable was pulled loses its carrier. The others notice the silence.
func TestProbeSilenceBehindSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEther()
		a, b, c := e.spark(t, "spark1"), e.spark(t, "spark2"), e.spark(t, "spark3")
		for _, h := range []*testHost{a, b, c} {
			e.plug("sw", h, port0[0])
		}
		time.Sleep(10 * time.Second)
		wantWords(t, a, "01:00.0 enp1s0f0np0 spark2 enp1s0f0np0", "01:00.0 enp1s0f0np0 spark3 enp1s0f0np0")
		e.plug("", c, port0[0])
		time.Sleep(4 * time.Second)
		wantWords(t, a, "01:00.0 enp1s0f0np0 spark2 enp1s0f0np0", "01:00.0 enp1s0f0np0 spark3 enp1s0f0np0")
		time.Sleep(missedBeats*probeBeat + probeSlack + tellDelay - 4*time.Second)
		wantWords(t, a, "01:00.0 enp1s0f0np0 spark2 enp1s0f0np0")
		wantWords(t, c)
	})
}

// A link that carries one way only is none, and stops being one when a direction dies.
func TestProbeOneWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEther()
		a, b := e.spark(t, "spark1"), e.spark(t, "spark2")
		deaf := func(from, to *socket) bool { return to.host != b }
		e.tap = deaf
		e.cable("c", a, port0[:1], b, port0[:1])
		time.Sleep(time.Minute)
		wantWords(t, a)
		wantWords(t, b)
		e.setTap(nil)
		time.Sleep(5 * time.Second)
		wantWords(t, a, "01:00.0 enp1s0f0np0 spark2 enp1s0f0np0")
		e.setTap(deaf)
		time.Sleep(missedBeats*probeBeat + probeBeat + 2*probeSlack) // a still hears b, who hears nobody
		wantWords(t, a)
		wantWords(t, b)
		e.setTap(nil)
		time.Sleep(5 * time.Second)
		wantWords(t, a, "01:00.0 enp1s0f0np0 spark2 enp1s0f0np0")
	})
}

func (e *ether) setTap(tap func(from, to *socket) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tap = tap
}

// A peer whose agent starts anew is the same neighbour; nothing is told.
func TestProbePeerRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEther()
		a, b := e.spark(t, "spark1"), e.spark(t, "spark2")
		e.cable("c", a, port0, b, port0)
		time.Sleep(10 * time.Second)
		told, saw := a.changes(), words(a.told())
		for range 5 {
			b.halt()
			time.Sleep(time.Second)
			b.start()
			time.Sleep(10 * time.Second)
			if diff := cmp.Diff(saw, words(a.told())); diff != "" {
				t.Fatalf("after a restart of the peer (-before +after):\n%s", diff)
			}
		}
		if now := a.changes(); now != told {
			t.Errorf("told %d times of restarts", now-told)
		}
	})
}

func TestProbeKeyRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEther()
		a, b := e.spark(t, "spark1"), e.spark(t, "spark2")
		e.cable("c", a, port0, b, port0)
		time.Sleep(10 * time.Second)
		told := a.changes() + b.changes()
		old, young := secret("k"), secret("n")
		for _, ring := range [][][]byte{{old, young}, {young, old}, {young}} {
			a.setKeys(ring...)
			time.Sleep(45 * time.Second) // one node has it before the other
			b.setKeys(ring...)
			time.Sleep(45 * time.Second)
		}
		if now := a.changes() + b.changes(); now != told {
			t.Errorf("told %d times in a rotation", now-told)
		}
		b.setKeys() // unreadable for a while: the old ones stay
		time.Sleep(time.Minute)
		if now := a.changes() + b.changes(); now != told {
			t.Errorf("told %d times of a key file that cannot be read", now-told)
		}
		if n := strings.Count(b.log.String(), "no such file"); n != 1 {
			t.Errorf("said %d times that the keys cannot be read, want once:\n%s", n, &b.log)
		}
		b.setKeys(old) // left behind
		time.Sleep(time.Minute)
		wantWords(t, a)
		wantWords(t, b)
	})
}

func TestProbeWithoutKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEther()
		a, b := e.host(t, "spark1"), e.spark(t, "spark2")
		a.add(port0[0], "rocep1s0f0", "0000:01:00.0", mac{2, 1})
		a.setKeys()
		a.start()
		e.cable("c", a, port0[:1], b, port0[:1])
		time.Sleep(time.Minute)
		if c := a.told(); !strings.Contains(c.Trouble, "no such file") || len(c.Probed) != 0 {
			t.Errorf("got %+v", c)
		}
		a.setKeys(secret("k"))
		time.Sleep(time.Minute)
		if c := a.told(); c.Trouble != "" || len(c.Sightings) != 1 {
			t.Errorf("got %+v", c)
		}
	})
}

// Two machines with one node id: copied with their state.
func TestProbeClone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEther()
		a, b := e.spark(t, "spark1"), e.spark(t, "spark2")
		twin := e.host(t, "spark2-copy")
		twin.id = b.id
		twin.add(port0[0], "rocep1s0f0", "0000:01:00.0", mac{2, 9, 9, 9, 9, 9})
		twin.start()
		for _, h := range []*testHost{a, b, twin} {
			e.plug("sw", h, port0[0])
		}
		time.Sleep(10 * time.Second)
		wantWords(t, a, "01:00.0 enp1s0f0np0 spark2 enp1s0f0np0", "01:00.0 enp1s0f0np0 spark2-copy enp1s0f0np0")
		wantWords(t, b, "01:00.0 enp1s0f0np0 spark1 enp1s0f0np0", "01:00.0 enp1s0f0np0 spark2-copy enp1s0f0np0 clone")
		wantWords(t, twin, "01:00.0 enp1s0f0np0 spark1 enp1s0f0np0", "01:00.0 enp1s0f0np0 spark2 enp1s0f0np0 clone")
		wantCables(t, cables(a, b), "spark1 01:00.0 - spark2 01:00.0")
	})
}

// What the kernel refuses is said once, and all else goes on.
func TestProbeDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEther()
		a := e.spark(t, "spark1")
		b := e.spark(t, "spark2")
		synctest.Wait()
		for _, s := range a.sockets {
			s.fail = fmt.Errorf("open packet socket: %w", syscall.EPERM)
		}
		e.cable("c", a, port0, b, port0)
		time.Sleep(time.Hour)
		if c := a.told(); !strings.Contains(c.Trouble, "CAP_NET_RAW") || len(c.Probed) != 0 || a.changes() != 2 {
			t.Errorf("told %d times, last %+v", a.changes(), c)
		}
		if n := strings.Count(a.log.String(), "CAP_NET_RAW"); n != 1 {
			t.Errorf("said %d times, want once:\n%s", n, &a.log)
		}
	})
}

// A socket that breaks, or a NIC that cannot be opened yet, is tried again.
func TestProbeReopens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEther()
		a, b := e.spark(t, "spark1"), e.spark(t, "spark2")
		a.sockets[port0[0]].fail = syscall.ENODEV
		e.cable("c", a, port0[:1], b, port0[:1])
		time.Sleep(10 * time.Second)
		wantWords(t, a)
		e.mu.Lock()
		a.sockets[port0[0]].fail = nil
		e.mu.Unlock()
		time.Sleep(5 * time.Second)
		wantWords(t, a, "01:00.0 enp1s0f0np0 spark2 enp1s0f0np0")
		if n := strings.Count(a.log.String(), "no such device"); n != 1 {
			t.Errorf("said %d times, want once:\n%s", n, &a.log)
		}

		e.mu.Lock()
		for w := range a.sockets[port0[0]].wires {
			w.fail(syscall.ENETDOWN)
		}
		e.mu.Unlock()
		time.Sleep(200 * time.Millisecond)
		wantWords(t, a)
		time.Sleep(8 * time.Second)
		wantWords(t, a, "01:00.0 enp1s0f0np0 spark2 enp1s0f0np0")

		e.mu.Lock()
		before := a.sockets[port0[0]].opened
		a.sockets[port0[0]].broken = true
		for w := range a.sockets[port0[0]].wires {
			w.fail(syscall.ENETDOWN)
		}
		e.mu.Unlock()
		time.Sleep(20 * time.Second)
		e.mu.Lock()
		n := a.sockets[port0[0]].opened - before
		e.mu.Unlock()
		if n < 8 || n > 11 {
			t.Errorf("a NIC whose sockets break at once was opened %d times in 20 s", n)
		}
		e.checkBeat(t)
	})
}

// A NIC that is renamed, replaced or taken away.
func TestProbeFollowsNICs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEther()
		a, b := e.spark(t, "spark1"), e.spark(t, "spark2")
		e.cable("c", a, port0[:1], b, port0[:1])
		time.Sleep(5 * time.Second)

		e.mu.Lock()
		s := a.sockets[port0[0]]
		delete(a.sockets, port0[0])
		a.sockets["fast0"], s.name = s, "fast0"
		a.inv.NICs[0].Name, a.inv.Devices[0].Netdev = "fast0", "fast0"
		e.mu.Unlock()
		e.carry(a)
		time.Sleep(6 * time.Second)
		wantWords(t, a, "01:00.0 fast0 spark2 enp1s0f0np0")
		wantWords(t, b, "01:00.0 enp1s0f0np0 spark1 fast0")

		a.inv.NICs, a.inv.Devices = a.inv.NICs[1:], a.inv.Devices[1:]
		e.carry(a)
		time.Sleep(7 * time.Second)
		wantWords(t, a)
		wantWords(t, b)
		if c := a.told(); len(c.Probed) != 0 {
			t.Errorf("got %+v", c)
		}
	})
}

func TestProbeConfig(t *testing.T) {
	good := ProbeConfig{Cluster: "c", Node: "n", Host: "h", Keys: func() ([][]byte, error) { return nil, nil }}
	if _, err := NewProbe(good); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*ProbeConfig){
		"no cluster":     func(c *ProbeConfig) { c.Cluster = "" },
		"no node":        func(c *ProbeConfig) { c.Node = "" },
		"long host":      func(c *ProbeConfig) { c.Host = strings.Repeat("h", 65) },
		"host of escape": func(c *ProbeConfig) { c.Host = "\x1b[2J" },
		"no keys":        func(c *ProbeConfig) { c.Keys = nil },
		"negative time":  func(c *ProbeConfig) { c.KeysEvery = -1 },
	} {
		c := good
		spoil(&c)
		if _, err := NewProbe(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
