package follow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// OutputReader reads a job's output into a printer. With the printer's cursors each
// attempt continues where the last one ended.
type OutputReader struct {
	Agent  *wire.Client
	Out    *Printer
	Job    string
	Ranks  []int
	Hosts  []string
	From   launcher.From
	Follow bool
	// Generation is the one to read; 0 = the latest.
	Generation launcher.Generation
	// launched: the job is known to exist. A node that does not know it yet is asked
	// again, and no passing error ends the reading.
	launched bool
	Outage   app.Outage
}

// Run returns nil once all output has been read.
func (r *OutputReader) Run(ctx context.Context) error {
	var again app.Pause
	for first := true; ; first = false {
		begun := time.Now()
		err := wire.Logs.Call(ctx, r.Agent, wire.LogsRequest{
			Job: r.Job, Follow: r.Follow, Ranks: r.Ranks, Cursors: r.Out.cursors(), Generation: r.Generation,
			Hosts: r.Hosts, From: r.From, Times: r.Out.json || r.Out.Times,
		}, func(c wire.LogChunk) error {
			first = false
			again.Reset()
			r.Outage.Over()
			return r.Out.take(c)
		})
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrOutput):
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errGap):
		case r.launched && errors.Is(err, rendezvous.ErrNoJob): // the record has not reached that node yet
		case !app.Passing(err), first && !r.launched && errors.Is(err, node.ErrNoAgent):
			return err
		case !r.Follow && r.Outage.Lasted() > app.Patience:
			return err
		default:
			if time.Since(begun) > time.Second { // the stream was open for a while
				again.Reset()
			}
			r.Outage.Failed(fmt.Sprintf("the output is cut off (%v); waiting for it", err))
		}
		if err := again.Wait(ctx); err != nil {
			return err
		}
	}
}

// PrintID ends a launch that does not wait; goesOn: the job has not ended yet.
func PrintID(a *app.App, spec launcher.Spec, onlyOn string, goesOn, json bool) error {
	if json {
		return a.Object(struct {
			JobID  launcher.JobID `json:"job_id"`
			OnlyOn string         `json:"recorded_only_on,omitempty"`
		}{spec.ID, onlyOn})
	}
	if spec.Service != nil && goesOn {
		a.Say(fmt.Sprintf("it is on its way: `sparkrun ps %[1]s` shows how far, and where it answers; `sparkrun "+
			"logs -f %[1]s` follows it, `sparkrun stop %[1]s` ends it", spec.ID))
	}
	_, err := fmt.Fprintln(a.Out, spec.ID)
	return err
}
