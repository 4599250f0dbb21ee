package fabric

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
)

// besieged is an ear beside one that hears the same members and no attacker: what the two see must never differ.
type besieged struct {
	t     *testing.T
	keys  *keyring
	now   time.Time
	ear   *ear
	calm  *ear
	peer  *ear // the member at the other end of the cable
	far   *ear // a member on another wire, which hears none of ours
	cut   bool
	taped [][]byte // every frame that our wire ever carried, and the other one
	draw  func(n int) int
}

func besiege(t *testing.T, draw func(int) int) *besieged {
	b := &besieged{t: t, keys: testKeys(t, "k"), now: time.Unix(1_700_000_000, 0), draw: draw}
	b.ear, b.calm = newEar(portOf("a"), mac{2}, 1), newEar(portOf("a"), mac{2}, 1)
	b.peer, b.far = newEar(portOf("b"), mac{4}, 100), newEar(portOf("c"), mac{6}, 200)
	return b
}

func portOf(nic string) envgen.CableNIC {
	return envgen.CableNIC{NIC: envgen.NIC{Name: nic}, Slot: "01:00.0"}
}

// hear takes a frame off the wire as an agent does: what no key signed is nobody's.
func (b *besieged) hear(e *ear, sealed []byte) {
	if f, err := b.keys.open(sealed); err == nil {
		e.hear(f, "node-a", map[session]string{e.session: e.slot}, b.now)
	}
}

// speak lets a member send its next frame over its wire.
func (b *besieged) speak(e *ear, host string) {
	sealed := b.keys.seal(e.next(frame{node: "node-" + host, host: host}, 1, b.now))
	b.taped = append(b.taped, sealed)
	switch {
	case e == b.far || b.cut:
		// Nobody of this wire hears it. What the cut kept back is not taped: to pass it on later, while it is fresh,
		// is to be a cable.
		if b.cut && e != b.far {
			b.taped = b.taped[:len(b.taped)-1]
		}
	case e == b.peer:
		b.hear(b.ear, sealed)
		b.hear(b.calm, sealed)
	case e == b.calm:
		b.hear(b.peer, sealed)
	}
}

func (b *besieged) step() {
	switch b.draw(10) {
	case 0, 1: // our frames: the calm ear's go over the wire, for in the other's an attacker may have put echoes
		b.ear.next(frame{}, 1, b.now)
		b.speak(b.calm, "a")
	case 2, 3:
		b.speak(b.peer, "b")
	case 4:
		b.speak(b.far, "c")
	case 5:
		b.now = b.now.Add(time.Duration(b.draw(40)) * 100 * time.Millisecond)
	case 6:
		if b.cut = b.draw(4) == 0; b.cut {
			b.now = b.now.Add(time.Duration(b.draw(20)) * time.Second)
		}
	case 7: // the peer's agent starts anew
		if b.draw(4) == 0 {
			b.peer = newEar(portOf("b"), mac{4}, b.peer.session+1)
		}
	default: // the attacker sends a recording, whole or changed
		if len(b.taped) == 0 {
			return
		}
		sealed := append([]byte(nil), b.taped[b.draw(len(b.taped))]...)
		if b.draw(3) == 0 {
			sealed[b.draw(len(sealed))] ^= 1 << b.draw(8)
		}
		b.hear(b.ear, sealed)
	}
	for _, e := range []*ear{b.ear, b.calm, b.peer, b.far} {
		e.expire(b.now)
	}
	var got, want envgen.Cabling
	b.ear.cabling(&got)
	b.calm.cabling(&want)
	sortCabling(&got)
	sortCabling(&want)
	if diff := cmp.Diff(want.Sightings, got.Sightings); diff != "" {
		b.t.Fatalf("an attacker changes what is seen (-without +with):\n%s", diff)
	}
}

// FuzzReplay plays out any order of members' frames, silence, cuts and restarts against whoever sends recordings and
// changed frames: nothing of theirs adds, prolongs or ends a sighting.
func FuzzReplay(f *testing.F) {
	f.Add([]byte{0, 2, 0, 2, 5, 30, 8, 0, 1, 9, 1, 1, 6, 0, 19, 8, 0, 1, 8, 1, 1})
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 7))
		program := make([]byte, 400)
		for i := range program {
			program[i] = byte(rng.Uint32())
		}
		f.Add(program)
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		program = program[:min(len(program), 4000)]
		b := besiege(t, func(n int) int {
			if len(program) == 0 {
				return 0
			}
			v := int(program[0])
			if program = program[1:]; n > 256 && len(program) > 0 {
				v, program = v<<8|int(program[0]), program[1:]
			}
			return v % n
		})
		for len(program) > 0 {
			b.step()
		}
	})
}

// The siege is not idle: members do see one another in it, and the attacker is heard.
func TestSiegeIsOne(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	b := besiege(t, rng.IntN)
	seen, extra := 0, 0
	for range 5000 {
		b.step()
		var c envgen.Cabling
		b.calm.cabling(&c)
		seen += len(c.Sightings)
		if len(b.ear.heard) > len(b.calm.heard) {
			extra++
		}
	}
	if seen < 1000 || extra < 100 {
		t.Errorf("in 5000 steps the peer is seen in %d, and recordings are remembered in %d", seen, extra)
	}
}
