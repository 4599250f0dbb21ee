package fabric

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
)

const (
	// probeBeat is the least time between two frames of one physical port, whichever twin sends.
	probeBeat = 2 * time.Second
	// probeJitter is the most that a port waits longer, at random: neighbours that came up at the same moment
	// must not keep missing each other, and the ports on a switch must not all send at once.
	probeJitter = 100 * time.Millisecond
	// probeSlack is added to every deadline, for the jitter of missedBeats frames and for late timers.
	probeSlack = 500 * time.Millisecond
	// missedBeats is how many announced intervals a neighbour must be silent before it counts as gone.
	missedBeats = 3
	// silenceSpeaks is how long a NIC listens before its silence means that nobody is there: two ports that come up
	// at the same moment know each other after 4.3 s.
	silenceSpeaks = missedBeats*probeBeat + probeSlack
	// maxEvery bounds the interval that a neighbour may announce, and so how long it
	// stays seen.
	maxEvery = 30 * time.Second
	// goneStay is how long a neighbour's counter is kept after its sighting: longer than any proof is valid,
	// so that a replayed recording proves nothing.
	goneStay = (1+missedBeats)*maxEvery + 2*probeSlack
	// maxNeighbours bounds one NIC's memory, maxUnproven the part of it that replayed recordings can fill: each
	// needs room for an echo.
	maxNeighbours = 1024
	maxUnproven   = 128
	// nonMemberGrace is how long a host must send before it counts as a non-member: a member that starts has proven
	// itself by then. nonMemberStay is how long it is remembered.
	nonMemberGrace = 15 * time.Second
	nonMemberStay  = 10 * time.Minute
	// maxNonMembers is how many are reported for a NIC: members whose agent does not run are among them, and one
	// more is enough to know. maxFaces bounds those watched.
	maxNonMembers = 16
	maxFaces      = 64
)

// ear is what one NIC has heard and sent since it was opened. It has no clock and no lock: one goroutine tells it
// what happens when.
type ear struct {
	nic     envgen.NIC
	slot    string
	mac     mac
	session session

	sent     counter
	sentAt   [64]time.Time // by counter, the newest only: older frames prove nothing
	lastSent time.Time
	every    time.Duration // as last announced
	turn     int           // which echo the next frame begins with

	// young is true until youngUntil: until then silence means nothing.
	young      bool
	youngUntil time.Time

	heard   map[session]*neighbour
	faces   map[mac]*face
	members map[mac]bool // have proven themselves here once
}

// neighbour is another port's session.
type neighbour struct {
	counter counter // the newest heard
	heardAt time.Time
	every   time.Duration
	peer    envgen.Neighbour
	clone   bool

	// proven is true while the neighbour is sighted. provenBy is when we sent the newest of our frames that it
	// echoed; zero while it has echoed none. since is when it was first proven.
	proven   bool
	provenBy time.Time
	since    time.Time
	// gone is true when it was proven and has been silent for too long.
	gone bool
}

// face is a MAC that sent frames which proved nothing.
type face struct {
	first, last time.Time
	how         string
	told        bool
}

// newSession draws a random session: whoever knows it has heard us.
func newSession() session {
	var nonce [8]byte
	rand.Read(nonce[:]) // never fails
	return session(binary.BigEndian.Uint64(nonce[:]))
}

func newEar(n envgen.CableNIC, m mac, s session) *ear {
	return &ear{nic: n.NIC, slot: n.Slot, mac: m, session: s, every: probeBeat,
		heard: map[session]*neighbour{}, faces: map[mac]*face{}, members: map[mac]bool{}}
}

