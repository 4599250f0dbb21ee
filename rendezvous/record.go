package rendezvous

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// Node is a member of the cluster as the record knows it.
type Node struct {
	ID   launcher.NodeID `json:"id"`
	Host string          `json:"host"`
	// Addr is the management address and RPC port at the last join or change. Gossip may
	// have a newer one; this one is known even when nobody gossips.
	Addr netip.AddrPort `json:"addr"`
	// Joined is the log index of the join, which orders members by age.
	Joined uint64 `json:"joined"`
	// Witness votes, and gets no ranks.
	Witness bool `json:"witness,omitempty"`
	// Key is the SHA-256 of its public key, as trust.Pin writes it: as long as it is a
	// member, its certificates are for this key.
	Key string `json:"key,omitempty"`
	// Protocol is the one that its build speaks, as it last reported.
	Protocol int `json:"protocol,omitempty"`
}

// Token admits newcomers. The secret itself is never recorded.
type Token struct {
	ID      string    `json:"id"`   // not secret: for audit lines and errors
	Hash    []byte    `json:"hash"` // of the secret
	Role    string    `json:"role"` // what it admits: node, witness or client
	Uses    int       `json:"uses"` // left
	Expires time.Time `json:"expires"`
	// User is the user whose clients a client token admits; empty in other tokens.
	User string `json:"user,omitempty"`
}

// Job is what was asked for, where it was placed, and how it ended.
type Job struct {
	Spec    launcher.Spec `json:"spec"`
	Plan    Plan          `json:"plan"`
	Planned time.Time     `json:"planned"` // the leader's clock
	Outcome *Outcome      `json:"outcome,omitempty"`
	Stop    *Stop         `json:"stop,omitempty"` // a request to end it
	// Verdict is why the current generation is being ended, if no ledger shows it: a
	// leader gave up a node, or a time limit passed. Later leaders follow it.
	Verdict *Outcome `json:"verdict,omitempty"`
	// Attempts are the generations before the plan's, the latest MaxAttempts of them.
	Attempts []Attempt `json:"tries,omitempty"`
	// Touched is the epoch in which it was last planned, stopped or ended. The record sets it.
	Touched launcher.Epoch `json:"touched,omitzero"`
	// Restored is set on a job that had not ended when the backup was taken from which
	// the record was restored: the time of that backup. What happened since is not known,
	// so no further generation of it is started.
	Restored *time.Time `json:"restored,omitempty"`
	// Faults are the times at which a service failed, as far back as its --restart
	// counts.
	Faults []time.Time `json:"faults,omitempty"`
	// Update is that of its image, until a generation with it has become ready; nil: there is none.
	Update *Updated `json:"update,omitempty"`
}

// Key is the job's current attempt.
func (j Job) Key() launcher.Key { return launcher.Key{Job: j.Spec.ID, Generation: j.Plan.Generation} }

// Bounds that keep entries and snapshots small.
const (
	MaxEntryBytes = 256 << 10 // as much as consensus takes
	MaxHistory    = 500       // jobs kept, of which those that have ended go
	MaxWhole      = 50        // of them, ended jobs kept with all that a start needs
	MinEnded      = 250       // ended jobs kept however many have not ended
	// A user's unfinished jobs, and the total size of their commands and environments: every member keeps each of
	// them, and the leader drives it. Root has no such limit.
	MaxUnfinished      = 500
	MaxUnfinishedBytes = 16 << 20
	MaxExits           = 16 // exits kept in an outcome
	MaxAttempts        = 20 // attempts kept of a job
)

// Kind names a kind of entry and its version. A new kind is written only when every voter
// knows it; a node stops at a kind that it does not know.
type Kind string

