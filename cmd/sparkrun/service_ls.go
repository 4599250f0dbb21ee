package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/rendezvous"
)

type serviceLsOptions struct{ json, prometheus bool }

func newServiceLsCmd(run func(context.Context, serviceLsOptions) error) *cobra.Command {
	opts := &serviceLsOptions{}
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List services that have not ended",
		Long: `Lists the services of the whole cluster that have not ended.

  STATE      starting; ready: it answers; unhealthy: it does not, which ends nothing;
             wedged: it has requests, and for a minute no token has come
  TOKENS/S   that it generates, by its own metrics
  FAILURES   that --restart counts now, of how many in what time
  AUTOSTART  whether it comes back after all its machines were off

--json prints an array of objects: job_id, name, user, hosts, and those of "service" in
ps --json. --prometheus prints the file that Prometheus' file_sd_configs read: the
services that have metrics, with the labels sparkrun_job, sparkrun_name, sparkrun_host
and model. Write it beside its place and move it there, as in the example.`,
		Example: `  sparkrun service ls
  sparkrun service ls --prometheus > /etc/prometheus/sparkrun.new && mv /etc/prometheus/sparkrun.new /etc/prometheus/sparkrun.json
  sparkrun service ls --json | jq '.[] | select(.state != "ready") | .name'`,
		Args: takes(0, ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			if opts.json && opts.prometheus {
				return usagef("--json and --prometheus: give one of them")
			}
			return running(opts, run)(cmd, args)
		},
	}
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	cmd.Flags().BoolVar(&opts.prometheus, "prometheus", false, "print targets for Prometheus' file_sd_configs")
	return cmd
}

// listedService is a service as service ls --json prints it.
type listedService struct {
	JobID string   `json:"job_id"`
	Name  string   `json:"name"`
	User  string   `json:"user"`
	Hosts []string `json:"hosts"`
	serviceLine
}

// target is one entry of Prometheus' file_sd format.
type target struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

func (a *app) listServices(ctx context.Context, o serviceLsOptions) error {
	b := a.dial()
	defer b.close()
	res, err := b.Jobs(ctx)
	if err != nil {
		return err
	}
	if res.Problem != "" {
		a.say(res.Problem)
		a.say(staleText(res.Heard, time.Now()))
	}
	var services []rendezvous.JobStatus
	for _, j := range res.Jobs {
		if j.Spec.Service != nil && j.Outcome == nil {
			services = append(services, j)
		}
	}
	now := time.Now()
	switch {
	case o.prometheus:
		return a.object(targets(services))
	case o.json:
		listed := []listedService{}
		for _, j := range services {
			listed = append(listed, listedService{string(j.Spec.ID), j.Spec.Name, j.Spec.User, append([]string{}, j.MainHosts()...), *newServiceLine(j, now)})
		}
		return a.object(listed)
	}
	rows := [][]string{{"JOB", "NAME", "MODEL", "NODES", "URL", "STATE", "TOKENS/S", "FAILURES", "AUTOSTART"}}
	for _, j := range services {
		l := newServiceLine(j, now)
		autostart := "no"
		if l.Autostart {
			autostart = "yes"
		}
		rows = append(rows, []string{string(j.Spec.ID), or(j.Spec.Name, "-"), or(tame(l.Model), "-"), or(hosts(j.MainHosts()), "-"), l.urlText(),
			stateText(rendezvous.State(l.State)), l.rateText(), j.RestartsText(now), autostart})
	}
	return a.table(rows)
}

// targets are the services that Prometheus can ask.
func targets(services []rendezvous.JobStatus) []target {
	out := []target{}
	for _, j := range services {
		v, addr := j.Spec.Service, j.ServiceAddr()
		if v.Metrics == "" || addr == "" || strings.HasPrefix(addr, "127.") || strings.HasPrefix(addr, "[::1]") { // nobody else reaches it there
			continue
		}
		labels := map[string]string{"__metrics_path__": v.Metrics, "sparkrun_job": string(j.Spec.ID)}
		for name, value := range map[string]string{"sparkrun_name": j.Spec.Name, "model": v.Model} {
			if value != "" {
				labels[name] = value
			}
		}
		if hosts := j.MainHosts(); len(hosts) > 0 {
			labels["sparkrun_host"] = hosts[0]
		}
		out = append(out, target{[]string{addr}, labels})
	}
	return out
}
