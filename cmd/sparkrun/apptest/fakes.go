// Package apptest has what tests of several commands share: a fake cluster, and answers
// for it.
//
// The program must not import it.
package apptest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Answers are some of an agent's calls.
type Answers interface{ Calls() []wire.Call }

// Agent is a client of an agent that answers only these calls.
func Agent(parts ...Answers) *wire.Client {
	var calls []wire.Call
	for _, p := range parts {
		calls = append(calls, p.Calls()...)
	}
	return wire.Alone(wire.Caller{User: &wire.User{Name: "ada", UID: 1000}}, calls...)
}

// Calls are Answers that are given as a list.
type Calls []wire.Call

func (c Calls) Calls() []wire.Call { return c }

// FakeRunner is a cluster with one job. Each field answers one call; n counts the calls
// of its kind from 1.
type FakeRunner struct {
	OnLaunch  func(ctx context.Context, n int, tell func(rendezvous.Progress) error) error
	OnWatch   func(ctx context.Context, n int, tell func(rendezvous.Progress) error) error
	OnLogs    func(ctx context.Context, n int, r wire.LogsRequest, fn func(wire.LogChunk) error) error
	OnStop    func(n int, r wire.StopRequest) error
	OnExplain func(context.Context, wire.LaunchRequest) (wire.ExplainResponse, error)
	Ranks     Answers // nil: they take all input

	mu       sync.Mutex
	Launched []launcher.JobID
	Specs    []launcher.Spec // of them
	watched  int
	Read     int
	Stops    []string
}

// Explains is a cluster that answers every Explain with res.
func Explains(res wire.ExplainResponse) *FakeRunner {
	return &FakeRunner{OnExplain: func(context.Context, wire.LaunchRequest) (wire.ExplainResponse, error) {
		return res, nil
	}}
}

func (f *FakeRunner) Calls() []wire.Call {
	if f.Ranks == nil {
		f.Ranks = &FakeRanks{}
	}
	return append(f.Ranks.Calls(), wire.Launch.Serve(f.launch), wire.Watch.Serve(f.watch), wire.Logs.Serve(f.logs),
		wire.Stop.Serve(f.stop), wire.Explain.Serve(f.explain))
}

// Spec is what was launched last.
func (f *FakeRunner) Spec() (last launcher.Spec) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.Specs); n > 0 {
		last = f.Specs[n-1]
	}
	return last
}

func (f *FakeRunner) launch(ctx context.Context, _ wire.Caller, r wire.LaunchRequest,
	tell func(rendezvous.Progress) error) error {
	f.mu.Lock()
	f.Launched, f.Specs = append(f.Launched, r.Spec.ID), append(f.Specs, r.Spec)
	n := len(f.Launched)
	f.mu.Unlock()
	return f.OnLaunch(ctx, n, tell)
}

func (f *FakeRunner) watch(ctx context.Context, _ wire.Caller, _ wire.JobRequest,
	tell func(rendezvous.Progress) error) error {
	f.mu.Lock()
	f.watched++
	n := f.watched
	f.mu.Unlock()
	return f.OnWatch(ctx, n, tell)
}

func (f *FakeRunner) logs(ctx context.Context, _ wire.Caller, r wire.LogsRequest, fn func(wire.LogChunk) error) error {
	f.mu.Lock()
	f.Read++
	n := f.Read
	f.mu.Unlock()
	if f.OnLogs == nil {
		return nil
	}
	return f.OnLogs(ctx, n, r, fn)
}

func (f *FakeRunner) stop(_ context.Context, _ wire.Caller, r wire.StopRequest) (wire.StopResponse, error) {
	f.mu.Lock()
	grace := "its own"
	if r.Grace != nil {
		grace = r.Grace.String()
	}
	f.Stops = append(f.Stops, grace)
	n := len(f.Stops)
	f.mu.Unlock()
	if f.OnStop == nil {
		return wire.StopResponse{Job: launcher.JobID(r.Job)}, nil
	}
	return wire.StopResponse{Job: launcher.JobID(r.Job)}, f.OnStop(n, r)
}

