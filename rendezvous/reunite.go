package rendezvous

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
)

// Reunited is a part of the record of the side that gives way: one job, or all members
// and tokens. Applying it twice changes nothing the second time.
type Reunited struct {
	From launcher.Epoch  `json:"from"` // of that side; lower than the record's
	Node launcher.NodeID `json:"node"` // whose copy it is

	Job    *Job    `json:"job,omitempty"`
	Nodes  []Node  `json:"nodes,omitempty"`
	Tokens []Token `json:"tokens,omitempty"`
	// Clients are users' machines; LoggedOut are the ids of those that this side has removed.
	Clients   []Client `json:"clients,omitempty"`
	LoggedOut []string `json:"logged_out,omitempty"`
	// Keys, Aliases, Revoked and CA are of the gateway's settings.
	Keys    []NamedGatewayKey `json:"gateway_keys,omitempty"`
	Aliases map[string]string `json:"gateway_aliases,omitempty"`
	Revoked []KeyHash         `json:"gateway_revoked,omitempty"`
	CA      *GatewayCA        `json:"gateway_ca,omitempty"`
	// Notify has targets, and ends of jobs that they have yet to be told of.
	Notify *Notify `json:"notify,omitempty"`
}

// Parts are the whole record for the side with the later epoch, each small enough for an
// entry. A job that is too large for one is shortened, its exits first.
func (r *Record) Parts(node launcher.NodeID) ([]Reunited, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	from := r.s.Epoch
	parts := []Reunited{{From: from, Node: node,
		Nodes:  slices.SortedStableFunc(maps.Values(r.s.Nodes), func(a, b Node) int { return compareStrings(a.ID, b.ID) }),
		Tokens: slices.SortedStableFunc(maps.Values(r.s.Tokens), func(a, b Token) int { return compareStrings(a.ID, b.ID) })}}
	for ids := range slices.Chunk(slices.Sorted(maps.Keys(r.s.LoggedOut)), 1000) {
		parts = append(parts, Reunited{From: from, Node: node, LoggedOut: ids})
	}
	for clients := range slices.Chunk(slices.SortedStableFunc(maps.Values(r.s.Clients),
		func(a, b Client) int { return compareStrings(a.ID, b.ID) }), 100) {
		parts = append(parts, Reunited{From: from, Node: node, Clients: clients})
	}
	parts = append(parts, r.s.gatewayParts(from, node)...)
	parts = append(parts, r.s.notifyParts(from, node)...) // before the jobs: see reuniteNotify
	for _, j := range sortedJobs(r.s.Jobs) {
		parts = append(parts, Reunited{From: from, Node: node, Job: &j})
	}
	var failed error
	for i := range parts {
		if _, err := parts[i].Entry().Encode(); err == nil || parts[i].Job == nil {
			failed = errors.Join(failed, err)
			continue
		}
		j := *parts[i].Job
		j.Attempts = nil
		if j.Outcome != nil {
			out := *j.Outcome
			out.Exits, out.Root = nil, nil
			j.Outcome = &out
		}
		parts[i].Job = &j
		if _, err := parts[i].Entry().Encode(); err != nil {
			failed = errors.Join(failed, fmt.Errorf("hand job %s over: %w", j.Spec.ID, err))
		}
	}
	return parts, failed
}

// Entry records the part.
func (u Reunited) Entry() Entry { return Entry{Kind: KindReunite, Reunited: &u} }

// reunite merges a part of the record that the old leader kept writing after the
// take-over. Nothing is dropped; if both sides have gone on with a job, this side stands.
func (s *state) reunite(index uint64, u Reunited) error {
	if u.From.Compare(s.Epoch) >= 0 {
		return ErrStaleEpoch
	}
	for _, n := range u.Nodes {
		if _, known := s.Nodes[n.ID]; !known && !s.Removed[n.ID] && s.hostTaken(n) == nil {
			s.putNode(index, n)
		}
	}
	for _, t := range u.Tokens {
		if _, known := s.Tokens[t.ID]; !known {
			s.Tokens[t.ID] = t
		}
	}
	for _, id := range u.LoggedOut {
		delete(s.Clients, id)
		if s.LoggedOut == nil {
			s.LoggedOut = map[string]bool{}
		}
		s.LoggedOut[id] = true
	}
	for _, c := range u.Clients {
		if _, known := s.Clients[c.ID]; !known && !s.LoggedOut[c.ID] && len(s.Clients) < MaxClients {
			if s.Clients == nil {
				s.Clients = map[string]Client{}
			}
			s.Clients[c.ID] = c
		}
	}
	if u.hasGateway() {
		s.reuniteGateway(u)
	}
	if u.Notify != nil {
		s.reuniteNotify(*u.Notify, u.From)
	}
	if u.Job != nil {
		s.reuniteJob(*u.Job, u.From)
		s.prune()
	}
	return nil
}

func (s *state) reuniteJob(theirs Job, from launcher.Epoch) {
	ours, known := s.Jobs[theirs.Spec.ID]
	// A stop that either side has accepted holds for what goes on running.
	if stop := ours.Stop.and(theirs.Stop); known && stop != nil {
		ours.Stop, theirs.Stop = stop, stop
		if ours.Outcome == nil {
			s.Jobs[theirs.Spec.ID] = ours
		}
	}
	switch {
	case !known, ours.Restored != nil && theirs.Restored == nil: // the side that was there knows more than a restored copy
		s.Jobs[theirs.Spec.ID] = theirs
	case ours.Touched.Compare(from) > 0: // planned or ended here since the take-over
		if a := theirs.aside(from); !slices.ContainsFunc(slices.Concat(ours.Attempts, []Attempt{ours.present()}), a.same) {
			ours.Attempts = append(slices.Clone(ours.Attempts), a)
			ours.Attempts = ours.Attempts[max(0, len(ours.Attempts)-MaxAttempts):]
			s.Jobs[theirs.Spec.ID] = ours
		}
	case theirs.Plan.Generation > ours.Plan.Generation,
		theirs.Plan.Generation == ours.Plan.Generation && ours.Outcome == nil &&
			(theirs.Outcome != nil || ours.Verdict == nil && theirs.Verdict != nil):
		s.Jobs[theirs.Spec.ID] = theirs // the same history, but later
	}
}

// present is the current generation, shortened.
func (j Job) present() Attempt {
	var out Outcome
	if j.Outcome != nil {
		out = *j.Outcome
	}
	attempts := j.After(out).Attempts
	return attempts[len(attempts)-1]
}

// aside is the current generation as the other side of a reunion keeps it.
func (j Job) aside(from launcher.Epoch) Attempt {
	a := j.present()
	a.Epoch = from
	if j.Outcome == nil {
		a.Cause = "another leader had it running at the reunion"
	} else {
		a.Cause = "under another leader: " + cmp.Or(a.Cause, string(j.Outcome.End))
	}
	return a
}

// same tells whether u is this attempt: it was kept before, or it began before the
// take-over and got no further on the other side.
func (a Attempt) same(u Attempt) bool {
	if a.Generation != u.Generation || !slices.Equal(a.Hosts, u.Hosts) {
		return false
	}
	return u.Epoch == a.Epoch || a.Ended.IsZero()
}
