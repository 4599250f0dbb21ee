package apptest

import (
	"context"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Planned and those below are the events of a job.
func Planned(world int) rendezvous.Progress {
	return rendezvous.Progress{Step: rendezvous.StepPlanned, Plan: &rendezvous.Plan{World: world}}
}

// Started and those below are one event each.
func Started(host string) rendezvous.Progress {
	return rendezvous.Progress{Step: rendezvous.StepStarted, Host: host}
}

// Runs is the event of all ranks running.
var Runs = rendezvous.Progress{Step: rendezvous.StepRunning}

// Ended is the last event.
func Ended(o rendezvous.Outcome) rendezvous.Progress {
	return rendezvous.Progress{Step: rendezvous.StepEnded, Outcome: &o}
}

var (
	Completed = rendezvous.Outcome{End: rendezvous.Completed}
	Failed7   = rendezvous.Outcome{End: rendezvous.Failed, ExitCode: 7, Cause: "rank 1 on spark2: exit 7"}
	Stopped   = rendezvous.Outcome{End: rendezvous.Stopped, ExitCode: 143, Cause: "stopped by ada"}
	Rejected  = rendezvous.Outcome{End: rendezvous.Rejected, ExitCode: 125, Cause: `spark2: program "x": not found`}
)

// TellAll sends events one after the other.
func TellAll(tell func(rendezvous.Progress) error, ps ...rendezvous.Progress) error {
	for _, p := range ps {
		if err := tell(p); err != nil {
			return err
		}
	}
	return nil
}

// Tells is a Launch or Watch that sends all events at once.
func Tells(ps ...rendezvous.Progress) func(context.Context, int, func(rendezvous.Progress) error) error {
	return func(_ context.Context, _ int, tell func(rendezvous.Progress) error) error {
		return TellAll(tell, ps...)
	}
}

// GoesOn sends events of a job that has not ended.
func GoesOn(ps ...rendezvous.Progress) func(context.Context, int, func(rendezvous.Progress) error) error {
	return func(ctx context.Context, _ int, tell func(rendezvous.Progress) error) error {
		if err := TellAll(tell, ps...); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
}

// Prints is a Logs that sends these chunks.
func Prints(chunks ...wire.LogChunk) func(context.Context, int, wire.LogsRequest, func(wire.LogChunk) error) error {
	return func(_ context.Context, _ int, _ wire.LogsRequest, fn func(wire.LogChunk) error) error {
		for _, c := range chunks {
			if err := fn(c); err != nil {
				return err
			}
		}
		return nil
	}
}

// Timed sends a line's time only if it was asked for, as a node does.
func Timed(chunks ...wire.LogChunk) func(context.Context, int, wire.LogsRequest, func(wire.LogChunk) error) error {
	return func(ctx context.Context, n int, r wire.LogsRequest, fn func(wire.LogChunk) error) error {
		for i := range chunks {
			if !r.Times {
				chunks[i].Time = time.Time{}
			}
		}
		return Prints(chunks...)(ctx, n, r, fn)
	}
}

// LosesLeader is a cluster whose first leader goes away once it has been asked to stop.
func LosesLeader() *FakeRunner {
	g := &FakeRunner{}
	first, second := make(chan struct{}), make(chan struct{})
	g.OnStop = func(n int, _ wire.StopRequest) error {
		switch n {
		case 1:
			close(first)
		case 2:
			close(second)
		}
		return nil
	}
	g.OnLaunch = func(_ context.Context, _ int, tell func(rendezvous.Progress) error) error {
		if err := TellAll(tell, Planned(2), Started("spark1"), Runs); err != nil {
			return err
		}
		<-first
		return wire.ErrRetry
	}
	g.OnWatch = func(_ context.Context, n int, tell func(rendezvous.Progress) error) error {
		if len(g.Launched) == 0 && n == 1 {
			return wire.ErrRetry
		}
		if err := TellAll(tell, Planned(2), Started("spark1"), Runs); err != nil {
			return err
		}
		<-second
		return TellAll(tell, Ended(Stopped))
	}
	return g
}
