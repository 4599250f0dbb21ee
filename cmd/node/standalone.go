package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"github.com/sparkrun/sparkrun/cmd/node/jobs"
	"github.com/sparkrun/sparkrun/cmd/node/survey"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/fabric"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/agent"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/lead"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

// standalone is the leader's brain and the node's agent in one process, over a record in memory.
type standalone struct {
	host   string
	run    string
	record *rendezvous.Record
	agent  *agent.Agent
	leader *lead.Leader
	inv    envgen.Inventory
	node   rendezvous.Node
	end    context.CancelFunc
	told   chan struct{} // closed when the events' loop has returned
	ranks  *jobs.Ranks
}

// OpenStandalone launches on this machine only, with no agent and no root. It answers
// only the calls about jobs; end ends what still runs, as does the end of this process.
func OpenStandalone() (_ *wire.Client, end func(), err error) {
	s, err := openStandalone(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, nil, err
	}
	return wire.Alone(self, s.Calls()...), s.close, nil
}

// openStandalone reads this machine and is ready to launch.
func openStandalone(log *slog.Logger) (_ *standalone, err error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("read host name: %w", err)
	}
	reader, err := fabric.New(fabric.Config{Log: log})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			stop()
		}
	}()
	s := &standalone{host: host, record: rendezvous.NewRecord(), end: stop, told: make(chan struct{})}
	secrets, err := jobs.SecretsAlone()
	if err != nil {
		return nil, err
	}
	if s.inv, err = reader.Read(ctx); err != nil {
		return nil, err
	}
	boot, err := reader.BootID()
	if err != nil {
		return nil, err
	}
	mgmt, err := envgen.Management(s.inv, "")
	if err != nil { // without a network one machine can still launch
		mgmt.Addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	s.node = rendezvous.Node{ID: launcher.NodeID(uuid.NewString()), Host: host, Addr: netip.AddrPortFrom(mgmt.Addr, 0)}
	if s.run, err = os.MkdirTemp(os.Getenv("XDG_RUNTIME_DIR"), "sparkrun-"); err != nil {
		return nil, fmt.Errorf("make a run folder: %w", err)
	}
	logs, err := standaloneLogs()
	if err != nil {
		return nil, err
	}
	s.agent, err = agent.Open(agent.Config{
		Servers: engine.Servers(),
		Node:    s.node.ID, Boot: boot, RunDir: s.run, LogDir: logs, DieWithUs: true, Logger: log,
		CompileDir: filepath.Join(filepath.Dir(logs), "compiled"),
		Secrets:    secrets,
		Containers: jobs.Containers(DefaultPaths().Engine, "standalone"), // whoever may use the engine is root by it anyway
		Fabric:     func(a launcher.Assignment) ([]launcher.Setting, error) { return survey.Settings(s.inv, a) },
	})
	if err != nil {
		return nil, err
	}
	alone := wire.NewToLeader(wire.ToLeaderConfig{Host: host})
	alone.Lead(wire.Jobs.Serve(s.jobs))
	s.ranks = jobs.New(jobs.Config{Self: s.node.ID, Host: host, Record: s.record, Agent: s.agent,
		Secrets: secrets, Leader: alone, Logger: log})
	found := rendezvous.Entry{Kind: rendezvous.KindFound,
		Found: &rendezvous.Found{Cluster: "standalone", Epoch: 1, First: s.node}}
	if err := s.write(found); err != nil {
		return nil, err
	}
	fence := launcher.Fence{Epoch: launcher.Epoch{N: 1}, Term: 1}
	if err := s.agent.Raise(fence); err != nil {
		return nil, err
	}
	s.leader = lead.Open(ctx, lead.Config{Fence: fence, Record: s.record, Recorder: memory{s},
		Fabric: survey.Rules{}, Logger: log,
		Send: func(_ launcher.NodeID, o launcher.Order) {
			if err := s.agent.Order(o); err != nil {
				log.Error("order", "error", err)
			}
		}})
	s.leader.NodeUp(s.node.ID,
		lead.Up{Boot: boot, Protocol: rendezvous.Protocol, Inventory: s.inv, GPUs: proc.Here.GPUs()})
	next, cancel := s.agent.Events()
	go s.tell(ctx, next, cancel) // joined by told
	return s, nil
}

// tell passes on what happens to the ranks, until ctx ends.
func (s *standalone) tell(ctx context.Context, next func(context.Context) (launcher.Event, error), cancel func()) {
	defer close(s.told)
	defer cancel()
	for {
		ev, err := next(ctx)
		if err != nil {
			return
		}
		s.leader.Event(ev)
	}
}