func (f *FakeRunner) explain(ctx context.Context, _ wire.Caller, r wire.LaunchRequest) (wire.ExplainResponse, error) {
	if f.OnExplain == nil {
		return wire.ExplainResponse{}, errors.New("nobody explains it")
	}
	return f.OnExplain(ctx, r)
}

// SyncBuffer is a buffer that is read while it is written.
type SyncBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *SyncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *SyncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

// FakeRanks take input as ranks do: by offset, and sometimes not at all.
type FakeRanks struct {
	mu      sync.Mutex
	Got     strings.Builder
	Ended   bool
	calls   int
	Fails   func(call int) error
	Signals []int
}

func (f *FakeRanks) Calls() []wire.Call { return RankCalls(f.Input, f.Signal) }

// RankCalls are the calls about ranks.
func RankCalls(input func(context.Context, wire.InputRequest) error,
	signal func(context.Context, wire.SignalRequest) error) []wire.Call {
	return []wire.Call{
		wire.Input.Serve(func(ctx context.Context, _ wire.Caller, r wire.InputRequest) (wire.Empty, error) {
			return wire.Empty{}, input(ctx, r)
		}),
		wire.Signal.Serve(func(ctx context.Context, _ wire.Caller, r wire.SignalRequest) (wire.Empty, error) {
			return wire.Empty{}, signal(ctx, r)
		}),
	}
}

func (f *FakeRanks) Input(_ context.Context, r wire.InputRequest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	have := int64(f.Got.Len())
	if r.Offset > have {
		return errors.New("a hole")
	}
	f.Got.Write(r.Data[min(have-r.Offset, int64(len(r.Data))):])
	f.Ended = f.Ended || r.End
	if f.Fails != nil {
		return f.Fails(f.calls)
	}
	return nil
}

func (f *FakeRanks) Signal(_ context.Context, r wire.SignalRequest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Signals = append(f.Signals, r.Signal)
	if f.Fails != nil {
		return f.Fails(len(f.Signals))
	}
	return nil
}

// PTY gives both ends of a pseudo-terminal of 40 rows and 120 columns.
func PTY(t *testing.T) (keyboard, screen *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keyboard.Close() })
	fd := int(keyboard.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 120})
	}
	if err == nil {
		screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { screen.Close() })
	return keyboard, screen
}

// Golden compares with a file of testdata, or writes it with -update.
func Golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *Update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s -want +got:\n%s", name, diff)
	}
}

// Update rewrites the goldens.
var Update = flag.Bool("update", false, "write the goldens anew")

// Out is a chunk of a rank's standard output.
func Out(rank int, offset int64, text string) wire.LogChunk {
	return wire.LogChunk{Rank: rank, Stream: wire.Stdout, Offset: offset, Data: []byte(text),
		Host: fmt.Sprintf("spark%d", rank+1)}
}

// Errs is a chunk of a rank's standard error.
func Errs(rank int, offset int64, text string) wire.LogChunk {
	c := Out(rank, offset, text)
	c.Stream = wire.Stderr
	return c
}

// WriterFunc is a function as an io.Writer.
type WriterFunc func([]byte) (int, error)

func (w WriterFunc) Write(b []byte) (int, error) { return w(b) }

// SomeJobs are a job that has failed and one that runs.
func SomeJobs() wire.JobsResponse {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	nodes := func(hosts ...string) (ps []rendezvous.Place) {
		for _, h := range hosts {
			ps = append(ps, rendezvous.Place{Host: h})
		}
		return ps
	}
	old := rendezvous.Job{
		Spec: launcher.Spec{ID: "aaaa", Workload: "exec", User: "ada"}, Planned: at,
		Plan: rendezvous.Plan{World: 6, Nodes: nodes("spark1", "spark2", "spark3", "spark4", "spark5", "spark6")},
		Outcome: &rendezvous.Outcome{End: rendezvous.Failed, At: at.Add(time.Minute), ExitCode: 7,
			Cause: "rank 1 on spark2: exit 7"},
	}
	now := rendezvous.Job{
		Spec: launcher.Spec{ID: "bbbb", Name: "train", Workload: "torchrun", User: "ada"}, Planned: at.Add(time.Hour),
		Plan: rendezvous.Plan{World: 4, Nodes: nodes("spark1", "spark2")},
	}
	return wire.JobsResponse{Jobs: []rendezvous.JobStatus{
		rendezvous.StatusOf(old), {Job: now, State: rendezvous.StateRuns, Away: []string{"spark2"}},
	}}
}

