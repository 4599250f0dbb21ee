package fabric

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
)

// Every frame that was ever on the wire, sent again by somebody at any port at any time, changes nothing.
func TestProbeReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEther()
		a, b, c := e.spark(t, "spark1"), e.spark(t, "spark2"), e.spark(t, "spark3")
		hosts := []*testHost{a, b, c}
		e.cable("c0", a, port0, b, port0)
		e.plug("sw1", a, port1...)
		e.plug("sw1", c, port1...)
		time.Sleep(20 * time.Second)
		before := cables(hosts...)
		wantCables(t, before, "spark1 01:00.0 - spark2 01:00.0", "spark1 01:00.1 - spark3 01:00.1")
		told := a.changes() + b.changes() + c.changes()

		// While the links live, newest first and oldest first: on their own wires, and on the other one. That way
		// round only what is old: who passes on fresh frames both ways is a wire.
		for range 3 {
			frames := e.frames()
			for i := range frames {
				for _, s := range []sent{frames[i], frames[len(frames)-1-i]} {
					e.inject("sw1", EtherTypeProbe, s.from.mac, s.payload)
					if s.wire == "c0" || time.Since(e.begin)-s.at > 20*time.Second {
						e.inject("c0", EtherTypeProbe, s.from.mac, s.payload)
					}
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
		time.Sleep(30 * time.Second)
		wantCables(t, cables(hosts...), before...)
		if now := a.changes() + b.changes() + c.changes(); now != told {
			t.Errorf("told %d times of recordings", now-told)
		}

		// After a link has died behind a switch: nothing brings it back, at no age of the recordings.
		frames := e.frames()
		e.plug("", c, port1...)
		for i := range 300 {
			for _, s := range frames[max(0, len(frames)-20):] {
				e.inject("sw1", EtherTypeProbe, s.from.mac, s.payload)
			}
			time.Sleep(100 * time.Millisecond)
			if i == 200 {
				told = a.changes()
			}
		}
		if now := a.changes(); now != told {
			t.Errorf("told %d times of a link that is dead for 20 s", now-told)
		}
		wantCables(t, cables(hosts...), "spark1 01:00.0 - spark2 01:00.0")

		// After the agent started anew, and with no one else there.
		e.cut(a, port0, b, port0)
		a.halt()
		a.start()
		e.plug("c0", a, port0...)
		for _, s := range frames {
			e.inject("c0", EtherTypeProbe, s.from.mac, s.payload)
			time.Sleep(50 * time.Millisecond)
		}
		wantWords(t, a)
		if s := a.told().NonMembers; len(s) != 0 {
			t.Errorf("recordings are non-members: %+v", s)
		}
		e.checkBeat(t)
	})
}

// A sighting ends when it should, however the recordings of its last seconds are sent again meanwhile.
func TestProbeReplayProlongsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEther()
		a, b := e.spark(t, "spark1"), e.spark(t, "spark2")
		e.plug("sw", a, port0[0])
		e.plug("sw", b, port0[0])
		time.Sleep(10*time.Second + 300*time.Millisecond)
		frames := e.frames()
		e.plug("", b, port0[0])
		begin, gone := time.Now(), time.Time{}
		for range 400 {
			for _, s := range frames {
				e.inject("sw", EtherTypeProbe, s.from.mac, s.payload)
			}
			time.Sleep(50 * time.Millisecond)
			switch seen := len(a.told().Sightings) > 0; {
			case !seen && gone.IsZero():
				gone = time.Now()
			case seen && !gone.IsZero():
				t.Fatalf("back after %v", time.Since(begin))
			}
		}
		// The last true frame may lie in the socket until the next look.
		if most := silenceSpeaks + lookEvery + tellDelay + 50*time.Millisecond; gone.IsZero() || gone.Sub(begin) > most {
			t.Errorf("gone at %v, begun at %v, want within %v", gone, begin, most)
		}
	})
}

