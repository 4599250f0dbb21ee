package wire

import (
	"net/netip"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// Empty is a message without content.
type Empty struct{}

// StatusRequest asks for the cluster's state. With WaitNodes the answer comes
// when that many nodes are ready, or with an error after Timeout. With Brief it leaves
// the nodes out, which have some 15 KB each.
type StatusRequest struct {
	WaitNodes int           `json:"wait_nodes,omitempty"`
	Timeout   time.Duration `json:"timeout,omitempty"`
	Brief     bool          `json:"brief,omitempty"`
}

// Status is the cluster as one node sees it. Without a leader it is what that
// node's own copy of the record and gossip say.
type Status struct {
	Cluster string `json:"cluster"`
	Epoch   uint64 `json:"epoch"`
	// EpochBy is the id of the node whose take-over began the epoch; empty in the first epoch.
	EpochBy launcher.NodeID `json:"epoch_by,omitempty"`
	Term    uint64          `json:"term"`
	Self    string          `json:"self"`   // the answering node's host name
	Leader  string          `json:"leader"` // its host name; empty = none is known
	Problem string          `json:"problem,omitempty"`
	// Heard is, without a leader, when raft last heard one, by the answering node's
	// clock; zero if it has not since its agent was started.
	Heard time.Time `json:"heard,omitzero"`
	// Removed: the answering node was removed from the cluster; what it knows of the others is old.
	Removed bool         `json:"removed,omitempty"`
	Nodes   []NodeStatus `json:"nodes"`
}

// Away are the ids of nodes that are.
func (s Status) Away() (ids []string) {
	for _, n := range s.Nodes {
		if n.State == "away" {
			ids = append(ids, string(n.ID))
		}
	}
	return ids
}

// NodeStatus is one member.
type NodeStatus struct {
	ID   launcher.NodeID `json:"id"`
	Host string          `json:"host"`
	Addr netip.Addr      `json:"addr"` // management
	// State is "ready" (the leader's control stream is up), "drained" (it is, and
	// the node gets no jobs for what Why says), "away", "joined" (its agent has not
	// started yet), or "unknown" where there is no leader to tell.
	State string    `json:"state"`
	Why   string    `json:"why,omitempty"`
	Since time.Time `json:"since"`
	Boot  string    `json:"boot,omitempty"` // the kernel's id of its boot; empty: not heard yet
	// FabricOnly: the leader reaches it, and not over management.
	FabricOnly bool             `json:"fabric_only,omitempty"`
	Role       string           `json:"role"`              // "leader", "voter", "standby" or ""
	NoVote     string           `json:"no_vote,omitempty"` // why it takes no part in the vote: its disk, as a rule
	Witness    bool             `json:"witness,omitempty"` // votes, gets no ranks
	Version    string           `json:"version,omitempty"`
	Protocol   int              `json:"protocol,omitempty"` // rendezvous.Protocol of its build
	Inventory  envgen.Inventory `json:"inventory"`
}

// LaunchRequest submits a job, or follows one that was submitted: asking twice
// with one id starts once. The answer is the job's event log.
type LaunchRequest struct {
	Spec launcher.Spec `json:"spec"`
	// Model is what a dry run asks the nodes for beside all else: see NodePlanRequest.
	Model string `json:"model,omitempty"`
}

// JobRequest names a job by id, name, or the beginning of an id.
type JobRequest struct {
	Job string `json:"job"`
}

// StopRequest ends a job; a zero Grace kills at once, nil means the job's own.
type StopRequest struct {
	Job   string         `json:"job"`
	Grace *time.Duration `json:"grace,omitempty"`
	// Interrupt: the ranks get INT first, as by Ctrl-C, and TERM within the grace.
	Interrupt bool `json:"interrupt,omitempty"`
}

// StopResponse names the job that is being ended.
type StopResponse struct {
	Job launcher.JobID `json:"job"`
	// Strays are the hosts where it, or a later attempt of it, runs without being in the
	// record: its end is not recorded or reported.
	Strays []string `json:"strays,omitempty"`
}

// JobsRequest asks for jobs: for all that are remembered, or for those that have not ended.
type JobsRequest struct {
	Open bool `json:"open,omitempty"` // only those that have not ended
}

// Wants tells whether a job is asked for.
func (r JobsRequest) Wants(j rendezvous.JobStatus) bool { return !r.Open || j.Outcome == nil }

// JobsResponse lists jobs, oldest first. Without a leader it is what the
// answering node's copy of the record says, and Problem says so; Heard is as in Status.
type JobsResponse struct {
	Jobs    []rendezvous.JobStatus `json:"jobs"`
	User    string                 `json:"user,omitempty"` // who asked
	Problem string                 `json:"problem,omitempty"`
	Heard   time.Time              `json:"heard,omitzero"`
}

// LogsRequest reads the output of a job's ranks from every node that has some.
type LogsRequest struct {
	Job    string `json:"job"`
	Follow bool   `json:"follow,omitempty"` // until every rank has ended
	Ranks  []int  `json:"ranks,omitempty"`  // empty = all
	// Cursors say where to go on; a file without one is read from its start.
	Cursors []Cursor `json:"cursors,omitempty"`
	// Generation to read, waited for where it has not come here yet; 0 = the latest.
	Generation launcher.Generation `json:"generation,omitempty"`
	Hosts      []string            `json:"hosts,omitempty"` // only ranks on these; empty = all
	From       launcher.From       `json:"from,omitzero"`
	Times      bool                `json:"times,omitempty"` // of each chunk
}

// MarkDeadRequest confirms that a host runs nothing any more.
type MarkDeadRequest struct {
	Host string `json:"host"`
}

// TakeoverRequest asks the node to lead a new epoch: the hosts are off, a person
// says. Check only asks whether it could.
type TakeoverRequest struct {
	Dead  []string `json:"dead"`
	Check bool     `json:"check,omitempty"`
}

// TakeoverResponse says who is to lead, and in which epoch.
type TakeoverResponse struct {
	Host  string `json:"host"`
	Epoch uint64 `json:"epoch"`
}

// ObjectionRequest asks a member for objections to a take-over by the caller. It has the
// machines that a person confirms dead, and the end of the caller's copy of the record.
type ObjectionRequest struct {
	Dead  []launcher.NodeID `json:"dead"`
	Epoch launcher.Epoch    `json:"epoch"`
	Term  uint64            `json:"term"`
	Index uint64            `json:"index"`
}

// ObjectionResponse has the objection, to be read after the host's name; empty = none.
// Epoch is the number of that member's epoch.
type ObjectionResponse struct {
	Why   string `json:"why,omitempty"`
	Epoch uint64 `json:"epoch"`
}

// Acknowledged says that something was done. OnlyOn is the only host that has it
// recorded; empty if others have it too.
type Acknowledged struct {
	OnlyOn string `json:"recorded_only_on,omitempty"`
}

// The words of output are the launcher's.
type (
	Cursor   = launcher.Cursor
	Stream   = launcher.Stream
	LogChunk = launcher.Chunk
)

const (
	Stdout = launcher.Stdout
	Stderr = launcher.Stderr
)

// NodeLogsRequest is a LogsRequest for the part of one node.
type NodeLogsRequest struct {
	Key     launcher.Key  `json:"key"`
	Follow  bool          `json:"follow,omitempty"`
	Ranks   []int         `json:"ranks"` // empty = all whose output is there
	Cursors []Cursor      `json:"cursors,omitempty"`
	From    launcher.From `json:"from,omitzero"`
	Times   bool          `json:"times,omitempty"`
}

// TokenRequest asks for a token.
type TokenRequest struct {
	Uses int           `json:"uses"` // 1 or more
	TTL  time.Duration `json:"ttl"`
	Role string        `json:"role,omitempty"` // what it lets in: node (also empty), witness or client
	User string        `json:"user,omitempty"` // whose client; empty: the caller's, unless that is root
}

// TokenResponse carries the token; it is shown once and kept nowhere.
type TokenResponse struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
	User    string    `json:"user,omitempty"` // whose client it lets in
	// Join lists addresses a newcomer can use.
	Join   []netip.AddrPort `json:"join"`
	OnlyOn string           `json:"recorded_only_on,omitempty"` // see Acknowledged
}