// FailedJob is a job whose rank 1 raised an exception, which made rank 0 fail too.
func FailedJob(at time.Time) rendezvous.JobStatus {
	root := launcher.RankExit{Rank: 1, Host: "spark2", Time: at, Exit: launcher.Exit{Code: 1,
		Words: "RuntimeError: out of luck",
		Trace: "Traceback (most recent call last):\n  boom()\nRuntimeError: out of luck", Last: "bye"}}
	started := at.Add(-3 * time.Minute)
	return rendezvous.JobStatus{
		Job: rendezvous.Job{
			Spec: launcher.Spec{ID: "zvuddexrd9", Name: "train", Workload: "torchrun", User: "ada",
				Stages: []launcher.Stage{{Main: true,
					Argv: launcher.Lits("python3", "train.py", "--note", "two\nlines, \x1b[31mred")}}},
			Planned: started,
			Plan: rendezvous.Plan{Generation: 1, World: 2, Nodes: []rendezvous.Place{
				{Host: "spark1", Ranks: 1}, {Host: "spark2", FirstRank: 1, Ranks: 1}}},
			Outcome: &rendezvous.Outcome{End: rendezvous.Failed, ExitCode: 1, At: at, Started: &started, Root: &root,
				Cause: "rank 1 on spark2: exit 1: RuntimeError: out of luck",
				Exits: []launcher.RankExit{
					{Rank: 1, Host: "spark2", Time: at, Exit: root.Exit.Bare()},
					{Rank: 0, Host: "spark1", Time: at.Add(40 * time.Millisecond),
						Exit: launcher.Exit{Code: 1, LostPeer: true, Words: "Connection closed by peer"}},
					{Rank: 2, Host: "spark1", Time: at.Add(time.Second), Exit: launcher.Exit{Signal: 15, ByUs: true}},
				}},
		},
		State: rendezvous.State(rendezvous.Failed), Started: &started,
	}
}

// Failing is a writer whose writes fail.
type Failing struct{ Err error }

func (f Failing) Write([]byte) (int, error) { return 0, f.Err }

// FakeCluster answers what the commands about the cluster ask an agent.
type FakeCluster struct {
	dead     []string // hosts marked dead
	OnStatus func(wire.StatusRequest) (wire.Status, error)
	Has      wire.JobsResponse
	Gives    wire.TokenResponse
	Removed  wire.RemoveNodeResponse
	Passing  int // calls that fail before one is answered
	Err      error
	OnlyOn   string
	leaves   int
	Finds    wire.DoctorResponse
	Loads    wire.LoadResponse
	Requests []any
}

func (f *FakeCluster) Calls() []wire.Call {
	return []wire.Call{
		wire.ShowStatus.Serve(f.status), wire.Jobs.Serve(f.jobs), wire.Service.Serve(f.service),
		wire.Token.Serve(f.token), wire.Doctor.Serve(f.doctor), wire.Load.Serve(f.load), wire.Leave.Serve(f.leave),
		wire.RemoveNode.Serve(f.removeNode), wire.MarkDead.Serve(f.markDead), wire.Takeover.Serve(f.takeover),
	}
}

func (f *FakeCluster) status(_ context.Context, _ wire.Caller, r wire.StatusRequest) (wire.Status, error) {
	f.Requests = append(f.Requests, r)
	if f.OnStatus == nil {
		return wire.Status{Epoch: 3, Leader: "spark1"}, f.Err
	}
	return f.OnStatus(r)
}

func (f *FakeCluster) service(_ context.Context, _ wire.Caller, r wire.ServiceRequest) (wire.ServiceResponse, error) {
	f.Requests = append(f.Requests, r)
	return wire.ServiceResponse{Job: launcher.JobID(r.Job + "k3x"), OnlyOn: f.OnlyOn}, f.Err
}

func (f *FakeCluster) jobs(_ context.Context, _ wire.Caller, r wire.JobsRequest) (wire.JobsResponse, error) {
	res := f.Has
	res.Jobs = slices.DeleteFunc(slices.Clone(res.Jobs), func(j rendezvous.JobStatus) bool { return !r.Wants(j) })
	return res, f.Err
}