// Whatever is made up or changed on the way is believed in nothing, and keeps no true frame from being heard.
func TestProbeForged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEther()
		a, b := e.spark(t, "spark1"), e.spark(t, "spark2")
		e.cable("c", a, port0, b, port0)
		time.Sleep(10 * time.Second)
		told, before := a.changes()+b.changes(), cables(a, b)
		rng := rand.New(rand.NewPCG(1, 2))
		attacker, err := newKeyring("c1", [][]byte{secret("x")})
		if err != nil {
			t.Fatal(err)
		}
		thief, err := newKeyring("c2", [][]byte{secret("k")}) // our key in another cluster's name
		if err != nil {
			t.Fatal(err)
		}
		frames := e.frames()
		for range 400 {
			s := frames[rng.IntN(len(frames))]
			changed := bytes.Clone(s.payload)
			changed[rng.IntN(len(changed))] ^= byte(1 + rng.IntN(255))
			e.inject("c", EtherTypeProbe, s.from.mac, changed)
			e.inject("c", EtherTypeProbe, s.from.mac, s.payload[:rng.IntN(len(s.payload))])
			f, err := parseFrame(s.payload[:len(s.payload)-tagBytes])
			if err != nil {
				t.Fatal(err)
			}
			f.counter += 1000
			f.host = "evil"
			e.inject("c", EtherTypeProbe, s.from.mac, attacker.seal(f))
			stolen := thief.seal(f)
			copy(stolen[8:16], s.payload[8:16]) // and then our name again
			e.inject("c", EtherTypeProbe, s.from.mac, stolen)
			time.Sleep(100 * time.Millisecond)
		}
		wantCables(t, cables(a, b), before...)
		if now := a.changes() + b.changes(); now != told {
			t.Errorf("told %d times of forgeries: %+v", now-told, a.told())
		}
	})
}

// Another cluster on the wire, and hosts that only speak IPv4, are non-members, once they have gone on for a while.
func TestProbeNonMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEther()
		a, b := e.spark(t, "spark1"), e.spark(t, "spark2")
		for _, h := range []*testHost{a, b} {
			e.plug("sw", h, port0[0])
		}
		time.Sleep(5 * time.Second)
		other, err := newKeyring("c2", [][]byte{secret("z")})
		if err != nil {
			t.Fatal(err)
		}
		cluster2 := mac{0x10, 0, 0, 0, 0, 2}
		storage := mac{0x10, 0, 0, 0, 0, 1}
		once := mac{0x10, 0, 0, 0, 0, 3}
		e.inject("sw", EtherTypeARP, once, nil)
		for i := range 5 {
			e.inject("sw", EtherTypeARP, storage, nil)
			e.inject("sw", EtherTypeARP, b.sockets[port0[0]].mac, nil) // a member's own question
			e.inject("sw", EtherTypeARP, a.sockets[port0[1]].mac, nil) // our own twin's
			e.inject("sw", EtherTypeARP, mac{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, nil)
			e.inject("sw", EtherTypeProbe, cluster2, other.seal(frame{every: 2 * time.Second, node: "n", host: "h", nic: "x", slot: "s", session: 7, counter: counter(i + 1)}))
			if i == 0 {
				time.Sleep(time.Second)
				if s := a.told().NonMembers; len(s) != 0 {
					t.Errorf("called a non-member after a second: %+v", s)
				}
			}
			time.Sleep(5 * time.Second)
		}
		want := []envgen.NonMember{
			{NIC: port0[0], Slot: slot0, MAC: storage.String(), Heard: envgen.NonMemberARP},
			{NIC: port0[0], Slot: slot0, MAC: cluster2.String(), Heard: envgen.NonMemberProbe},
		}
		if diff := cmp.Diff(want, a.told().NonMembers); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		wantWords(t, a, "01:00.0 enp1s0f0np0 spark2 enp1s0f0np0")
		told := a.changes()
		for range 1000 { // goes on: no news
			e.inject("sw", EtherTypeARP, storage, nil)
			e.inject("sw", EtherTypeProbe, cluster2, other.seal(frame{every: 2 * time.Second, node: "n", host: "h", nic: "x", slot: "s"}))
			time.Sleep(time.Second)
		}
		if now := a.changes(); now != told {
			t.Errorf("told %d times of the same non-members", now-told)
		}
		time.Sleep(nonMemberStay + time.Second)
		if s := a.told().NonMembers; len(s) != 0 {
			t.Errorf("still there after %v of silence: %+v", nonMemberStay, s)
		}
	})
}

