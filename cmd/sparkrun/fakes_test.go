package main

import (
	"bytes"
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// fakeGangs is a cluster of one job. Each field answers one call; n counts the
// calls of its kind from 1.
type fakeGangs struct {
	launch func(ctx context.Context, n int, tell func(rendezvous.Progress) error) error
	watch  func(ctx context.Context, n int, tell func(rendezvous.Progress) error) error
	logs   func(ctx context.Context, n int, r wire.LogsRequest, fn func(wire.LogChunk) error) error
	stop   func(n int, r wire.StopRequest) error

	mu       sync.Mutex
	launched []launcher.JobID
	specs    []launcher.Spec // of them
	watched  int
	read     int
	stops    []string
}

func (f *fakeGangs) Launch(ctx context.Context, r wire.LaunchRequest, tell func(rendezvous.Progress) error) error {
	f.mu.Lock()
	f.launched, f.specs = append(f.launched, r.Spec.ID), append(f.specs, r.Spec)
	n := len(f.launched)
	f.mu.Unlock()
	return f.launch(ctx, n, tell)
}

func (f *fakeGangs) Watch(ctx context.Context, r wire.JobRequest, tell func(rendezvous.Progress) error) error {
	f.mu.Lock()
	f.watched++
	n := f.watched
	f.mu.Unlock()
	return f.watch(ctx, n, tell)
}

func (f *fakeGangs) Logs(ctx context.Context, r wire.LogsRequest, fn func(wire.LogChunk) error) error {
	f.mu.Lock()
	f.read++
	n := f.read
	f.mu.Unlock()
	if f.logs == nil {
		return nil
	}
	return f.logs(ctx, n, r, fn)
}

func (f *fakeGangs) Stop(_ context.Context, r wire.StopRequest) (wire.StopResponse, error) {
	f.mu.Lock()
	grace := "its own"
	if r.Grace != nil {
		grace = r.Grace.String()
	}
	f.stops = append(f.stops, grace)
	n := len(f.stops)
	f.mu.Unlock()
	if f.stop == nil {
		return wire.StopResponse{Job: launcher.JobID(r.Job)}, nil
	}
	return wire.StopResponse{Job: launcher.JobID(r.Job)}, f.stop(n, r)
}

// session is a follower with everything around it.
type session struct {
	*follower
	out, err *syncBuffer
	said     []string
	mu       sync.Mutex
	signal   chan os.Signal
	begun    time.Time
}

type syncBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

func newSession(g gangs) *session {
	s := &session{out: &syncBuffer{}, err: &syncBuffer{}, signal: make(chan os.Signal, 3), begun: time.Now()}
	s.follower = &follower{
		gangs: g, out: newPrinter(s.out, s.err), signals: s.signal, leader: "spark1",
		spec: launcher.Spec{ID: "job2345678", Grace: 10 * time.Second},
		say: func(line string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.said = append(s.said, line)
		},
	}
	s.follower.out.note = s.say
	return s
}

func (s *session) want(t *testing.T, code, wantCode int, err error, out string, said ...string) {
	t.Helper()
	if err != nil {
		t.Errorf("error %v", err)
	}
	if code != wantCode {
		t.Errorf("exit code %d, want %d", code, wantCode)
	}
	if diff := cmp.Diff(out, s.out.String()); diff != "" {
		t.Errorf("output -want +got:\n%s", diff)
	}
	s.wantSaid(t, said...)
}

func (s *session) wantSaid(t *testing.T, said ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if diff := cmp.Diff(said, s.said); diff != "" {
		t.Errorf("said -want +got:\n%s", diff)
	}
}

// The steps of a story.
func planned(world int) rendezvous.Progress {
	return rendezvous.Progress{Step: rendezvous.StepPlanned, Plan: &rendezvous.Plan{World: world}}
}
func started(host string) rendezvous.Progress {
	return rendezvous.Progress{Step: rendezvous.StepStarted, Host: host}
}

var runs = rendezvous.Progress{Step: rendezvous.StepRunning}

func ended(o rendezvous.Outcome) rendezvous.Progress {
	return rendezvous.Progress{Step: rendezvous.StepEnded, Outcome: &o}
}

var (
	completed = rendezvous.Outcome{End: rendezvous.Completed}
	failed7   = rendezvous.Outcome{End: rendezvous.Failed, ExitCode: 7, Cause: "rank 1 on spark2: exit 7"}
	stopped   = rendezvous.Outcome{End: rendezvous.Stopped, ExitCode: 143, Cause: "stopped by ada"}
	rejected  = rendezvous.Outcome{End: rendezvous.Rejected, ExitCode: 125, Cause: `spark2: program "x": not found`}
)

func tellAll(tell func(rendezvous.Progress) error, ps ...rendezvous.Progress) error {
	for _, p := range ps {
		if err := tell(p); err != nil {
			return err
		}
	}
	return nil
}

// tells is a Launch or Watch that tells a whole story at once.
func tells(ps ...rendezvous.Progress) func(context.Context, int, func(rendezvous.Progress) error) error {
	return func(_ context.Context, _ int, tell func(rendezvous.Progress) error) error {
		return tellAll(tell, ps...)
	}
}

// goesOn tells a story that has no end yet.
func goesOn(ps ...rendezvous.Progress) func(context.Context, int, func(rendezvous.Progress) error) error {
	return func(ctx context.Context, _ int, tell func(rendezvous.Progress) error) error {
		if err := tellAll(tell, ps...); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
}

func prints(chunks ...wire.LogChunk) func(context.Context, int, wire.LogsRequest, func(wire.LogChunk) error) error {
	return func(_ context.Context, _ int, _ wire.LogsRequest, fn func(wire.LogChunk) error) error {
		for _, c := range chunks {
			if err := fn(c); err != nil {
				return err
			}
		}
		return nil
	}
}

// timed gives a line's time only to whoever asks for it, as a node does.
func timed(chunks ...wire.LogChunk) func(context.Context, int, wire.LogsRequest, func(wire.LogChunk) error) error {
	return func(ctx context.Context, n int, r wire.LogsRequest, fn func(wire.LogChunk) error) error {
		for i := range chunks {
			if !r.Times {
				chunks[i].Time = time.Time{}
			}
		}
		return prints(chunks...)(ctx, n, r, fn)
	}
}