func (f *FakeCluster) token(_ context.Context, _ wire.Caller, r wire.TokenRequest) (wire.TokenResponse, error) {
	f.Requests = append(f.Requests, r)
	return f.Gives, f.Err
}

func (f *FakeCluster) doctor(_ context.Context, _ wire.Caller, r wire.DoctorRequest) (wire.DoctorResponse, error) {
	f.Requests = append(f.Requests, r)
	return f.Finds, f.Err
}

func (f *FakeCluster) load(_ context.Context, _ wire.Caller, r wire.LoadRequest) (wire.LoadResponse, error) {
	f.Requests = append(f.Requests, r)
	return f.Loads, f.Err
}

func (f *FakeCluster) leave(context.Context, wire.Caller, wire.LeaveRequest) (wire.Empty, error) {
	f.leaves++
	return wire.Empty{}, f.Err
}

func (f *FakeCluster) removeNode(_ context.Context, _ wire.Caller,
	r wire.RemoveNodeRequest) (wire.RemoveNodeResponse, error) {
	f.Requests = append(f.Requests, r)
	if len(f.Requests) < f.Passing {
		return wire.RemoveNodeResponse{}, fmt.Errorf("spark1 has passed the leadership on: %w", wire.ErrRetry)
	}
	return f.Removed, f.Err
}

func (f *FakeCluster) takeover(_ context.Context, _ wire.Caller,
	r wire.TakeoverRequest) (wire.TakeoverResponse, error) {
	f.Requests = append(f.Requests, r)
	return wire.TakeoverResponse{Host: "spark2", Epoch: 3}, f.Err
}

func (f *FakeCluster) markDead(_ context.Context, _ wire.Caller, r wire.MarkDeadRequest) (wire.Acknowledged, error) {
	f.dead = append(f.dead, r.Host)
	return wire.Acknowledged{OnlyOn: f.OnlyOn}, f.Err
}

// IsRaw tells whether a terminal is in raw mode.
func IsRaw(t *testing.T, f *os.File) bool {
	t.Helper()
	st, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return st.Lflag&unix.ICANON == 0
}

// SomeServices are a service that is well, one that is wedged, and one that waits for its
// machines.
func SomeServices() wire.JobsResponse {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	job := func(id launcher.JobID, v launcher.Service) rendezvous.Job {
		v.Port, v.Metrics, v.Restarts, v.Per = launcher.Of(launcher.PortNamed("serve.api")), "/metrics", 3, time.Hour
		return rendezvous.Job{
			Spec: launcher.Spec{ID: id, Name: "of-" + string(id), Workload: "exec", User: "ada", Service: &v,
				Stages: []launcher.Stage{{Main: true, Ports: []launcher.NamedPort{{Name: "serve.api", At: 8000}}}}}, Planned: at,
			Plan: rendezvous.Plan{Generation: 1, World: 1,
				Nodes: []rendezvous.Place{{Host: "spark1", Ranks: 1, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}},
		}
	}
	well := rendezvous.JobStatus{Job: job("aaaa", launcher.Service{Model: "m", Autostart: true}),
		State: rendezvous.StateRuns,
		Service: &launcher.ServiceSeen{State: launcher.ServiceReady, Since: at, Addr: "10.0.0.1:8000", Rate: new(86.5),
			Running: new(2), Memory: new(int64(37 << 30))}}
	well.Spec.Memory = &launcher.Memory{Bytes: 40 << 30}
	stuck := rendezvous.JobStatus{Job: job("bbbb", launcher.Service{}), State: rendezvous.StateRuns,
		Service: &launcher.ServiceSeen{State: launcher.ServiceWedged, Since: at, Addr: "127.0.0.1:8000",
			Rate: new(0.0), Running: new(3), Text: "3 requests are running, and no token has come for 50s"}}
	waits := rendezvous.JobStatus{Job: job("cccc", launcher.Service{}), State: rendezvous.StateWaits,
		Waits: "spark1 does not answer"}
	return wire.JobsResponse{Jobs: append(SomeJobs().Jobs, well, stuck, waits)}
}