const (
	KindFound   Kind = "cluster-founded/1"
	KindToken   Kind = "token-created/1"
	KindJoin    Kind = "node-joined/1"
	KindNode    Kind = "node-changed/1"
	KindRemove  Kind = "node-removed/1"
	KindPlan    Kind = "job-planned/1"
	KindVerdict Kind = "job-ending/1"
	KindEnd     Kind = "job-ended/1"
	KindStop    Kind = "job-stopping/1"
	KindQueue   Kind = "job-queued/1"
	KindNetplan Kind = "netplan-allocated/1"
	KindEpoch   Kind = "epoch-raised/1"
	KindReunite Kind = "reunited/1"
	KindDeath   Kind = "node-death/1"
	KindLogin   Kind = "client-joined/1"
	KindLogout  Kind = "client-removed/1"
	KindService Kind = "job-service/1"
	KindGateway Kind = "gateway-changed/1"
	KindDrain   Kind = "node-drained/1"
	KindUpdate  Kind = "job-updated/1"
	KindNotify  Kind = "notify-changed/1"
)

// Entry is one step of the record. Its kind says which pointer is set.
type Entry struct {
	Kind Kind      `json:"kind"`
	At   time.Time `json:"at"` // the leader's clock; the state machine itself has none

	Found  *Found           `json:"found,omitempty"`
	Token  *Token           `json:"token,omitempty"`
	Join   *Join            `json:"join,omitempty"`
	Node   *Node            `json:"node,omitempty"` // KindNode: its current address and protocol
	Remove *launcher.NodeID `json:"remove,omitempty"`
	Job    *Job             `json:"job,omitempty"` // KindPlan, KindQueue
	End    *JobEnd          `json:"end,omitempty"` // KindEnd, KindVerdict
	Stop   *JobStop         `json:"stop,omitempty"`

	Netplan  *Allocated      `json:"netplan,omitempty"`
	Epoch    *launcher.Epoch `json:"epoch,omitempty"`
	Reunited *Reunited       `json:"reunited,omitempty"`
	Death    *Death          `json:"death,omitempty"`
	Login    *Login          `json:"login,omitempty"`
	Logout   string          `json:"logout,omitempty"` // a client's id
	Service  *JobService     `json:"service,omitempty"`
	Gateway  *GatewayChange  `json:"gateway,omitempty"`
	Drain    *NodeDrain      `json:"drain,omitempty"`
	Update   *JobUpdate      `json:"update,omitempty"`
	Notify   *NotifyChange   `json:"notify,omitempty"`
}

// Found is the first entry of a cluster.
type Found struct {
	Cluster string `json:"cluster"` // UUID
	Epoch   uint64 `json:"epoch"`   // 1; each take-over raises it (KindEpoch)
	First   Node   `json:"first"`
}

// Join uses up one use of a token and makes a node a member.
type Join struct {
	TokenID string `json:"token_id"`
	Node    Node   `json:"node"`
}

// JobEnd closes one attempt of a job.
type JobEnd struct {
	launcher.Key
	Outcome Outcome `json:"outcome"`
}

// Verdict records only that the attempt is being ended, and why.
func (e JobEnd) Verdict() Entry { return Entry{Kind: KindVerdict, End: &e} }

// Errors of entries. An entry with an error changes nothing.
var (
	ErrFounded      = errors.New("the cluster has been founded already")
	ErrTokenUnknown = errors.New("token not known to this cluster")
	ErrTokenUsed    = errors.New("token used up")
	ErrTokenExpired = errors.New("token expired")
	ErrTokenRole    = errors.New("token is for another role")
	ErrHostTaken    = errors.New("another node of this name is a member")
	ErrNoNode       = errors.New("no such node")
	ErrRemoved      = errors.New("was removed from its cluster")
	ErrNoJob        = errors.New("no such job")
	ErrJobExists    = errors.New("the job exists")
	ErrJobEnded     = errors.New("the job has ended")
	ErrJobStopping  = errors.New("the job is being stopped")
	ErrRestarts     = errors.New("the job may not be restarted so")
	ErrStaleEpoch   = errors.New("the record is of a later epoch")
)

