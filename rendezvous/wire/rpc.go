package wire

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/stage"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// Procedures, by whom they are for.
const (
	clusterPath = "/sparkrun.v1.Cluster/" // users, through their agent
	nodePath    = "/sparkrun.v1.Node/"    // members
	joinPath    = "/sparkrun.v1.Join/"    // newcomers
)

// maxMessage bounds one message in bytes. Log chunks are far smaller; a ledger
// of a node with a thousand ranks is about 200 kB.
const maxMessage = 4 << 20

// maxStranger bounds what somebody may send who has shown no certificate.
const maxStranger = 64 << 10

// Cluster are the calls of users. They come over the local socket, or from the
// member that passes a user's call on.
type Cluster struct {
	Status  func(context.Context, Caller, StatusRequest) (Status, error)
	Launch  func(context.Context, Caller, LaunchRequest, func(rendezvous.Progress) error) error
	Watch   func(context.Context, Caller, JobRequest, func(rendezvous.Progress) error) error
	Explain func(context.Context, Caller, LaunchRequest) (ExplainResponse, error)
	Stop    func(context.Context, Caller, StopRequest) (StopResponse, error)
	Jobs    func(context.Context, Caller, Empty) (JobsResponse, error)
	Logs    func(context.Context, Caller, LogsRequest, func(LogChunk) error) error
	Input   func(context.Context, Caller, InputRequest) (Empty, error)
	InputAt func(context.Context, Caller, InputAtRequest) (InputAtResponse, error)
	Signal  func(context.Context, Caller, SignalRequest) (Empty, error)
	Token   func(context.Context, Caller, TokenRequest) (TokenResponse, error)
	Leave   func(context.Context, Caller, LeaveRequest) (Empty, error)
	// MarkDead takes a person's word that a host which does not answer runs nothing.
	MarkDead func(context.Context, Caller, MarkDeadRequest) (Acknowledged, error)
	// Takeover has this node lead a new epoch, on a person's word that the voters are off.
	Takeover func(context.Context, Caller, TakeoverRequest) (TakeoverResponse, error)

	Follow   func(context.Context, Caller, Empty, func(Status) error) error
	Counters func(context.Context, Caller, Empty) (CountersResponse, error)
	Report   func(context.Context, Caller, Empty, func(Evidence) error) error

	Stage        func(context.Context, Caller, StageRequest) (StageResponse, error)
	StageContent func(context.Context, Caller, StageChunk) (Empty, error)
	Seal         func(context.Context, Caller, SealRequest) (SealResponse, error)

	Service func(context.Context, Caller, ServiceRequest) (ServiceResponse, error)

	Exec      func(context.Context, Caller, ExecRequest, func(ExecChunk) error) error
	ExecReach func(context.Context, Caller, ExecReachRequest) (Empty, error)

	Netplan      func(context.Context, Caller, NetplanRequest) (NetplanPlan, error)
	NetplanApply func(context.Context, Caller, NetplanApplyRequest, func(NetplanProgress) error) error

	RemoveNode func(context.Context, Caller, RemoveNodeRequest) (RemoveNodeResponse, error)

	Clients       func(context.Context, Caller, Empty) (ClientsResponse, error)
	RemoveClients func(context.Context, Caller, RemoveClientsRequest) (RemoveClientsResponse, error)
	Refresh       func(context.Context, Caller, RefreshRequest) (RefreshResponse, error) // of clients alone

	RaftStatus   func(context.Context, Caller, Empty) (RaftStatus, error)
	RaftSnapshot func(context.Context, Caller, Empty, func(RaftPiece) error) error
	RaftBring    func(context.Context, Caller, RaftPiece) (Empty, error)
	RaftRestore  func(context.Context, Caller, RaftRestoreRequest) (RaftRestoreResponse, error)
}