// A member whose agent starts late was taken for a non-member at most for so long.
func TestProbeNonMemberJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEther()
		a, b := e.spark(t, "spark1"), e.spark(t, "spark2")
		b.halt()
		e.plug("sw", a, port0[0])
		for range 20 {
			e.inject("sw", EtherTypeARP, b.sockets[port0[0]].mac, nil)
			time.Sleep(time.Second)
		}
		if s := a.told().NonMembers; len(s) != 1 {
			t.Errorf("got %+v", s)
		}
		// The cluster knows it by its inventory.
		views := []envgen.NodeView{{ID: a.id, Inventory: a.inv.WithCabling(a.told())}}
		if s := envgen.NonMembers(views)[a.id][slot0]; s == "" {
			t.Error("the cluster does not know the non-member")
		}
		if s := envgen.NonMembers(append(views, envgen.NodeView{ID: b.id, Inventory: b.inv})); len(s) != 0 {
			t.Errorf("a member is a non-member: %v", s)
		}
		b.start()
		e.plug("sw", b, port0[0])
		time.Sleep(5 * time.Second)
		if s := a.told().NonMembers; len(s) != 0 {
			t.Errorf("a neighbour is a non-member: %+v", s)
		}
	})
}

// Frames that were held back, or come again, by their age and by what was heard meanwhile.
func TestEarFreshness(t *testing.T) {
	begin := time.Unix(1_700_000_000, 0)
	at := func(seconds float64) time.Time { return begin.Add(time.Duration(seconds * float64(time.Second))) }
	type step struct {
		at      float64
		send    bool    // we send our next frame
		counter counter // else the neighbour's frame with this number arrives,
		echo    counter // which echoes this one of ours,
		session session // in this session of its (2 when 0)
		want    bool    // and then it is sighted
	}
	for name, steps := range map[string][]step{
		"as usual": {{at: 0, send: true}, {at: 1, counter: 1, echo: 1, want: true}, {at: 2, send: true},
			{at: 3, counter: 2, echo: 2, want: true}, {at: 9.4, want: true}, {at: 9.6}},
		"held back until it is too old": {{at: 0, send: true}, {at: 8.6, counter: 1, echo: 1}},
		"held back, and just in time":   {{at: 0, send: true}, {at: 8.4, counter: 1, echo: 1, want: true}, {at: 8.6}},
		"come again when it is gone":    {{at: 0, send: true}, {at: 0.1, counter: 1, echo: 1, want: true}, {at: 6.7}, {at: 7, counter: 1, echo: 1}},
		"held back, and another proved as much before": {{at: 0, send: true}, {at: 0.1, counter: 1, echo: 1, want: true}, {at: 6.7},
			{at: 7, counter: 2, echo: 1}},
		"back in truth": {{at: 0, send: true}, {at: 0.1, counter: 1, echo: 1, want: true}, {at: 6.7}, {at: 20, send: true},
			{at: 21, counter: 9, echo: 2, want: true}},
		"an echo of what we never sent": {{at: 0, send: true}, {at: 1, counter: 1, echo: 2}, {at: 1, counter: 2, echo: 65}},
		"an echo of nothing":            {{at: 0, send: true}, {at: 1, counter: 1}},
		"the old session held back until the new one is there": {{at: 0, send: true}, {at: 1, counter: 1, echo: 1, want: true},
			{at: 2, send: true}, {at: 3, session: 3, counter: 1, echo: 2, want: true}, {at: 4, counter: 2, echo: 1, want: true},
			{at: 9.4, want: true}, {at: 9.6}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEar(envgen.CableNIC{NIC: envgen.NIC{Name: "a"}, Slot: "s"}, mac{2}, 1)
			for i, s := range steps {
				now := at(s.at)
				e.expire(now)
				switch {
				case s.send:
					e.next(frame{}, 1, now)
					continue
				case s.counter > 0:
					f := frame{every: probeBeat, session: 2, counter: s.counter, node: "n2", host: "h2", nic: "x", slot: "y", mac: mac{2, 2}}
					if s.session != 0 {
						f.session = s.session
					}
					if s.echo != 0 {
						f.echoes = []echo{{e.session + 8, s.echo}, {e.session, s.echo}}
					}
					e.hear(f, "n1", nil, now)
				}
				var c envgen.Cabling
				e.cabling(&c)
				if got := len(c.Sightings); got != map[bool]int{true: 1}[s.want] {
					t.Errorf("step %d at %v s: %d sightings, want %t", i+1, s.at, got, s.want)
				}
			}
			if e.expire(at(1e6)); len(e.heard) > 1 {
				t.Errorf("%d neighbours are remembered for ever", len(e.heard))
			}
			if e.expire(at(1e6)); len(e.heard) > 0 {
				t.Errorf("%d neighbours are remembered for ever", len(e.heard))
			}
		})
	}
}