// UnknownKindError stops a node: its state would differ from its peers'.
type UnknownKindError struct {
	Kind  Kind
	Index uint64
}

func (e UnknownKindError) Error() string {
	return fmt.Sprintf("apply entry %d: kind %q is not known to this version of sparkrun: upgrade this node", e.Index,
		e.Kind)
}

// Encode checks an entry's size and renders it for the log.
func (e Entry) Encode() ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false) // a `<` in a command would take six bytes
	if err := enc.Encode(e); err != nil {
		return nil, fmt.Errorf("encode entry %s: %w", e.Kind, err)
	}
	b := buf.Bytes()
	if len(b) > MaxEntryBytes {
		return nil, fmt.Errorf("encode entry %s: %d bytes, at most %d", e.Kind, len(b), MaxEntryBytes)
	}
	return b, nil
}

// state is everything in a snapshot.
type state struct {
	Cluster string `json:"cluster"`
	launcher.Epoch
	Index   uint64                    `json:"index"` // of the last entry applied
	Nodes   map[launcher.NodeID]Node  `json:"nodes"`
	Tokens  map[string]Token          `json:"tokens"`
	Jobs    map[launcher.JobID]Job    `json:"jobs"`
	Netplan json.RawMessage           `json:"netplan,omitempty"`
	Deaths  map[launcher.NodeID]Death `json:"deaths,omitempty"`
	// Drains are of the members that an administrator keeps ranks away from.
	Drains map[launcher.NodeID]NodeDrain `json:"drains,omitempty"`
	// Removed are the members that were removed: no reunion brings them back, and each one knew the gossip key.
	Removed map[launcher.NodeID]bool `json:"removed,omitempty"`
	// Clients are users' machines that are not members; LoggedOut are the ids of those that were removed.
	Clients   map[string]Client `json:"clients,omitempty"`
	LoggedOut map[string]bool   `json:"logged_out,omitempty"`

	Gateway Gateway `json:"gateway,omitzero"`
	// Revoked are the latest MaxGatewayKeys keys that were revoked: no reunion brings them back.
	Revoked []KeyHash `json:"gateway_revoked,omitempty"`

	Notify Notify `json:"notify,omitzero"`
}

// Record is the replicated state: the same entries in the same order give the
// same state on every node. Reading it is safe at any time.
type Record struct {
	mu      sync.RWMutex
	s       state
	changed chan struct{} // closed and replaced by every entry that changes something
	// closed and replaced by those entries that change the gateway's settings
	gatewayChanged chan struct{}
	// by those that change who is told of what, or add a notice
	notifyChanged chan struct{}

	rendered atomic.Int64 // expected size of the next Snapshot in bytes
}

// NewRecord makes an empty record: a cluster not yet founded.
func NewRecord() *Record {
	return &Record{
		s:       state{Nodes: map[launcher.NodeID]Node{}, Tokens: map[string]Token{}, Jobs: map[launcher.JobID]Job{}},
		changed: make(chan struct{}), gatewayChanged: make(chan struct{}), notifyChanged: make(chan struct{}),
	}
}