// standaloneLogs is where output is kept: in the user's state folder (XDG Base Directory
// Specification).
func standaloneLogs() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "sparkrun", "logs"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find a folder for output: %w: set XDG_STATE_HOME", err)
	}
	return filepath.Join(home, ".local", "state", "sparkrun", "logs"), nil
}

// close ends what still runs.
func (s *standalone) close() {
	s.end()
	s.leader.Close()
	<-s.told
	s.agent.Close()
	os.RemoveAll(s.run)
}

// memory records for a record that nobody else has.
type memory struct{ s *standalone }

func (m memory) Plan(_ context.Context, job rendezvous.Job) error {
	return m.s.write(job.Entry())
}

func (m memory) Stop(_ context.Context, stop rendezvous.JobStop) error {
	return m.s.write(stop.Entry())
}

func (m memory) Verdict(_ context.Context, end rendezvous.JobEnd) error {
	return m.s.write(end.Verdict())
}

func (m memory) End(_ context.Context, end rendezvous.JobEnd) error {
	return m.s.write(rendezvous.Entry{Kind: rendezvous.KindEnd, End: &end})
}

func (s *standalone) write(e rendezvous.Entry) error {
	e.At = time.Now()
	data, err := e.Encode()
	if err != nil {
		return err
	}
	_, _, index := s.record.Cluster()
	refused, _ := s.record.Apply(index+1, data).(error)
	return refused
}

// Calls are the procedures it answers: it always leads.
func (s *standalone) Calls() []wire.Call {
	return []wire.Call{
		wire.Launch.Serve(s.launch), wire.Watch.Serve(s.watch), wire.Explain.Serve(s.explain), wire.Stop.Serve(s.stop),
		wire.Jobs.Serve(s.jobs),
		wire.Logs.Serve(s.ranks.Logs), wire.Input.Serve(s.ranks.Input), wire.Signal.Serve(s.ranks.Signal),
		wire.Seal.Serve(s.ranks.Secrets.Seal),
	}
}

// launch runs a job on this machine and tells how it goes.
func (s *standalone) launch(ctx context.Context, _ wire.Caller, r wire.LaunchRequest,
	tell func(rendezvous.Progress) error) error {
	if err := s.onlyHere(r.Spec); err != nil {
		return err
	}
	if err := s.leader.Launch(ctx, r.Spec); err != nil {
		return err
	}
	return s.leader.Watch(ctx, r.Spec.ID, tell)
}

func (s *standalone) onlyHere(spec launcher.Spec) error {
	if spec.Nodes > 1 || len(spec.On) > 1 || len(spec.On) == 1 && spec.On[0] != s.host {
		return fmt.Errorf("%w: --standalone runs on this machine (%s) only: leave out --nodes and --on, or launch in a "+
			"cluster", launcher.ErrInvalid, s.host)
	}
	return nil
}

// self is the caller here: the user that owns everything in it.
var self = wire.Caller{User: &wire.User{}}

// jobs lists all jobs of this process.
func (s *standalone) jobs(_ context.Context, _ wire.Caller, r wire.JobsRequest) (res wire.JobsResponse, err error) {
	for _, j := range s.record.Jobs() {
		if st := rendezvous.StatusOf(j); r.Wants(st) {
			res.Jobs = append(res.Jobs, st)
		}
	}
	return res, nil
}

func (s *standalone) watch(ctx context.Context, _ wire.Caller, r wire.JobRequest,
	tell func(rendezvous.Progress) error) error {
	return s.leader.Watch(ctx, launcher.JobID(r.Job), tell)
}

func (s *standalone) stop(ctx context.Context, _ wire.Caller, r wire.StopRequest) (wire.StopResponse, error) {
	job, err := s.record.Find("", r.Job)
	if err != nil {
		return wire.StopResponse{}, err
	}
	grace := job.Spec.Grace
	if r.Grace != nil {
		grace = *r.Grace
	}
	return wire.StopResponse{Job: job.Spec.ID}, s.leader.StopBy(ctx, job.Spec.ID,
		rendezvous.Stop{Grace: grace, Reason: "stopped", Interrupt: r.Interrupt})
}

// explain shows what launch would do.
func (s *standalone) explain(ctx context.Context, c wire.Caller, r wire.LaunchRequest) (wire.ExplainResponse, error) {
	spec := r.Spec.WithDefaults()
	if err := errors.Join(spec.Validate(), s.onlyHere(spec)); err != nil {
		return wire.ExplainResponse{}, err
	}
	plan, _, err := s.leader.Place(spec) // one node needs no fabric
	if err != nil {
		return wire.ExplainResponse{}, err
	}
	p, err := s.ranks.Prepared(ctx, c, wire.NodePlanRequest{Assignment: plan.Assignment(spec, 0), Model: r.Model})
	return wire.ExplainResponse{Plan: plan, Nodes: []wire.NodePlan{p}}, err
}