// Node are the calls among members.
type Node struct {
	Control  func(context.Context, Caller, ControlStream) error
	NodeLogs func(context.Context, Caller, NodeLogsRequest, func(LogChunk) error) error
	Prepared func(context.Context, Caller, NodePlanRequest) (NodePlan, error) // a dry run's question
	Reach    func(context.Context, Caller, NodeReachRequest) (Empty, error)
	InputAt  func(context.Context, Caller, NodeInputAtRequest) (InputAtResponse, error)
	KeepCA   func(context.Context, Caller, CAKey) (Empty, error)
	Renew    func(context.Context, Caller, RenewRequest) (RenewResponse, error)
	Seen     func(context.Context, Caller, SeenRequest) (SeenResponse, error) // where the caller is
	// Succeed asks a pair's standby to take the place of its leader, which stops.
	Succeed func(context.Context, Caller, Empty) (Empty, error)
	// Objection says what this member knows against a take-over by another.
	Objection func(context.Context, Caller, ObjectionRequest) (ObjectionResponse, error)
	// Reunite takes a part of the record of a node that was led in an earlier epoch.
	Reunite func(context.Context, Caller, rendezvous.Reunited) (Empty, error)

	NodeCounters func(context.Context, Caller, Empty) (NodeCounters, error)
	NodeReport   func(context.Context, Caller, Empty, func(Evidence) error) error

	NodeStaged    func(context.Context, Caller, NodeStageRequest) (stage.Manifest, error)
	NodeStageRead func(context.Context, Caller, NodeStageRequest, func(StageChunk) error) error

	Fence func(context.Context, Caller, FenceRequest) ([]launcher.Pair, error)

	NodeExec      func(context.Context, Caller, NodeExecRequest, func(ExecChunk) error) error
	NodeExecReach func(context.Context, Caller, NodeExecReachRequest) (Empty, error)

	NetplanRead   func(context.Context, Caller, Empty) (NetplanFacts, error)
	NetplanCheck  func(context.Context, Caller, NetplanOrder) (NetplanVerdict, error)
	NetplanTry    func(context.Context, Caller, NetplanOrder, func(NetplanStep) error) error
	NetplanDecide func(context.Context, Caller, NetplanDecision) (Empty, error)

	NodeRaft func(context.Context, Caller, Empty) (NodeRaft, error)
	// KeepTrusted is the leader's word whom to trust; AskTrusted asks any member.
	KeepTrusted func(context.Context, Caller, Trusted) (Trusted, error)
	AskTrusted  func(context.Context, Caller, Empty) (Trusted, error)
	BeRemoved   func(context.Context, Caller, Empty) (Empty, error)
	DropCA      func(context.Context, Caller, Empty) (Empty, error)
	// BeginAnew lets a blank node have a part in raft again.
	BeginAnew func(context.Context, Caller, Empty) (Empty, error)
}

// ControlStream is the node's end of a control stream. Receive and Send may be
// called side by side, each from one goroutine.
type ControlStream interface {
	Receive() (Down, error)
	Send(Up) error
	// Close wakes a Receive that waits, and within a second a Send that does:
	// neither ends by itself while the other side only keeps silent.
	Close()
}

// Join is the call of newcomers.
type Join func(context.Context, Caller, JoinRequest) (JoinResponse, error)

// Mount serves the users' calls.
func (h Cluster) Mount(mux *http.ServeMux) {
	unary(mux, clusterPath+"Status", allowUser, h.Status)
	serverStream(mux, clusterPath+"Launch", allowUser, h.Launch)
	serverStream(mux, clusterPath+"Watch", allowUser, h.Watch)
	unary(mux, clusterPath+"Explain", allowUser, h.Explain)
	unary(mux, clusterPath+"Stop", allowUser, h.Stop)
	unary(mux, clusterPath+"Jobs", allowUser, h.Jobs)
	serverStream(mux, clusterPath+"Logs", allowUser, h.Logs)
	unary(mux, clusterPath+"Input", allowUser, h.Input)
	unary(mux, clusterPath+"InputAt", allowUser, h.InputAt)
	unary(mux, clusterPath+"Signal", allowUser, h.Signal)
	unary(mux, clusterPath+"Token", allowHere, h.Token)
	unary(mux, clusterPath+"Leave", allowHere, h.Leave)
	unary(mux, clusterPath+"MarkDead", allowUser, h.MarkDead)
	unary(mux, clusterPath+"RemoveNode", allowUser, h.RemoveNode)
	unary(mux, clusterPath+"Takeover", allowHere, h.Takeover)
	serverStream(mux, clusterPath+"Follow", allowUser, h.Follow)
	unary(mux, clusterPath+"Counters", allowUser, h.Counters)
	serverStream(mux, clusterPath+"Report", allowUser, h.Report)
	h.mountStage(mux)
	h.mountSecret(mux)
	h.mountService(mux)
	h.mountExec(mux)
	h.mountNetplan(mux)
	h.mountRaft(mux)
	h.mountClients(mux)
}

