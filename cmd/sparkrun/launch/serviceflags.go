package launch

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/help"
	"github.com/sparkrun/sparkrun/launcher"
)

// ServiceOptions are for a job that serves. Only exec has flags for what other workloads
// know by themselves: --serve and its paths.
type ServiceOptions struct {
	policy   launcher.Service // how the service is kept, by its flags
	onDemand bool
	demand   launcher.OnDemand
	port     int // --serve; 0: not given
}

// AddServiceFlags adds the flags that every service has to a workload that always serves.
// WorkloadRun puts them into the request's Job.Service, which the workload completes.
func AddServiceFlags(cmd *cobra.Command, o *ServiceOptions) {
	fs, v := cmd.Flags(), &o.policy
	v.Restarts, v.Per = 3, time.Hour
	fs.Var(restarts{v}, "restart", "start the service again when it fails, up to `N/TIME` as 3/hour or 5/10m; or no")
	fs.BoolVar(&v.Autostart, "autostart", false,
		"bring the service back after all its machines were off (sparkrun service enable)")
	fs.Var(app.Choice{V: (*string)(&v.Probe), Words: []string{"health", "generate"}}, "probe",
		"look at the service by its health alone, or by a token that it generates each minute as well (default: "+
			"health)")
	fs.Var(app.Choice{V: (*string)(&v.OnWedge), Words: []string{"report", "restart"}}, "on-wedge",
		"when requests run and no token comes for a minute: report it, or restart the service (default: report)")
	fs.BoolVar(&o.onDemand, "on-demand", false,
		"start the service when a request for it comes at the gateway, and end it when none has come for --idle")
	fs.Var(app.Span{D: &o.demand.Idle}, "idle", "with --on-demand: `TIME` without a request, 1m at least (default: 20m)")
	fs.Var(app.Span{D: &o.demand.MinUp}, "min-up",
		"with --on-demand: `TIME` for which it is not ended once it is ready, also if another needs its place (default: 5m)")
	app.CompleteWords(cmd, "probe", "on-wedge")
	help.Group(fs, "Services", "restart", "autostart", "probe", "on-wedge", "on-demand", "idle", "min-up")
}

// AddServeFlags adds the flags with which a workload that runs any command can serve.
func AddServeFlags(cmd *cobra.Command, o *ServiceOptions) {
	AddServiceFlags(cmd, o)
	fs, v := cmd.Flags(), &o.policy
	fs.Var(app.Positive{N: &o.port}, "serve",
		"the command serves on TCP `PORT` of rank 0's machine: it is ready once it answers there, open to all who "+
			"reach the machine, and goes on until it is stopped")
	fs.StringVar(&v.Health, "health", "",
		"`PATH` that answers 200 while the service is well, such as /health (default: it takes connections)")
	fs.StringVar(&v.Metrics, "metrics", "", "`PATH` of the service's Prometheus metrics, such as /metrics "+
		"(default: none)")
	fs.StringVar(&v.Model, "model", "",
		"`NAME` by which the gateway's clients ask for the model, and --probe generate (default: the job's name; the "+
			"first one that the service lists)")
	help.Group(fs, "Services", "serve", "health", "metrics", "model")
	help.Common(fs, "serve", "health")
}

// service is what a workload's flags request; nil: no service.
func (o ServiceOptions) service(asked *pflag.FlagSet) (*launcher.Service, error) {
	if asked.Lookup("on-wedge") == nil {
		return nil, nil
	}
	v := o.policy
	for _, name := range []string{"idle", "min-up"} {
		if asked.Changed(name) && !o.onDemand {
			return nil, app.Usagef("--%s: this is for services that come and go: add --on-demand", name)
		}
	}
	if asked.Changed("idle") && o.demand.Idle <= 0 {
		return nil, app.Usagef("--idle %s: want 1m or more", asked.Lookup("idle").Value)
	}
	if asked.Changed("min-up") && o.demand.MinUp == 0 { // in a Spec 0 means the default
		o.demand.MinUp = time.Nanosecond
	}
	if o.onDemand {
		v.OnDemand = &o.demand
	}
	if asked.Lookup("serve") == nil { // it always serves
		return &v, nil
	}
	if o.port == 0 {
		for _, name := range []string{"restart", "autostart", "probe", "on-wedge", "on-demand", "health", "metrics",
			"model"} {
			if asked.Changed(name) {
				return nil, app.Usagef("--%s: this is for services: say where it answers, with --serve PORT", name)
			}
		}
		return nil, nil
	}
	if o.port > 65535 {
		return nil, app.Usagef("--serve %d: want a port from 1 to 65535", o.port)
	}
	v.Port = launcher.Lit(strconv.Itoa(o.port))
	return &v, nil
}

// restarts is the flag for how often a service is restarted within a time.
type restarts struct{ v *launcher.Service }

func (r restarts) Type() string { return "n/time" }

func (r restarts) String() string {
	if r.v == nil {
		return ""
	}
	return r.v.RestartText()
}

func (r restarts) Set(text string) error {
	if text == "no" || text == "0" {
		r.v.Restarts, r.v.Per = 0, 0
		return nil
	}
	count, unit, _ := strings.Cut(text, "/")
	n, err := strconv.Atoi(count)
	per, perr := app.ParseSpan(unit)
	for _, u := range launcher.RestartUnits {
		if unit == u.Name {
			per, perr = u.Span, nil
		}
	}
	if err != nil || perr != nil || n < 1 || per <= 0 {
		return fmt.Errorf("want no, or a number of attempts in a time, such as 3/hour, 1/day or 5/10m")
	}
	r.v.Restarts, r.v.Per = n, per
	return nil
}
