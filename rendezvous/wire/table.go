package wire

import (
	"github.com/sparkrun/sparkrun/launcher/filesync"
	"github.com/sparkrun/sparkrun/launcher/filesync/hub"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// What users call; what each node answers for itself is in everywhere.go.
var (
	ShowStatus = unary[StatusRequest, Status](Row{Name: "status", Who: users, To: leader, Asks: true,
		Does: "the machines and who leads; with wait_nodes once that many are ready"})
	Follow = stream[Empty, Status](Row{Name: "follow", Who: users, To: leader,
		Does: "status, and again after every change"})
	Launch = stream[LaunchRequest, rendezvous.Progress](Row{Name: "launch", Who: users, To: leader, Audit: "launch",
		Does: "start a job, and tell how it goes until it ends; asking twice with one id starts once"})
	Watch = stream[JobRequest, rendezvous.Progress](Row{Name: "watch", Who: users, To: leader,
		Does: "tell how a job goes, from its beginning until it ends"})
	Explain = unary[LaunchRequest, ExplainResponse](Row{Name: "explain", Who: users, To: leader,
		Does: "what launch would do, per node"})
	Stop = unary[StopRequest, StopResponse](Row{Name: "stop", Who: users, To: leader, Audit: "stop",
		Does: "end a job"})
	Jobs = unary[JobsRequest, JobsResponse](Row{Name: "jobs", Who: users, To: leader, Asks: true,
		Does: "all jobs, oldest first"})
	Service = unary[ServiceRequest, ServiceResponse](Row{Name: "service", Who: users, To: leader, Audit: "service",
		Does: "whether a service comes back after all its machines were off"})
	UpdateService = unary[UpdateServiceRequest, ServiceResponse](Row{Name: "service-update", Who: users, To: leader,
		Audit: "service update",
		Does:  "give a service another image: its requests end, its ranks start anew, and go back if that fails"})
	Restart = unary[JobRequest, ServiceResponse](Row{Name: "restart", Who: users, To: leader, Audit: "restart",
		Does: "end a service's ranks and start it anew; it counts as one of its --restart"})
	ShowGateway = unary[Empty, GatewayResponse](Row{Name: "gateway", Who: users, To: leader, Asks: true,
		Does: "the one address for all models: its settings, and the services behind it"})
	ChangeGateway = unary[rendezvous.GatewayChange, Acknowledged](Row{Name: "gateway-change", Who: usersHere, To: leader,
		Audit: "gateway",
		Does:  "change one of its settings: open it, make or revoke a key, set or remove an alias, its CA"})
	ShowNotify = unary[Empty, NotifyResponse](Row{Name: "notify", Who: users, To: leader, Asks: true,
		Does: "who is told of jobs, services and machines, and how that went"})
	ChangeNotify = unary[NotifyChangeRequest, Acknowledged](Row{Name: "notify-change", Who: usersHere, To: leader,
		Audit: "notify", Does: "have a webhook called, or a command run, when something happens, or no longer"})
	TestNotify = unary[NotifyTestRequest, NotifyTestResponse](Row{Name: "notify-test", Who: usersHere, To: leader,
		Audit: "notify test", Does: "send one of them a test"})
	OpenWeb = unary[Empty, WebLink](Row{Name: "web", Who: users, Audit: "web",
		Does: "a link to the page of the machine that is asked: it opens that once, soon, for who asked"})
	Logs = stream[LogsRequest, LogChunk](Row{Name: "logs", Who: users,
		Does: "the output of a job's ranks, from every node that has some"})
	Input = order[InputRequest](Row{Name: "input", Who: users, Own: true,
		Does: "a piece of a job's standard input; it returns when all ranks have taken it"})
	InputAt = unary[InputAtRequest, InputAtResponse](Row{Name: "input-at", Who: users, Audit: "attach",
		Does: "where the input of a rank goes on"})
	Signal = order[SignalRequest](Row{Name: "signal", Who: users, Audit: "signal",
		Does: "pass a signal to a job's ranks"})
	Exec = stream[ExecRequest, ExecChunk](Row{Name: "exec", Who: users, Own: true,
		Does: "run a command beside a rank, for as long as the call lasts"})
	ExecReach = order[ExecReachRequest](Row{Name: "exec-reach", Who: users, Own: true,
		Does: "input, a signal or a terminal's size for a command of exec"})
	Stage = unary[StageRequest, StageResponse](Row{Name: "stage", Who: users,
		Does: "hand over the list of files that a job brings along; the reply names those to be sent"})
	StageContent = order[StageChunk](Row{Name: "stage-content", Who: users, Own: true,
		Does: "a piece of a file that a job brings along"})
	Seal = unary[SealRequest, SealResponse](Row{Name: "seal", Who: users,
		Does: "seal a job's secrets for its spec"})
	ModelPull = stream[ModelPullRequest, ModelProgress](Row{Name: "model-pull", Who: users, Audit: "model pull",
		Does: "have machines fetch a model, and tell how far they are; they go on when the call ends"})
	ModelVerify = stream[ModelRequest, ModelVerdict](Row{Name: "model-verify", Who: users,
		Does: "read a model's files on all machines that have it, and compare them with their sums"})
	ModelRemove = unary[ModelRemoveRequest, ModelRemoved](Row{Name: "model-remove", Who: usersHere, Audit: "model rm",
		Does: "remove a model from machines; what is in use is not removed"})
	ModelAdd = unary[ModelAddRequest, ModelAdded](Row{Name: "model-add", Who: usersHere, Audit: "model add",
		Does: "take a folder of the machine that is asked as a model"})
	ImagePull = stream[ImagePullRequest, ModelProgress](Row{Name: "image-pull", Who: users, Audit: "image pull",
		Does: "have machines' engines get an image, once from its registry; they go on when the call ends"})
	Report = stream[Empty, Evidence](Row{Name: "report", Who: users,
		Does: "every node's evidence, in no order"})
	Doctor = unary[DoctorRequest, DoctorResponse](Row{Name: "doctor", Who: users,
		Does: "what is wrong in the cluster, and with fix the few repairs that are safe"})
	Why = unary[WhyRequest, WhyResponse](Row{Name: "why", Who: users,
		Does: "what is wrong with a job, a service or a machine, the most probable cause first; it takes some seconds"})
	Netplan = unary[NetplanRequest, NetplanPlan](Row{Name: "netplan", Who: users, To: leader, Asks: true,
		Does: "what the fabric's addresses shall be, per node"})
	NetplanApply = stream[NetplanApplyRequest, NetplanProgress](Row{Name: "netplan-apply", Who: users, To: leader,
		Does: "put the planned addresses in force on all nodes, or on none"})
	Token = unary[TokenRequest, TokenResponse](Row{Name: "token", Who: usersHere, To: leader, Own: true,
		Does: "make a token that lets others in"})
	Leave = order[LeaveRequest](Row{Name: "leave", Who: usersHere, Audit: "leave",
		Does: "take the machine that is asked out of its cluster"})
	RemoveNode = unary[RemoveNodeRequest, RemoveNodeResponse](Row{Name: "remove-node", Who: users, To: leader,
		Audit: "node remove",
		Does:  "take a machine out of the cluster"})
	DrainNode = stream[DrainRequest, DrainProgress](Row{Name: "drain-node", Who: users, To: leader, Audit: "node drain",
		Does: "keep new ranks away from a machine, or no longer, and tell what still has some there"})
	MarkDead = unary[MarkDeadRequest, Acknowledged](Row{Name: "mark-dead", Who: users, To: leader, Audit: "mark-dead",
		Does: "a person's word that a machine which does not answer runs nothing"})
	Takeover = unary[TakeoverRequest, TakeoverResponse](Row{Name: "takeover", Who: usersHere, Audit: "takeover",
		Does: "have the machine that is asked lead a new epoch, on a person's word that the voters are off"})
	Clients = unary[Empty, ClientsResponse](Row{Name: "clients", Who: users, To: leader,
		Does: "the clients, whoever's they are"})
	RemoveClients = unary[RemoveClientsRequest, RemoveClientsResponse](Row{Name: "remove-clients", Who: users, To: leader,
		Audit: "client remove",
		Does:  "take clients out"})
	Refresh = unary[RefreshRequest, RefreshResponse](Row{Name: "refresh", Who: clients, Limit: maxUnauthenticated,
		Does: "where the members are, and a client's next certificate"})
	ShowRaft = unary[Empty, RaftStatus](Row{Name: "raft-status", Who: users,
		Does: "where every copy of the record stands; it needs no leader"})
	SaveRaft = stream[Empty, RaftPiece](Row{Name: "raft-snapshot", Who: users, To: leader,
		Does: "a copy of the record, piece by piece"})
	RaftBring = order[RaftPiece](Row{Name: "raft-bring", Who: usersHere,
		Does: "a piece of a copy of the record, to the node that is to restore it"})
	RaftRestore = unary[RaftRestoreRequest, RaftRestoreResponse](Row{Name: "raft-restore", Who: usersHere,
		Audit: "restore",
		Does:  "have the node lead a new epoch that begins with the copy that was brought"})
)

// What members ask of each other: of the node that is called, but for three that only a leader answers.
var (
	Control = duplex{enter[Down, Up](Row{Name: "control", Who: members, Streams: true,
		Does: "a leader's control stream"})}
	KeepCA = order[CAKey](Row{Name: "keep-ca", Who: members, Does: "keep the CA's key"})
	DropCA = order[Empty](Row{Name: "drop-ca", Who: members,
		Does: "forget the CA's key: you neither vote nor stand by"})
	Renew = unary[RenewRequest, RenewResponse](Row{Name: "renew", Who: members, To: leader,
		Does: "sign the caller's next certificate"})
	KeepTrusted = unary[Trusted, Trusted](Row{Name: "keep-trusted", Who: members,
		Does: "the leader's word whom to trust; the reply has the keys that are here then"})
	AskTrusted = unary[Empty, Trusted](Row{Name: "ask-trusted", Who: members, Does: "whom do you trust"})
	BeRemoved  = order[Empty](Row{Name: "be-removed", Who: members, Does: "you are being taken out of the cluster"})

	Seen = unary[SeenRequest, SeenResponse](Row{Name: "seen", Who: members,
		Does: "where is the caller, and who leads"})
	Succeed = order[Empty](Row{Name: "succeed", Who: members,
		Does: "a pair's standby is to take the place of its leader, which stops"})
	Objection = unary[ObjectionRequest, ObjectionResponse](Row{Name: "objection", Who: members,
		Does: "what speaks against a take-over by the caller"})
	Reunite = order[rendezvous.Reunited](Row{Name: "reunite", Who: members, To: leader,
		Does: "a part of the record of a node that was led in an earlier epoch"})
	ReadRaft  = unary[Empty, NodeRaft](Row{Name: "raft", Who: members, Does: "the node's part in raft"})
	BeginAnew = order[Empty](Row{Name: "begin-anew", Who: members,
		Does: "you are blank, have no part in raft any more, and may get one"})

	FollowGateway = stream[Empty, rendezvous.GatewayMap](Row{Name: "gateway-map", Who: members, To: leader,
		Does: "where requests for models go, and again after every change"})
	UseServices = unary[UseServicesRequest, UseServicesResponse](Row{Name: "services-used", Who: members, To: leader,
		Does: "requests at a member that services wait for; the reply says which of them cannot be started, and why"})
	SignGateway = unary[SignGatewayRequest, SignGatewayResponse](Row{Name: "gateway-sign", Who: members, To: leader,
		Does: "sign the certificate by which the caller's gateway speaks TLS"})

	NodeLogs = stream[NodeLogsRequest, LogChunk](Row{Name: "logs", Who: members,
		Does: "the output of a job's ranks on the node"})
	Prepared = unary[NodePlanRequest, NodePlan](Row{Name: "prepared", Who: members,
		Does: "a node's part of a dry run"})
	NodeReach   = order[NodeReachRequest](Row{Name: "reach", Who: members, Does: "input or a signal for a rank"})
	NodeInputAt = unary[NodeInputAtRequest, InputAtResponse](Row{Name: "input-at", Who: members,
		Does: "where the input of a rank goes on"})
	NodeExec = stream[NodeExecRequest, ExecChunk](Row{Name: "exec", Who: members,
		Does: "run a command beside a rank"})
	NodeExecReach = order[NodeExecReachRequest](Row{Name: "exec-reach", Who: members,
		Does: "input or a signal for such a command"})
	NodeStaged = unary[NodeStageRequest, filesync.Manifest](Row{Name: "staged", Who: members,
		Does: "the list of files that a job brings along"})
	NodeStageRead = stream[NodeStageRequest, StageChunk](Row{Name: "stage-read", Who: members,
		Does: "one of those files, piece by piece"})
	barrier = stream[BarrierRequest, BarrierPart](Row{Name: "barrier", Who: members,
		Does: "what the MPI ranks of all nodes have put before a barrier, once all have reached it"})

	NodeModel = order[NodeModelRequest](Row{Name: "model", Who: members, Limit: maxManifest,
		Does: "fetch a model's files; the order is kept until they are there"})
	NodeModelProgress = stream[NodeModelWatch, ModelProgress](Row{Name: "model-progress", Who: members,
		Does: "how far the node is with an order"})
	NodeModelManifest = unary[NodeModelWatch, modelcache.Manifest](Row{Name: "model-manifest", Who: members,
		Limit: maxManifest, Does: "the files of a commit that the node has"})
	NodeModelAsk = unary[NodeModelAskRequest, hub.Revision](Row{Name: "model-ask", Who: members, Limit: maxManifest,
		Does: "what the Hub says that a revision has, where the caller has no way to it"})
	NodeModelVerify = stream[ModelRequest, ModelVerdict](Row{Name: "model-verify", Who: members,
		Does: "the node's part of model-verify"})
	NodeModelRemove = unary[ModelRemoveRequest, NodeModelRemoved](Row{Name: "model-remove", Who: members,
		Does: "the node's part of model-remove"})
	NodeSaveImage = stream[NodeImageSave, ImageSaved](Row{Name: "save-image", Who: members,
		Does: "take an image out of the node's engine, to hand it on"})

	NodeReport = stream[Empty, Evidence](Row{Name: "report", Who: members, Does: "the node's evidence"})
	Examine    = unary[ExamineRequest, ExamineResponse](Row{Name: "examine", Who: members,
		Does: "what the node is, and its part of the checks"})
	Look = unary[LookRequest, NodeLook](Row{Name: "look", Who: members,
		Does: "look at yourself and at ranks for two seconds: what they use, what they wait for, their connections"})
	MendNode = unary[MendRequest, MendResponse](Row{Name: "mend", Who: members,
		Does: "repairs of the node, on behalf of root"})
	NetplanRead = unary[Empty, NetplanFacts](Row{Name: "netplan-read", Who: members,
		Does: "what the node knows of its addresses"})
	NetplanCheck = unary[NetplanOrder, NetplanVerdict](Row{Name: "netplan-check", Who: members,
		Does: "what the node says of an order, before anything is touched"})
	NetplanTry = stream[NetplanOrder, NetplanStep](Row{Name: "netplan-try", Who: members,
		Does: "make the node's part of a change; it goes back when the call ends before the last step"})
	NetplanDecide = order[NetplanDecision](Row{Name: "netplan-decide", Who: members,
		Does: "all nodes have got so far, or: go back"})
)

// What those call who have shown no certificate.
var (
	Join = unary[JoinRequest, JoinResponse](Row{Name: "join", Who: newcomers, To: leader, Limit: maxUnauthenticated,
		Does: "make the caller a member"})
	Login = unary[LoginRequest, LoginResponse](Row{Name: "login", Who: newcomers, To: leader, Limit: maxUnauthenticated,
		Does: "make the caller a client"})
	RenewExpired = unary[RenewExpiredRequest, RenewResponse](Row{
		Name: "renew-expired", Who: newcomers, Limit: maxUnauthenticated,
		Does: "a new certificate in place of one that has ended"})
)