// Mount serves the members' calls.
func (h Node) Mount(mux *http.ServeMux) {
	serverStream(mux, nodePath+"NodeLogs", allowMember, h.NodeLogs)
	unary(mux, nodePath+"Prepared", allowMember, h.Prepared)
	unary(mux, nodePath+"Reach", allowMember, h.Reach)
	unary(mux, nodePath+"InputAt", allowMember, h.InputAt)
	unary(mux, nodePath+"KeepCA", allowMember, h.KeepCA)
	unary(mux, nodePath+"Renew", allowMember, h.Renew)
	unary(mux, nodePath+"Seen", allowMember, h.Seen)
	unary(mux, nodePath+"Succeed", allowMember, h.Succeed)
	unary(mux, nodePath+"Objection", allowMember, h.Objection)
	unary(mux, nodePath+"Reunite", allowMember, h.Reunite)
	unary(mux, nodePath+"NodeCounters", allowMember, h.NodeCounters)
	serverStream(mux, nodePath+"NodeReport", allowMember, h.NodeReport)
	h.mountStage(mux)
	h.mountExec(mux)
	h.mountFence(mux)
	h.mountNetplan(mux)
	h.mountRaft(mux)
	h.mountTrust(mux)
	mux.HandleFunc(nodePath+"Control", func(w http.ResponseWriter, r *http.Request) {
		deadlines := http.NewResponseController(w)
		connect.NewBidiStreamHandler(nodePath+"Control", func(ctx context.Context, s *connect.BidiStream[message, message]) error {
			c, err := callerOf(ctx, s.RequestHeader())
			if err == nil {
				err = allowMember(c)
			}
			if err == nil {
				err = h.Control(ctx, c, bidi{s, deadlines})
			}
			return outbound(err)
		}, handlerOptions[Down]()...).ServeHTTP(w, r)
	})
}

// ForStrangers tells whether a path is of a call that asks for no certificate.
func ForStrangers(path string) bool { return strings.HasPrefix(path, joinPath) }

// Mount serves the newcomers' call.
func (h Join) Mount(mux *http.ServeMux) {
	unary(mux, joinPath+"Join", allowAnybody, h, maxStranger)
}

type bidi struct {
	s         *connect.BidiStream[message, message]
	deadlines *http.ResponseController
}

func (b bidi) Receive() (Down, error) {
	d, err := b.s.Receive()
	if err != nil {
		return Down{}, err
	}
	return body[Down](d), nil
}
func (b bidi) Send(u Up) error { return b.s.Send(&message{&u}) }

// Close leaves a second for what is being written: the handler's error is the
// last word on the stream, and tells the leader why.
func (b bidi) Close() {
	_ = b.deadlines.SetReadDeadline(time.Unix(1, 0))
	_ = b.deadlines.SetWriteDeadline(time.Now().Add(time.Second))
}

func handlerOptions[Req any](limit ...int) []connect.HandlerOption {
	// No compression: it would cost more than it saves on a LAN or a socket.
	return []connect.HandlerOption{connect.WithCodec(theCodec), connect.WithRequestInitializer(empty[Req]), connect.WithReadMaxBytes(append(limit, maxMessage)[0]), connect.WithCompression("gzip", nil, nil)}
}