// next fills in what only the ear knows about its next frame: counter, interval and echoes. twins is how many NICs
// share the port's beat.
func (e *ear) next(f frame, twins int, now time.Time) frame {
	e.sent++
	e.sentAt[int(e.sent)%len(e.sentAt)] = now
	e.lastSent = now

	all := make([]session, 0, len(e.heard))
	for s, n := range e.heard {
		if !n.gone {
			all = append(all, s)
		}
	}
	slices.Sort(all)
	// Where one frame cannot hold all echoes, frames take turns, and the announced
	// interval says so.
	rounds := max(1, (len(all)+maxEchoes-1)/maxEchoes)
	e.every = probeBeat * time.Duration(twins*rounds)
	if e.turn >= len(all) {
		e.turn = 0
	}
	part := all[e.turn:min(e.turn+maxEchoes, len(all))]
	e.turn += maxEchoes

	f.every, f.session, f.counter, f.mac = e.every, e.session, e.sent, e.mac
	f.pci, f.nic, f.slot = e.nic.PCI, e.nic.Name, e.slot
	f.echoes = make([]echo, len(part))
	for i, s := range part {
		f.echoes[i] = echo{s, e.heard[s].counter}
	}
	return f
}

// hear takes a frame that a member signed, and reports whether the sightings may have changed. self and ours
// (this node's open sessions, with their slots) tell this node's own ports from a clone.
func (e *ear) hear(f frame, self string, ours map[session]string, now time.Time) bool {
	slot, own := ours[f.session]
	if own && slot == e.slot {
		return false // our own frame sent back, or our twin's by the switch: no cable
	}
	n, known := e.heard[f.session]
	if known && f.counter <= n.counter {
		return false // a repetition
	}
	if !known {
		if !e.room() {
			return false
		}
		n = &neighbour{clone: f.node == self && !own}
		e.heard[f.session] = n
	}
	was := n.peer
	n.counter, n.heardAt, n.every, n.gone = f.counter, now, min(max(f.every, probeBeat), maxEvery), false
	n.peer = envgen.Neighbour{Node: f.node, Host: f.host, NIC: f.nic, Slot: f.slot, PCI: f.pci, MAC: f.mac.String(),
		Boot: hex.EncodeToString(f.boot[:])}
	if at, ok := e.proof(f); ok && at.After(n.provenBy) && now.Before(at.Add(e.proofAge(n))) {
		n.provenBy = at
		if !n.proven {
			n.proven, n.since = true, now.UTC().Truncate(time.Second)
			e.welcome(f.session, n, f.mac)
			return true
		}
	}
	return n.proven && !sameNeighbour(was, n.peer)
}

// proof gives when we sent the frame that f echoes: f was made after that. Only who heard that frame can
// name it.
func (e *ear) proof(f frame) (sentAt time.Time, ok bool) {
	for _, heard := range f.echoes {
		if heard.session == e.session && heard.counter > 0 && heard.counter <= e.sent &&
			e.sent-heard.counter < counter(len(e.sentAt)) {
			return e.sentAt[int(heard.counter)%len(e.sentAt)], true
		}
	}
	return time.Time{}, false
}

// proofAge is how long an echo of one of our frames proves that the neighbour is there: until it should have heard
// our next frame, plus missedBeats of its own interval.
func (e *ear) proofAge(n *neighbour) time.Duration {
	return min(e.every, maxEvery) + missedBeats*n.every + probeSlack
}

// expiry is when the neighbour's state ends unless it sends again. A proof that is not renewed ends too: the
// neighbour no longer hears us.
func (e *ear) expiry(n *neighbour) time.Time {
	if n.gone {
		return n.heardAt.Add(goneStay)
	}
	at := n.heardAt.Add(missedBeats*n.every + probeSlack)
	if proof := n.provenBy.Add(e.proofAge(n)); n.proven && proof.Before(at) {
		return proof
	}
	return at
}

// welcome removes the earlier session of a neighbour that is now proven anew, after its agent or its NIC restarted,
// so that its port is not seen twice.
func (e *ear) welcome(s session, n *neighbour, m mac) {
	for other, old := range e.heard {
		if other == s || !old.proven || old.peer.MAC != n.peer.MAC || old.peer.Node != n.peer.Node {
			continue
		}
		if old.since.Before(n.since) {
			n.since = old.since
		}
		old.proven, old.gone = false, true
	}
	delete(e.faces, m)
	if len(e.members) < maxNeighbours {
		e.members[m] = true
	}
}