// String keeps the token out of logs.
func (r TokenResponse) String() string { return "a token until " + r.Expires.Format(time.RFC3339) }

// GoString does so for %#v.
func (r TokenResponse) GoString() string { return r.String() }

// ExplainResponse shows what a launch would do, per node.
type ExplainResponse struct {
	Plan  rendezvous.Plan `json:"plan"`
	Nodes []NodePlan      `json:"nodes"`
	// Findings are the preflight's: an error would refuse the launch.
	Findings []envgen.Finding `json:"findings,omitempty"`
}

// NodePlan is one node's part of a dry run, with the first local rank's
// command and the environment of each.
type NodePlan struct {
	Host  string              `json:"host"`
	Error string              `json:"error,omitempty"` // why the node would refuse
	Ranks []launcher.RankPlan `json:"ranks,omitempty"`
	// Memory is the node's now; nil: it does not tell.
	Memory *NodeMemory `json:"memory,omitempty"`
	// Model is what the node has of the model that was asked for; nil: it does not tell.
	Model *launcher.ModelCopy `json:"model,omitempty"`
}

// NodePlanRequest asks a node for its part of a dry run.
type NodePlanRequest struct {
	launcher.Assignment
	// Model is one that the ranks would serve, a name on Hugging Face or a folder; empty: none.
	Model string `json:"model,omitempty"`
}