// Apply applies one committed entry. It returns nil, one of the errors above, or an
// UnknownKindError, on which the node must stop.
func (r *Record) Apply(index uint64, data []byte) any {
	var e Entry
	if err := known(data, &e); err != nil {
		return UnknownKindError{Kind: Kind("unreadable: " + err.Error()), Index: index}
	}
	if e.Job != nil {
		e.Job.share()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.s.Index = index
	notices := r.s.Notify.Last
	if err := r.s.apply(index, e); err != nil {
		return err
	}
	close(r.changed)
	r.changed = make(chan struct{})
	if e.Kind == KindGateway || e.Reunited.hasGateway() {
		r.gatewayHasChanged()
	}
	if e.Kind == KindNotify || e.Reunited != nil && e.Reunited.Notify != nil || r.s.Notify.Last != notices {
		r.notifyHasChanged()
	}
	return nil
}

// known reads one JSON value and refuses fields that this build does not know: dropping
// one would make its record differ from the others' for good.
func known(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if rest := bytes.TrimSpace(data[dec.InputOffset():]); len(rest) > 0 {
		return fmt.Errorf("%d bytes after its end", len(rest))
	}
	return nil
}

func (s *state) apply(index uint64, e Entry) error {
	switch {
	case e.Kind == KindFound && e.Found != nil:
		if s.Cluster != "" {
			return ErrFounded
		}
		s.Cluster, s.Epoch = e.Found.Cluster, launcher.Epoch{N: e.Found.Epoch}
		s.putNode(index, e.Found.First)
	case e.Kind == KindToken && e.Token != nil:
		maps.DeleteFunc(s.Tokens, func(_ string, t Token) bool { return t.Expires.Before(e.At.Add(-24 * time.Hour)) })
		s.Tokens[e.Token.ID] = *e.Token
	case e.Kind == KindJoin && e.Join != nil:
		return s.join(index, e.At, *e.Join)
	case e.Kind == KindNode && e.Node != nil:
		n, ok := s.Nodes[e.Node.ID]
		if !ok {
			return ErrNoNode
		}
		n.Addr, n.Protocol = e.Node.Addr, e.Node.Protocol
		s.Nodes[n.ID] = n
	case e.Kind == KindRemove && e.Remove != nil:
		if _, ok := s.Nodes[*e.Remove]; !ok {
			return ErrNoNode
		}
		delete(s.Nodes, *e.Remove)
		delete(s.Deaths, *e.Remove)
		delete(s.Drains, *e.Remove)
		if s.Removed == nil {
			s.Removed = map[launcher.NodeID]bool{}
		}
		s.Removed[*e.Remove] = true
	case e.Kind == KindPlan && e.Job != nil:
		return s.plan(*e.Job)
	case e.Kind == KindQueue && e.Job != nil:
		return s.queue(*e.Job)
	case e.Kind == KindVerdict && e.End != nil:
		return s.verdict(*e.End)
	case e.Kind == KindService && e.Service != nil:
		return s.service(*e.Service)
	case e.Kind == KindGateway && e.Gateway != nil:
		return s.changeGateway(*e.Gateway)
	case e.Kind == KindUpdate && e.Update != nil:
		return s.update(e.At, *e.Update)
	case e.Kind == KindNotify && e.Notify != nil:
		return s.changeNotify(e.At, *e.Notify)
	case e.Kind == KindEnd && e.End != nil:
		return s.end(*e.End)
	case e.Kind == KindStop && e.Stop != nil:
		return s.stop(*e.Stop)
	case e.Kind == KindNetplan && e.Netplan != nil:
		return s.allocate(*e.Netplan)
	case e.Kind == KindEpoch && e.Epoch != nil:
		if e.Epoch.Compare(s.Epoch) <= 0 {
			return ErrStaleEpoch
		}
		s.Epoch = *e.Epoch
	case e.Kind == KindReunite && e.Reunited != nil:
		return s.reunite(index, *e.Reunited)
	case e.Kind == KindDeath && e.Death != nil:
		return s.die(e.At, *e.Death)
	case e.Kind == KindDrain && e.Drain != nil:
		return s.drain(*e.Drain)
	case e.Kind == KindLogin && e.Login != nil:
		return s.login(e.At, *e.Login)
	case e.Kind == KindLogout && e.Logout != "":
		return s.logout(e.Logout)
	default:
		return UnknownKindError{Kind: e.Kind, Index: index}
	}
	return nil
}

func (s *state) join(index uint64, at time.Time, j Join) error {
	t, ok := s.Tokens[j.TokenID]
	if !ok {
		return ErrTokenUnknown
	}
	if err := t.Check(at, t.Role); err != nil { // the leader has checked the role
		return err
	}
	if taken := s.hostTaken(j.Node); taken != nil {
		return taken
	}
	t.Uses--
	s.Tokens[t.ID] = t
	s.putNode(index, j.Node)
	return nil
}

// Check tells whether the token still admits a node, witness or client.
func (t Token) Check(at time.Time, role string) error {
	switch {
	case t.Role != role:
		return fmt.Errorf("%w: it admits a %s, and this is a %s", ErrTokenRole, t.Role, role)
	case t.Uses <= 0:
		return ErrTokenUsed
	case at.After(t.Expires):
		return ErrTokenExpired
	}
	return nil
}

// hostTaken refuses a second node of one name: a cloned machine, or two machines that
// both were called spark1. Commands name hosts, so names must be unique.
func (s *state) hostTaken(n Node) error {
	for _, other := range s.Nodes {
		if other.Host == n.Host && other.ID != n.ID {
			return fmt.Errorf("host %s: %w (node %s at %s)", n.Host, ErrHostTaken, other.ID, other.Addr.Addr())
		}
	}
	return nil
}

func (s *state) putNode(index uint64, n Node) {
	n.Joined = index
	if old, ok := s.Nodes[n.ID]; ok {
		n.Joined = old.Joined
	}
	s.Nodes[n.ID] = n
}

// plan records a job's first generation, or the next one of a job that has not ended.
func (s *state) plan(j Job) error {
	old, ok := s.Jobs[j.Spec.ID]
	switch {
	case !ok && j.Plan.Generation == 1:
	case !ok:
		return ErrNoJob
	case old.Outcome != nil:
		return ErrJobEnded
	case old.Stop != nil:
		return ErrJobStopping
	case j.Plan.Generation != old.Plan.Generation+1:
		return ErrJobExists
	case j.Plan.Restarts < old.Plan.Restarts || j.Plan.Restarts > min(old.Plan.Restarts+1, mayRestart(old.Spec)):
		return ErrRestarts
	}
	if ok {
		j.Spec, j.Update = old.Spec, old.Update // a plan changes neither
		j = j.Settled()
	}
	j.Outcome, j.Stop, j.Touched = nil, nil, s.Epoch
	if s.Jobs[j.Spec.ID] = j; len(s.Jobs) > MaxHistory {
		s.prune()
	}
	return nil
}

// present gives the job of an entry about its current generation.
func (s *state) present(k launcher.Key) (Job, error) {
	j, ok := s.Jobs[k.Job]
	switch {
	case !ok:
		return j, ErrNoJob
	case j.Outcome != nil:
		return j, ErrJobEnded
	case k.Generation != j.Plan.Generation:
		return j, launcher.ErrStaleGeneration
	}
	return j, nil
}

// verdict records why a job's current generation is being ended: the first verdict stands.
func (s *state) verdict(e JobEnd) error {
	j, err := s.present(e.Key)
	if err == nil && (j.Verdict == nil || e.Outcome.Gone) {
		j.Verdict = &e.Outcome
		s.Jobs[e.Job] = j
	}
	return err
}

func (s *state) end(e JobEnd) error {
	j, err := s.present(e.Key)
	if err != nil {
		return err
	}
	out := e.Outcome
	j.Outcome, j.Verdict, j.Touched = &out, nil, s.Epoch
	s.Jobs[e.Job] = j
	s.noticeEnd(j)
	s.prune()
	return nil
}

// sortedJobs orders by age, oldest first; equal times are ordered by id.
func sortedJobs(m map[launcher.JobID]Job) []Job {
	return slices.SortedStableFunc(maps.Values(m), func(a, b Job) int {
		if c := a.Planned.Compare(b.Planned); c != 0 {
			return c
		}
		return compareStrings(a.Spec.ID, b.Spec.ID)
	})
}
