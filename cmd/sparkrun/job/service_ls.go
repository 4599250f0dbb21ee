package job

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type serviceLsOptions struct{ json bool }

func newServiceLsCmd(a *app.App) *cobra.Command {
	opts := &serviceLsOptions{}
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List services",
		Long: `Lists the services of the whole cluster: those that have not ended, and for a week those
that have failed after they had answered, until one of the same name is launched (without
a name: of the same model).

  STATE      starting; ready: it answers; unhealthy: it does not, which ends nothing;
             wedged: it has requests, and for a minute no token has come; restarting;
             waiting: for what is said below; asleep: its first request starts it
             (launch --on-demand); unknown: its machine has not told yet; failed. In
             parentheses machines of it that are away, or that management does not reach
  TOKENS/S   that it generates, by its own metrics
  REQS       requests for its model that are under way through port 7942 now, and of them
             those that wait; several services of a model share them. -: not known
  MEMORY     that it held on its first machine when that reported last, of what --memory
             planned; both sides of shared memory together
  FAILURES   that --restart counts now, of how many in what time
  AUTO       whether it comes back after all its machines were off

--json prints an array of objects: job_id, name, user, hosts, those of "service" in
ps --json, and as there away, away_since, fabric_only, fabric_lost, again_at, cause and
ended; and gateway, null if it is not known: what gateway stats --json counts, of its
model, of all machines but those in missing.`,
		Example: `  sparkrun service ls
  sparkrun service ls --json | jq '.[] | select(.state != "ready") | .name'`,
		Args: app.Takes(0, ""),
		RunE: app.Running(a, opts, listServices),
	}
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	return cmd
}

// listedService is a service as service ls --json prints it.
type listedService struct {
	JobID string   `json:"job_id"`
	Name  string   `json:"name"`
	User  string   `json:"user"`
	Hosts []string `json:"hosts"`
	wire.ServiceLine
	Away       []string             `json:"away"`
	AwaySince  map[string]time.Time `json:"away_since"`
	FabricOnly []string             `json:"fabric_only"`
	FabricLost []string             `json:"fabric_lost"`
	AgainAt    *time.Time           `json:"again_at"`
	Cause      *string              `json:"cause"`
	Ended      *time.Time           `json:"ended"`
	Gateway    *modelRequests       `json:"gateway"`
}

func listServices(ctx context.Context, a *app.App, o serviceLsOptions) error {
	b := a.Dial()
	defer b.Close()
	var counts *gatewayCounts
	var counted sync.WaitGroup
	defer counted.Wait()
	counting, cancel := context.WithCancel(ctx)
	defer cancel()
	counted.Go(func() { counts = countRequests(counting, b) })
	res, err := wire.Jobs.Call(ctx, b, wire.JobsRequest{})
	if err != nil {
		return err
	}
	if res.Problem != "" {
		a.Say(res.Problem)
		a.Say(staleText(res.Heard, time.Now()))
	}
	now := time.Now()
	services := rendezvous.Services(res.Jobs, now)
	if len(services) > 0 {
		counted.Wait()
	}
	if o.json {
		listed := []listedService{}
		for _, j := range services {
			l := res.Line(j)
			listed = append(listed, listedService{string(j.Spec.ID), j.Spec.Name, j.Spec.User, l.Hosts,
				*wire.NewServiceLine(j, now), l.Away, l.AwaySince, l.FabricOnly, l.FabricLost, l.AgainAt, l.Cause, l.Ended,
				counts.of(j, now)})
		}
		return a.Object(listed)
	}
	rows := [][]string{{"JOB", "NAME", "MODEL", "NODES", "URL", "STATE", "TOKENS/S", "REQS", "MEMORY", "FAILURES", "AUTO"}}
	for _, j := range services {
		l := wire.NewServiceLine(j, now)
		autostart := "no"
		if l.Autostart {
			autostart = "yes"
		}
		state := rendezvous.State(l.State).Text() + againText(j.AgainAt, now) + whereText(res.Line(j), now)
		if j.Outcome != nil {
			state += " " + launcher.Age(now.Sub(j.Outcome.At)) + " ago"
		}
		rows = append(rows, []string{string(j.Spec.ID), cmp.Or(j.Spec.Name, "-"), cmp.Or(plain.Text(l.Model), "-"),
			cmp.Or(app.Hosts(j.MainHosts()), "-"), urlText(l),
			state, RateText(l), counts.of(j, now).text(), memoryText(l), j.RestartsText(now), autostart})
	}
	if err := a.Table(rows); err != nil {
		return err
	}
	for _, j := range services {
		for _, note := range serviceNotes(j, now) {
			a.Say(plain.Text(cmp.Or(j.Spec.Name, string(j.Spec.ID)) + ": " + note))
		}
	}
	return nil
}

// memoryText is what a service holds on its first machine, and what it planned of each.
func memoryText(l *wire.ServiceLine) string {
	used := "-"
	if l.MemoryUsed != nil {
		used = launcher.Size(*l.MemoryUsed)
	}
	if l.Memory == nil {
		return used
	}
	planned := launcher.Size(*l.Memory)
	if n, unit, _ := strings.Cut(used, " "); strings.HasSuffix(planned, " "+unit) {
		used = n // said once
	}
	return used + " of " + planned
}

// serviceNotes say what is wrong with a service, and what to do about it.
func serviceNotes(j rendezvous.JobStatus, now time.Time) []string {
	if o := j.Outcome; o != nil {
		return []string{fmt.Sprintf("%s; `sparkrun ps %s` tells more; to start it again launch it as before", o.Cause,
			j.Spec.ID)}
	}
	notes := nextSteps(j, now)
	if j.Waits != "" {
		notes = append(notes, j.Waits)
	}
	return notes
}