// A flood of recordings and of made-up members fills no memory and drives out nobody who is there.
func TestEarIsBounded(t *testing.T) {
	begin := time.Unix(1_700_000_000, 0)
	e := newEar(envgen.CableNIC{NIC: envgen.NIC{Name: "a"}, Slot: "s"}, mac{2}, 1)
	now := begin
	friend := frame{every: probeBeat, session: 2, node: "n2", host: "h2", nic: "x", slot: "y", mac: mac{2, 2}}
	hear := func(f frame) bool { return e.hear(f, "n1", nil, now) }
	for i := range 20_000 {
		if i%100 == 0 {
			now = now.Add(probeBeat)
			sent := e.next(frame{}, 1, now)
			friend.counter++
			friend.echoes = []echo{{e.session, sent.counter}}
			if changed := hear(friend); changed != (i == 0) {
				t.Fatalf("frame %d: changed %t", i, changed)
			}
			if _, changed := e.expire(now); changed {
				t.Fatalf("frame %d: somebody went", i)
			}
		}
		hear(frame{every: maxEvery, session: session(1000 + i), counter: 1, node: "x", host: "x", nic: "x", slot: "x"})
		e.notice(mac{0, 0, 0, byte(i >> 16), byte(i >> 8), byte(i)}, envgen.NonMemberARP, now)
		if len(e.heard) > maxUnproven+1 || len(e.faces) > maxFaces {
			t.Fatalf("%d neighbours, %d faces", len(e.heard), len(e.faces))
		}
	}
	if f := e.next(frame{}, 1, now); len(f.echoes) > maxEchoes || f.every > 2*probeBeat {
		t.Errorf("%d echoes, every %v", len(f.echoes), f.every)
	}
	var c envgen.Cabling
	e.cabling(&c)
	if len(c.Sightings) != 1 || len(c.NonMembers) > maxNonMembers {
		t.Errorf("got %+v", c)
	}
	for s := range e.heard { // proven ones are bounded too
		delete(e.heard, s)
	}
	for i := range 3000 {
		f := friend
		f.session, f.counter, f.mac, f.nic = session(1e6+i), 1, mac{3, 0, 0, 0, byte(i >> 8), byte(i)}, "x"
		f.echoes = []echo{{e.session, e.sent}}
		hear(f)
	}
	if len(e.heard) != maxNeighbours || len(e.members) > maxNeighbours {
		t.Errorf("%d neighbours, %d members", len(e.heard), len(e.members))
	}
}