func unary[Req, Res any](mux *http.ServeMux, path string, allow func(Caller) error, fn func(context.Context, Caller, Req) (Res, error), limit ...int) {
	mux.Handle(path, connect.NewUnaryHandler(path, func(ctx context.Context, r *connect.Request[message]) (*connect.Response[message], error) {
		c, err := callerOf(ctx, r.Header())
		if err == nil {
			err = allow(c)
		}
		reached := err == nil
		var res Res
		if reached {
			res, err = fn(ctx, c, body[Req](r.Msg))
		}
		ended(ctx, reached, err)
		if err != nil {
			return nil, outbound(err)
		}
		return connect.NewResponse(&message{&res}), nil
	}, handlerOptions[Req](limit...)...))
}

func serverStream[Req, Res any](mux *http.ServeMux, path string, allow func(Caller) error, fn func(context.Context, Caller, Req, func(Res) error) error) {
	mux.Handle(path, connect.NewServerStreamHandler(path, func(ctx context.Context, r *connect.Request[message], s *connect.ServerStream[message]) error {
		c, err := callerOf(ctx, r.Header())
		if err == nil {
			err = allow(c)
		}
		reached := err == nil
		if reached {
			err = fn(ctx, c, body[Req](r.Msg), func(m Res) error { return s.Send(&message{&m}) })
		}
		ended(ctx, reached, err)
		return outbound(err)
	}, handlerOptions[Req]()...))
}

// Client calls one node: the own agent, the leader, or any member.
type Client struct {
	http *http.Client
	base string
	on   *Caller // whose call is passed on; nil = our own
}

// NewClient makes calls through hc, which knows how to reach and verify the
// node. base is a URL whose host only hc interprets.
func NewClient(hc *http.Client, base string) *Client { return &Client{http: hc, base: base} }

// OnBehalfOf marks calls as passed on for a user of this node: the receiver
// will not pass them on again.
func (c *Client) OnBehalfOf(user Caller) *Client {
	fwd := *c
	fwd.on = &user
	return &fwd
}