// NodeMemory is a node's, in bytes.
type NodeMemory struct {
	Total     int64 `json:"total"`
	Available int64 `json:"available"` // without swapping, and without what its GPU holds where that shares it
	GPU       bool  `json:"gpu"`       // the node has one
}

// JoinRequest comes from a machine that is no member yet. Its secret proves
// that a member invited it; the CSR proves that it holds its key.
type JoinRequest struct {
	Secret []byte          `json:"secret"`
	CSR    []byte          `json:"csr"` // DER
	Node   launcher.NodeID `json:"node"`
	Host   string          `json:"host"`
	Addr   netip.AddrPort  `json:"addr"` // its management address and RPC port
	// Witness: it is to vote only, and gets no ranks.
	Witness  bool `json:"witness,omitempty"`
	Protocol int  `json:"protocol,omitempty"` // rendezvous.Protocol of the newcomer's build
}

// String keeps the secret out of logs and errors.
func (r JoinRequest) String() string { return "join of " + r.Host + " (" + string(r.Node) + ")" }

// GoString does so for %#v.
func (r JoinRequest) GoString() string { return r.String() }

// JoinResponse makes the newcomer a member.
type JoinResponse struct {
	Cluster string           `json:"cluster"`
	Epoch   uint64           `json:"epoch"`
	EpochBy launcher.NodeID  `json:"epoch_by,omitempty"`
	Cert    []byte           `json:"cert"` // DER
	CACert  []byte           `json:"ca_cert"`
	Trusted Trusted          `json:"trusted"`
	Peers   []netip.AddrPort `json:"peers"` // gossip addresses
	Leader  string           `json:"leader"`
	OnlyOn  string           `json:"recorded_only_on,omitempty"` // see Acknowledged
}

// String keeps the gossip keys out of logs.
func (r JoinResponse) String() string { return "welcome to cluster " + r.Cluster }

// GoString does so for %#v.
func (r JoinResponse) GoString() string { return r.String() }

// CAKey hands the certificate authority's key to a node that becomes a voter
// or a standby, so that joins survive the loss of the node that made it.
type CAKey struct {
	PEM []byte `json:"pem"`
}

// String keeps the key out of logs.
func (CAKey) String() string { return "a CA key" }

// GoString does so for %#v.
func (k CAKey) GoString() string { return k.String() }

// SeenResponse says where a member is seen; invalid if nowhere. It also has what the two
// nodes must know about each other before any raft message passes between them.
type SeenResponse struct {
	Addr netip.AddrPort `json:"addr"`
	// Incarnation is the highest that the caller has ever told, this time included: above
	// its own, its state has been put back to an earlier time.
	Incarnation uint64 `json:"life,omitempty"`
	Blank       bool   `json:"blank,omitempty"`  // this node has lost its copy of the record
	Leader      string `json:"leader,omitempty"` // host name of who leads, as this node knows it
}

