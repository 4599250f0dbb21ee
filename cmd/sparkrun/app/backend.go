package app

import (
	"context"
	"fmt"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Runner start, follow and end jobs: a cluster through its agent, or this
// machine alone.
type Runner interface {
	Launch(context.Context, wire.LaunchRequest, func(rendezvous.Progress) error) error
	Watch(context.Context, wire.JobRequest, func(rendezvous.Progress) error) error
	Logs(context.Context, wire.LogsRequest, func(wire.LogChunk) error) error
	Stop(context.Context, wire.StopRequest) (wire.StopResponse, error)
}

// Cluster is what an agent tells and does beside jobs.
type Cluster interface {
	Status(context.Context, wire.StatusRequest) (wire.Status, error)
	Jobs(context.Context) (wire.JobsResponse, error)
	Token(context.Context, wire.TokenRequest) (wire.TokenResponse, error)
	Leave(context.Context, wire.LeaveRequest) error
	RemoveNode(context.Context, wire.RemoveNodeRequest) (wire.RemoveNodeResponse, error)
	MarkDead(context.Context, wire.MarkDeadRequest) (wire.Acknowledged, error)
	Takeover(context.Context, wire.TakeoverRequest) (wire.TakeoverResponse, error)
	Doctor(context.Context, wire.DoctorRequest) (wire.DoctorResponse, error)
	Service(context.Context, wire.ServiceRequest) (wire.ServiceResponse, error)
}

// Rafter shows, saves and restores the record.
type Rafter interface {
	RaftStatus(context.Context) (wire.RaftStatus, error)
	RaftSnapshot(context.Context, func(wire.RaftPiece) error) error
	RaftBring(context.Context, wire.RaftPiece) error
	RaftRestore(context.Context, wire.RaftRestoreRequest) (wire.RaftRestoreResponse, error)
}

// Attacher goes on where another has left a job's input.
type Attacher interface {
	InputAt(context.Context, wire.InputAtRequest) (wire.InputAtResponse, error)
}

// Execer runs commands in ranks' places.
type Execer interface {
	Exec(context.Context, wire.ExecRequest, func(wire.ExecChunk) error) error
	ExecReach(context.Context, wire.ExecReachRequest) error
}

// Fabrics is what agents tell of the machines' hardware.
type Fabrics interface {
	Follow(context.Context, func(wire.Status) error) error
	Counters(context.Context) (wire.CountersResponse, error)
	Report(context.Context, func(wire.Evidence) error) error
}

// Addresser plans and sets the fabric's addresses.
type Addresser interface {
	Netplan(context.Context, wire.NetplanRequest) (wire.NetplanPlan, error)
	NetplanApply(context.Context, wire.NetplanApplyRequest, func(wire.NetplanProgress) error) error
}

// Backend is the other end of a command.
type Backend struct {
	Runner
	Ranks
	Rafter    // nil in standalone mode
	Attacher  // nil in standalone mode
	Execer    // nil in standalone mode
	Cluster   // nil in standalone mode
	Fabrics   // nil in standalone mode
	Addresser // nil in standalone mode
	Stager    // nil in standalone mode
	clienter  // nil in standalone mode
	Sealer
	Explain func(context.Context, wire.LaunchRequest) (wire.ExplainResponse, error)
	Close   func()
}

// DialAgent prepares calls to this machine's agent. Whether one is there shows
// at the first call.
func DialAgent() *Backend {
	paths := node.DefaultPaths()
	c := node.Dial(paths.Socket)
	return backendOf(c, localAgent{calls{c}, paths})
}

// backendOf makes a backend of calls to a cluster.
func backendOf(to *wire.Client, as Cluster) *Backend {
	c := calls{to}
	return &Backend{
		Runner: c, Ranks: c, Rafter: c, Attacher: c, Execer: c, Cluster: as, Fabrics: c, Addresser: c, Stager: c,
		clienter: c, Sealer: c,
		Explain: c.Explain, Close: c.Close,
	}
}

// localAgent is the agent of this machine, whose end shows here.
type localAgent struct {
	calls
	paths node.Paths
}

// Token waits for a leader that is about to be there: an agent that has just
// been started is asked for a token next.
func (l localAgent) Token(ctx context.Context, r wire.TokenRequest) (wire.TokenResponse, error) {
	return Patiently(ctx, func() (wire.TokenResponse, error) { return l.calls.Token(ctx, r) })
}

// Leave returns when the agent has ended and this machine's state is gone.
func (l localAgent) Leave(ctx context.Context, r wire.LeaveRequest) error {
	if err := l.calls.Leave(ctx, r); err != nil {
		return err
	}
	l.Close() // an open connection would keep the agent waiting
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if err := node.AwaitExit(ctx, l.paths); err != nil {
		return fmt.Errorf("the cluster has let this machine go, but its agent has not ended: %w: see its log", err)
	}
	return nil
}

// OpenStandalone makes this process the agent of its own job.
func OpenStandalone() (*Backend, error) {
	s, err := node.OpenStandalone(node.StandaloneConfig{})
	if err != nil {
		return nil, err
	}
	return &Backend{Runner: s, Ranks: s, Sealer: s, Explain: s.Explain, Close: func() { s.Close() }}, nil
}

// calls are the rows of wire as the interfaces above name them.
type calls struct{ *wire.Client }

func (c calls) Launch(ctx context.Context, r wire.LaunchRequest, fn func(rendezvous.Progress) error) error {
	return wire.Launch.Call(ctx, c.Client, r, fn)
}
func (c calls) Watch(ctx context.Context, r wire.JobRequest, fn func(rendezvous.Progress) error) error {
	return wire.Watch.Call(ctx, c.Client, r, fn)
}
func (c calls) Logs(ctx context.Context, r wire.LogsRequest, fn func(wire.LogChunk) error) error {
	return wire.Logs.Call(ctx, c.Client, r, fn)
}
func (c calls) Stop(ctx context.Context, r wire.StopRequest) (wire.StopResponse, error) {
	return wire.Stop.Call(ctx, c.Client, r)
}
func (c calls) Status(ctx context.Context, r wire.StatusRequest) (wire.Status, error) {
	return wire.ShowStatus.Call(ctx, c.Client, r)
}
func (c calls) Jobs(ctx context.Context) (wire.JobsResponse, error) {
	return wire.Jobs.Call(ctx, c.Client, wire.Empty{})
}
func (c calls) Token(ctx context.Context, r wire.TokenRequest) (wire.TokenResponse, error) {
	return wire.Token.Call(ctx, c.Client, r)
}
func (c calls) Leave(ctx context.Context, r wire.LeaveRequest) error {
	return wire.Leave.Call(ctx, c.Client, r)
}
func (c calls) RemoveNode(ctx context.Context, r wire.RemoveNodeRequest) (wire.RemoveNodeResponse, error) {
	return wire.RemoveNode.Call(ctx, c.Client, r)
}
func (c calls) MarkDead(ctx context.Context, r wire.MarkDeadRequest) (wire.Acknowledged, error) {
	return wire.MarkDead.Call(ctx, c.Client, r)
}
func (c calls) Takeover(ctx context.Context, r wire.TakeoverRequest) (wire.TakeoverResponse, error) {
	return wire.Takeover.Call(ctx, c.Client, r)
}
func (c calls) Doctor(ctx context.Context, r wire.DoctorRequest) (wire.DoctorResponse, error) {
	return wire.Doctor.Call(ctx, c.Client, r)
}
func (c calls) Service(ctx context.Context, r wire.ServiceRequest) (wire.ServiceResponse, error) {
	return wire.Service.Call(ctx, c.Client, r)
}
func (c calls) RaftStatus(ctx context.Context) (wire.RaftStatus, error) {
	return wire.ShowRaft.Call(ctx, c.Client, wire.Empty{})
}
func (c calls) RaftSnapshot(ctx context.Context, fn func(wire.RaftPiece) error) error {
	return wire.SaveRaft.Call(ctx, c.Client, wire.Empty{}, fn)
}
func (c calls) RaftBring(ctx context.Context, r wire.RaftPiece) error {
	return wire.RaftBring.Call(ctx, c.Client, r)
}
func (c calls) RaftRestore(ctx context.Context, r wire.RaftRestoreRequest) (wire.RaftRestoreResponse, error) {
	return wire.RaftRestore.Call(ctx, c.Client, r)
}
func (c calls) Input(ctx context.Context, r wire.InputRequest) error {
	return wire.Input.Call(ctx, c.Client, r)
}
func (c calls) InputAt(ctx context.Context, r wire.InputAtRequest) (wire.InputAtResponse, error) {
	return wire.InputAt.Call(ctx, c.Client, r)
}
func (c calls) Signal(ctx context.Context, r wire.SignalRequest) error {
	return wire.Signal.Call(ctx, c.Client, r)
}
func (c calls) Exec(ctx context.Context, r wire.ExecRequest, fn func(wire.ExecChunk) error) error {
	return wire.Exec.Call(ctx, c.Client, r, fn)
}
func (c calls) ExecReach(ctx context.Context, r wire.ExecReachRequest) error {
	return wire.ExecReach.Call(ctx, c.Client, r)
}
func (c calls) Follow(ctx context.Context, fn func(wire.Status) error) error {
	return wire.Follow.Call(ctx, c.Client, wire.Empty{}, fn)
}
func (c calls) Counters(ctx context.Context) (wire.CountersResponse, error) {
	return wire.Counters.Call(ctx, c.Client, wire.Empty{})
}
func (c calls) Report(ctx context.Context, fn func(wire.Evidence) error) error {
	return wire.Report.Call(ctx, c.Client, wire.Empty{}, fn)
}
func (c calls) Netplan(ctx context.Context, r wire.NetplanRequest) (wire.NetplanPlan, error) {
	return wire.Netplan.Call(ctx, c.Client, r)
}
func (c calls) NetplanApply(ctx context.Context, r wire.NetplanApplyRequest,
	fn func(wire.NetplanProgress) error) error {
	return wire.NetplanApply.Call(ctx, c.Client, r, fn)
}
func (c calls) Stage(ctx context.Context, r wire.StageRequest) (wire.StageResponse, error) {
	return wire.Stage.Call(ctx, c.Client, r)
}
func (c calls) StageContent(ctx context.Context, r wire.StageChunk) error {
	return wire.StageContent.Call(ctx, c.Client, r)
}
func (c calls) Seal(ctx context.Context, r wire.SealRequest) (wire.SealResponse, error) {
	return wire.Seal.Call(ctx, c.Client, r)
}
func (c calls) Clients(ctx context.Context) (wire.ClientsResponse, error) {
	return wire.Clients.Call(ctx, c.Client, wire.Empty{})
}
func (c calls) RemoveClients(ctx context.Context, r wire.RemoveClientsRequest) (wire.RemoveClientsResponse, error) {
	return wire.RemoveClients.Call(ctx, c.Client, r)
}
func (c calls) Explain(ctx context.Context, r wire.LaunchRequest) (wire.ExplainResponse, error) {
	return wire.Explain.Call(ctx, c.Client, r)
}

// Ranks are what can be done to a job's ranks while they run.
type Ranks interface {
	Input(context.Context, wire.InputRequest) error
	Signal(context.Context, wire.SignalRequest) error
}

// Sealer seals secrets for a job's spec.
type Sealer interface {
	Seal(context.Context, wire.SealRequest) (wire.SealResponse, error)
}

// Stager takes what jobs bring along.
type Stager interface {
	Stage(context.Context, wire.StageRequest) (wire.StageResponse, error)
	StageContent(context.Context, wire.StageChunk) error
}

// clienter lists and removes clients.
type clienter interface {
	Clients(context.Context) (wire.ClientsResponse, error)
	RemoveClients(context.Context, wire.RemoveClientsRequest) (wire.RemoveClientsResponse, error)
}