// MarkDead says of a host that it runs nothing any more.
func (c *Client) MarkDead(ctx context.Context, r MarkDeadRequest) (Acknowledged, error) {
	return call[MarkDeadRequest, Acknowledged](ctx, c, clusterPath+"MarkDead", r)
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func (c *Client) Status(ctx context.Context, r StatusRequest) (Status, error) {
	return call[StatusRequest, Status](ctx, c, clusterPath+"Status", r)
}
func (c *Client) Launch(ctx context.Context, r LaunchRequest, fn func(rendezvous.Progress) error) error {
	return receive(ctx, c, clusterPath+"Launch", r, fn)
}
func (c *Client) Watch(ctx context.Context, r JobRequest, fn func(rendezvous.Progress) error) error {
	return receive(ctx, c, clusterPath+"Watch", r, fn)
}
func (c *Client) Explain(ctx context.Context, r LaunchRequest) (ExplainResponse, error) {
	return call[LaunchRequest, ExplainResponse](ctx, c, clusterPath+"Explain", r)
}
func (c *Client) Stop(ctx context.Context, r StopRequest) (StopResponse, error) {
	return call[StopRequest, StopResponse](ctx, c, clusterPath+"Stop", r)
}
func (c *Client) Jobs(ctx context.Context) (JobsResponse, error) {
	return call[Empty, JobsResponse](ctx, c, clusterPath+"Jobs", Empty{})
}
func (c *Client) Logs(ctx context.Context, r LogsRequest, fn func(LogChunk) error) error {
	return receive(ctx, c, clusterPath+"Logs", r, fn)
}
func (c *Client) Token(ctx context.Context, r TokenRequest) (TokenResponse, error) {
	return call[TokenRequest, TokenResponse](ctx, c, clusterPath+"Token", r)
}
func (c *Client) Leave(ctx context.Context, r LeaveRequest) error {
	_, err := call[LeaveRequest, Empty](ctx, c, clusterPath+"Leave", r)
	return err
}
func (c *Client) NodeLogs(ctx context.Context, r NodeLogsRequest, fn func(LogChunk) error) error {
	return receive(ctx, c, nodePath+"NodeLogs", r, fn)
}
func (c *Client) Prepared(ctx context.Context, r NodePlanRequest) (NodePlan, error) {
	return call[NodePlanRequest, NodePlan](ctx, c, nodePath+"Prepared", r)
}
func (c *Client) KeepCA(ctx context.Context, k CAKey) error {
	_, err := call[CAKey, Empty](ctx, c, nodePath+"KeepCA", k)
	return err
}
func (c *Client) Renew(ctx context.Context, r RenewRequest) (RenewResponse, error) {
	return call[RenewRequest, RenewResponse](ctx, c, nodePath+"Renew", r)
}
func (c *Client) Seen(ctx context.Context, r SeenRequest) (SeenResponse, error) {
	return call[SeenRequest, SeenResponse](ctx, c, nodePath+"Seen", r)
}
func (c *Client) Takeover(ctx context.Context, r TakeoverRequest) (TakeoverResponse, error) {
	return call[TakeoverRequest, TakeoverResponse](ctx, c, clusterPath+"Takeover", r)
}
func (c *Client) Objection(ctx context.Context, r ObjectionRequest) (ObjectionResponse, error) {
	return call[ObjectionRequest, ObjectionResponse](ctx, c, nodePath+"Objection", r)
}
func (c *Client) Reunite(ctx context.Context, p rendezvous.Reunited) error {
	_, err := call[rendezvous.Reunited, Empty](ctx, c, nodePath+"Reunite", p)
	return err
}
func (c *Client) Succeed(ctx context.Context) error {
	_, err := call[Empty, Empty](ctx, c, nodePath+"Succeed", Empty{})
	return err
}
func (c *Client) Join(ctx context.Context, r JoinRequest) (JoinResponse, error) {
	return call[JoinRequest, JoinResponse](ctx, c, joinPath+"Join", r)
}

// connected is the client of one procedure.
func connected[Res any](c *Client, path string) *connect.Client[message, message] {
	return connect.NewClient[message, message](c.http, c.base+path, connect.WithCodec(theCodec), connect.WithResponseInitializer(empty[Res]),
		connect.WithReadMaxBytes(maxMessage), connect.WithAcceptCompression("gzip", nil, nil))
}

func call[Req, Res any](ctx context.Context, c *Client, path string, req Req) (Res, error) {
	r := connect.NewRequest(&message{&req})
	c.on.write(r.Header())
	res, err := connected[Res](c, path).CallUnary(ctx, r)
	if err != nil {
		var none Res
		return none, inbound(ctx, err)
	}
	return body[Res](res.Msg), nil
}

func receive[Req, Res any](ctx context.Context, c *Client, path string, req Req, fn func(Res) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream at the server when fn fails
	r := connect.NewRequest(&message{&req})
	c.on.write(r.Header())
	s, err := connected[Res](c, path).CallServerStream(ctx, r)
	if err != nil {
		return inbound(ctx, err)
	}
	defer s.Close()
	for s.Receive() {
		if err := fn(body[Res](s.Msg())); err != nil {
			return err
		}
	}
	return inbound(ctx, s.Err())
}

// ControlLink is the leader's end of a control stream. Receive and Send may be
// called side by side, each from one goroutine.
type ControlLink struct {
	ctx    context.Context // the stream's
	s      *connect.BidiStreamForClient[message, message]
	cancel context.CancelFunc
}

// Control opens a control stream with the first Send; it ends with ctx or by
// Close.
func (c *Client) Control(ctx context.Context) *ControlLink {
	ctx, cancel := context.WithCancel(ctx)
	return &ControlLink{ctx, connected[Up](c, nodePath+"Control").CallBidiStream(ctx), cancel}
}

// Send writes one message. io.EOF says that the other side hung up; Receive
// then tells why.
func (l *ControlLink) Send(d Down) error {
	err := l.s.Send(&message{&d})
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return inbound(l.ctx, err)
}

// Receive waits for the node's next message.
func (l *ControlLink) Receive() (Up, error) {
	u, err := l.s.Receive()
	if err != nil {
		return Up{}, inbound(l.ctx, err)
	}
	return body[Up](u), nil
}

// Close ends the stream, and with it a Send or Receive that waits.
func (l *ControlLink) Close() {
	l.cancel() // first: the closes below would wait for a silent node
	l.s.CloseRequest()
	l.s.CloseResponse()
}