// room makes room for one more neighbour that has proven nothing. It never drops a proven one.
func (e *ear) room() bool {
	var oldest session
	unproven := 0
	for s, n := range e.heard {
		if n.proven || n.gone {
			continue
		}
		if unproven == 0 || n.heardAt.Before(e.heard[oldest].heardAt) {
			oldest = s
		}
		unproven++
	}
	if unproven >= maxUnproven || unproven > 0 && len(e.heard) >= maxNeighbours {
		delete(e.heard, oldest)
	}
	return len(e.heard) < maxNeighbours
}

// expire forgets silent neighbours. It gives the time of the next check, zero if there is none, and whether the
// sightings, the non-members or the meaning of silence have changed.
func (e *ear) expire(now time.Time) (next time.Time, changed bool) {
	if e.young {
		if e.young = e.youngUntil.After(now); e.young {
			next = e.youngUntil
		}
		changed = !e.young
	}
	for s, n := range e.heard {
		if !e.expiry(n).After(now) {
			changed = changed || n.proven
			if n.gone || n.provenBy.IsZero() {
				delete(e.heard, s)
				continue
			}
			n.proven, n.gone = false, true
		}
		next = sooner(next, e.expiry(n))
	}
	for m, f := range e.faces {
		if at := f.last.Add(nonMemberStay); at.After(now) {
			next = sooner(next, at)
			continue
		}
		changed = changed || f.told
		delete(e.faces, m)
	}
	return next, changed
}

// sooner is the earlier of two times; zero means none.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// notice takes a frame that proves nothing, by its sender, and reports whether the non-members have changed.
func (e *ear) notice(from mac, how string, now time.Time) bool {
	if from[0]&1 != 0 || from == (mac{}) || e.members[from] {
		return false // a group address is no host's
	}
	f, known := e.faces[from]
	if !known {
		if len(e.faces) >= maxFaces {
			return false
		}
		f = &face{first: now, how: how}
		e.faces[from] = f
	}
	f.last = now
	changed := f.told && how == envgen.NonMemberProbe && f.how != how
	if how == envgen.NonMemberProbe { // it says more than ARP does
		f.how = how
	}
	if f.told || now.Sub(f.first) < nonMemberGrace || e.told() >= maxNonMembers {
		return changed
	}
	f.told = true
	return true
}

func (e *ear) told() (n int) {
	for _, f := range e.faces {
		if f.told {
			n++
		}
	}
	return n
}

// cabling adds what the ear knows to c.
func (e *ear) cabling(c *envgen.Cabling) {
	probed := !e.young
	for _, n := range e.heard {
		if n.proven {
			probed = true
			c.Sightings = append(c.Sightings,
				envgen.Sighting{NIC: e.nic.Name, Slot: e.slot, Peer: n.peer, Clone: n.clone, Since: n.since})
		}
	}
	if probed {
		c.Probed = append(c.Probed, e.nic.Name)
	}
	for m, f := range e.faces {
		if f.told {
			c.NonMembers = append(c.NonMembers, envgen.NonMember{NIC: e.nic.Name, Slot: e.slot, MAC: m.String(), Heard: f.how})
		}
	}
}

// sortCabling sorts what several ears have added.
func sortCabling(c *envgen.Cabling) {
	slices.Sort(c.Probed)
	slices.SortStableFunc(c.Sightings, func(a, b envgen.Sighting) int {
		return cmp.Or(cmp.Compare(a.NIC, b.NIC), cmp.Compare(a.Peer.Node, b.Peer.Node), cmp.Compare(a.Peer.NIC, b.Peer.NIC),
			cmp.Compare(a.Peer.MAC, b.Peer.MAC), cmp.Compare(a.Peer.Boot, b.Peer.Boot), a.Since.Compare(b.Since))
	})
	slices.SortStableFunc(c.NonMembers, func(a, b envgen.NonMember) int {
		return cmp.Or(cmp.Compare(a.NIC, b.NIC), cmp.Compare(a.MAC, b.MAC))
	})
}

func sameNeighbour(a, b envgen.Neighbour) bool {
	samePCI := a.PCI == b.PCI || a.PCI != nil && b.PCI != nil && *a.PCI == *b.PCI
	a.PCI, b.PCI = nil, nil
	return samePCI && a == b
}
