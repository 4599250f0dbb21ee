package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// outputReader brings a job's output to a printer. The printer's cursors make
// every try go on where the last one ended.
type outputReader struct {
	gangs  gangs
	out    *printer
	job    string
	ranks  []int
	hosts  []string
	from   launcher.From
	follow bool
	// generation is that to read; 0 = the latest.
	generation launcher.Generation
	// launched: the job is known to exist. A node that does not know it yet is
	// asked again, and nothing that passes ends the reading.
	launched bool
	outage   outage
}

// run returns nil once there is no more to come.
func (r *outputReader) run(ctx context.Context) error {
	var again pause
	for first := true; ; first = false {
		begun := time.Now()
		err := r.gangs.Logs(ctx, wire.LogsRequest{
			Job: r.job, Follow: r.follow, Ranks: r.ranks, Cursors: r.out.cursors(), Generation: r.generation,
			Hosts: r.hosts, From: r.from, Times: r.out.json || r.out.times,
		}, func(c wire.LogChunk) error {
			first = false
			again.reset()
			r.outage.over()
			return r.out.take(c)
		})
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errOutput):
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errGap):
		case r.launched && errors.Is(err, rendezvous.ErrNoJob): // the record is on its way here
		case !passing(err), first && !r.launched && errors.Is(err, node.ErrNoAgent):
			return err
		case !r.follow && r.outage.lasted() > patience:
			return err
		default:
			if time.Since(begun) > time.Second { // it had been open
				again.reset()
			}
			r.outage.failed(fmt.Sprintf("the output is cut off (%v); waiting for it", err))
		}
		if err := again.wait(ctx); err != nil {
			return err
		}
	}
}

// printID ends a launch that does not stay; goesOn: the job has not ended before.
func (a *app) printID(spec launcher.Spec, onlyOn string, goesOn, json bool) error {
	if json {
		return a.object(struct {
			JobID  launcher.JobID `json:"job_id"`
			OnlyOn string         `json:"recorded_only_on,omitempty"`
		}{spec.ID, onlyOn})
	}
	if spec.Service != nil && goesOn {
		a.say(fmt.Sprintf("it is on its way: `sparkrun ps %[1]s` shows how far, and where it answers; `sparkrun logs -f %[1]s` follows it, `sparkrun stop %[1]s` ends it", spec.ID))
	}
	_, err := fmt.Fprintln(a.out, spec.ID)
	return err
}