// RenewRequest asks for a new certificate over the node's own key.
type RenewRequest struct {
	CSR []byte `json:"csr"` // DER
}

// RenewResponse carries that certificate.
type RenewResponse struct {
	Cert []byte `json:"cert"` // DER
}

// Down is a leader's message on a control stream: Hello first, then orders. A Down with
// neither is a heartbeat with a number, or an Echo.
type Down struct {
	Hello *Hello          `json:"hello,omitempty"`
	Order *launcher.Order `json:"order,omitempty"`
	Ping  uint64          `json:"ping,omitempty"`
	// Echo is a stamp of this stream: the sender has proven, since it came, that it leads.
	Echo launcher.Uptime `json:"echo,omitempty"`
}

// Hello opens a control stream: the node refuses a fence below its own.
type Hello struct {
	Fence  launcher.Fence  `json:"fence"`
	Leader launcher.NodeID `json:"leader"`
	Host   string          `json:"host"`
	// Protocol is rendezvous.Protocol of the leader's build: the node refuses one
	// that is more than one away from its own, and so does the leader.
	Protocol int `json:"protocol,omitempty"`
}

// Up is a node's message on a control stream: Hello first, then events. A Pong answers a
// heartbeat.
type Up struct {
	Hello     *UpHello          `json:"hello,omitempty"`
	Event     *launcher.Event   `json:"event,omitempty"`
	Inventory *envgen.Inventory `json:"inventory,omitempty"`
	Pong      *Pong             `json:"pong,omitempty"`
}

// UpHello is a node's first message: its boot, its hardware, and what it knows about
// ranks.
type UpHello struct {
	Boot      string                 `json:"boot"`
	Version   string                 `json:"version"`
	Protocol  int                    `json:"protocol,omitempty"` // as in Hello
	Inventory envgen.Inventory       `json:"inventory"`
	Ledger    []launcher.LedgerEntry `json:"ledger"`
	GPUs      int                    `json:"gpus,omitempty"`   // NVIDIA's
	Memory    int64                  `json:"memory,omitempty"` // that jobs may take, in bytes
	Stamp     launcher.Uptime        `json:"stamp,omitempty"`  // as in Pong
	Blank     bool                   `json:"blank,omitempty"`  // it has lost its copy of the record
}

// ServiceRequest says whether a service is to come back after all its machines were off.
type ServiceRequest struct {
	Job       string `json:"job"`
	Autostart bool   `json:"autostart"`
}

// UpdateServiceRequest gives a service another image.
type UpdateServiceRequest struct {
	Job   string `json:"job"`
	Image string `json:"image"`
}

func (r UpdateServiceRequest) about() (string, bool) { return r.Job, true }

// ServiceResponse names the job that it was.
type ServiceResponse struct {
	Job    launcher.JobID `json:"job"`
	OnlyOn string         `json:"recorded_only_on,omitempty"` // see Acknowledged
}

// DrainRequest keeps new ranks away from a machine, or, with Over, lets it have some again.
type DrainRequest struct {
	Host   string `json:"host"`
	Reason string `json:"reason,omitempty"`
	Over   bool   `json:"over,omitempty"`
	// Once: one reply with what has ranks there now; else one after every change, until nothing has.
	Once bool `json:"once,omitempty"`
}

// DrainProgress is what still has ranks on a machine that is drained.
type DrainProgress struct {
	Left  []DrainLeft `json:"left,omitempty"`
	Empty bool        `json:"empty"`
}

// DrainLeft is a job with ranks there. A service is being moved unless Stays says why not; any other job runs to its
// end.
type DrainLeft struct {
	Job     launcher.JobID `json:"job"`
	Name    string         `json:"name,omitempty"`
	User    string         `json:"user,omitempty"`
	Service bool           `json:"service,omitempty"`
	Stays   string         `json:"stays,omitempty"`
}

func (r DrainRequest) about() (string, bool) { return r.Host, true }
