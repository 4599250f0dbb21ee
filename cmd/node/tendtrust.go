package node

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/lead"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	tellTrustWithin = 3 * time.Second
	tellTrustAgain  = time.Second // where somebody could not be told
)

// tendTrust keeps every member told of who is one, and the gossip key unknown to
// who was one. See rendezvous/trust/DESIGN.md.
func (n *node) tendTrust(ctx context.Context, brain *lead.Leader) error {
	told := map[launcher.NodeID]string{} // what each has acknowledged, and since when it is there
	said := map[launcher.NodeID]string{} // why each could not be told
	for {
		recordChanged := n.record.Changed()
		roster, rosterChanged := brain.Roster()
		all, err := n.tellTrust(ctx, roster, told, said)
		if err == nil && all {
			var stepped bool
			if stepped, err = n.stepRing(); stepped {
				continue
			}
		}
		if err != nil {
			n.log.Warn("tell members whom to trust", "error", err)
		}
		var again <-chan time.Time
		if err != nil || !all {
			again = time.After(tellTrustAgain)
		}
		select {
		case <-recordChanged:
		case <-rosterChanged:
		case <-again:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stepRing takes the next step of a rotation, here first.
func (n *node) stepRing() (bool, error) {
	keyring, err := n.ring()
	if err != nil {
		return false, err
	}
	next, changed := keyring.Step(uint64(n.record.Removals()))
	if !changed {
		return false, nil
	}
	_, err = n.takeRing(next, true)
	return err == nil, err
}

// tellTrust tells those that are there, side by side, and learns whether all of
// them have acknowledged it.
func (n *node) tellTrust(ctx context.Context, roster rendezvous.Roster, told, said map[launcher.NodeID]string) (all bool, err error) {
	settled, err := n.settleKeys()
	if err != nil {
		return false, err
	}
	now, err := n.trusted()
	if err != nil {
		return false, err
	}
	now.Settled = settled
	// A list that has not changed is not told again for its place.
	text, err := json.Marshal([]any{now.Members.Members, now.Members.Clients, now.Keyring, now.Retired, now.Settled})
	if err != nil {
		return false, fmt.Errorf("tell members whom to trust: %w", err)
	}
	same := fmt.Sprintf("%x", sha256.Sum256(text))
	roster = slices.DeleteFunc(slices.Clone(roster), func(m rendezvous.Member) bool {
		return !m.Ready || m.ID == n.m.Node || told[m.ID] == m.Since.String()+same
	})
	if err := n.takeRoll(now.Members); err != nil { // this node's own next life begins with it
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, tellTrustWithin)
	defer cancel()
	want := ringOf(now.Keyring)
	missing := false
	answers, errs := make([]wire.Trusted, len(roster)), make([]error, len(roster))
	each(len(roster), func(i int) {
		answers[i], errs[i] = wire.KeepTrusted.Call(ctx, n.dial.Client(roster[i].ID), now)
	})
	for i, err := range errs {
		m := roster[i]
		if err == nil {
			delete(said, m.ID)
			continue
		}
		missing = true
		if said[m.ID] != err.Error() {
			said[m.ID] = err.Error()
			n.log.Warn("a member is not told whom to trust, and the gossip key is not changed meanwhile", "node", m.Host, "error", err)
		}
	}
	own := want
	before := trust.Retired(ringOf(now.Retired))
	for i, res := range answers {
		keyring := ringOf(res.Keyring)
		switch merged, newer := own.Merge(keyring); {
		case errs[i] != nil:
		case newer: // an earlier leader had begun a rotation that this one has not heard of
			own = merged
		case keyring.Equal(want):
			told[roster[i].ID] = roster[i].Since.String() + same
		default:
			missing = true
		}
	}
	for i, res := range answers {
		more := ringOf(res.Retired).Without(want)
		if errs[i] != nil || before.Add(more).Equal(before) {
			continue
		}
		missing = true // it has a key that an earlier leader has told it of
		if err := n.takeRetired(wire.Trusted{Retired: wireRing(more)}, false); err != nil {
			return false, err
		}
	}
	if !own.Equal(want) {
		missing = true
		if _, err := n.takeRing(own, true); err != nil {
			return false, err
		}
	}
	return !missing, nil
}

// takeBackCA has members forget the CA's key that neither vote nor stand by. It is
// called between changes of roles, by who makes them.
func (n *node) takeBackCA(ctx context.Context, roster rendezvous.Roster, done map[launcher.NodeID]time.Time) {
	for _, m := range roster {
		if !m.Ready || m.ID == n.m.Node || n.failover.HasPart(m.ID) {
			delete(done, m.ID)
			continue
		}
		if done[m.ID].Equal(m.Since) {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, tellTrustWithin)
		err := wire.DropCA.Call(ctx, n.dial.Client(m.ID), wire.Empty{})
		cancel()
		if err != nil {
			n.log.Warn("take the CA key back", "node", m.Host, "error", err)
			continue
		}
		done[m.ID] = m.Since
	}
}

// dropCA forgets the CA's key, on the leader's word.
func (n *node) dropCA(_ context.Context, c wire.Caller, _ wire.Empty) (wire.Empty, error) {
	if c.Node != n.failover.Leader() {
		return wire.Empty{}, fmt.Errorf("%w: %s does not lead", wire.ErrDenied, c.Host)
	}
	return wire.Empty{}, trust.ForgetCA(n.cfg.Paths.trust())
}
