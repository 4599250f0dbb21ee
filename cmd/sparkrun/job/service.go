package job

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// NewServiceCmd makes `sparkrun service`.
func NewServiceCmd(a *app.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "service",
		Short: "List services, and say which come back after a power cut",
		Long: `A service is a job that serves: launch exec --serve, and the workloads that serve a
model. Once it is ready it goes on until it is stopped.`,
		Example: `  sparkrun service ls
  sparkrun service enable llm`,
	}
	app.Group(cmd)
	cmd.AddCommand(newServiceLsCmd(a), newServiceEnableCmd(a), newServiceDisableCmd(a), newServiceRestartCmd(a),
		newServiceUpdateCmd(a))
	return cmd
}

func urlText(l *wire.ServiceLine) string {
	if l == nil || l.URL == nil {
		return "-"
	}
	return *l.URL
}

// RateText is how many tokens a second a service generates.
func RateText(l *wire.ServiceLine) string {
	if l == nil || l.Rate == nil {
		return "-"
	}
	return strconv.FormatFloat(*l.Rate, 'f', 1, 64)
}

// describeService gives the lines that ps JOB adds for a service.
func describeService(j rendezvous.JobStatus, now time.Time) []string {
	l := wire.NewServiceLine(j, now)
	switch {
	case l == nil:
		return nil
	case j.Outcome != nil && j.WhyNoMore(*j.Outcome) != "":
		return []string{"  is not started again by itself: launch it as before; --restart says how often it may fail"}
	case j.Outcome != nil:
		return nil
	}
	text := "  serves at " + urlText(l) + ": " + rendezvous.State(l.State).Text() + againText(j.AgainAt, now)
	if l.Since != nil {
		text += " for " + launcher.Age(now.Sub(*l.Since))
	}
	if l.Text != "" && l.Text != j.Waits {
		text += ": " + l.Text
	}
	if l.Rate != nil && l.Running != nil {
		text += fmt.Sprintf("; %s tokens/s, requests: %d", RateText(l), *l.Running)
	}
	out := []string{text}
	for _, step := range nextSteps(j, now) {
		out = append(out, "  "+step)
	}
	if seen := j.Service; seen != nil && seen.State == launcher.ServiceWedged && l.OnWedge == launcher.WedgeReport {
		out = append(out, "  `sparkrun logs` may say why; --on-wedge restart at its launch would start it anew: "+
			"`sparkrun stop` and launch it again")
	}
	again := "is not started again when it fails"
	if j.Spec.Service.Restarts > 0 {
		again = fmt.Sprintf("has failed %d of %s", l.Failures, l.Restart)
	}
	if l.Autostart {
		return append(out, "  "+again+", and comes back after a power cut")
	}
	return append(out, "  "+again+"; does not come back after a power cut (sparkrun service enable)")
}

// longAway is how long a machine must be away before its service is better moved: a
// machine that reboots is back by then.
const longAway = time.Minute

// nextSteps are what a user may do about a service that is not well.
func nextSteps(j rendezvous.JobStatus, now time.Time) (steps []string) {
	for _, host := range j.Away {
		if since, known := j.AwaySince[host]; !known || now.Sub(since) < longAway || j.Waits != "" {
			continue
		}
		then := "ends the service, to be launched elsewhere"
		if v := j.Spec.Service; j.RecentFaults(now) < v.Restarts {
			then = "starts it elsewhere"
		}
		steps = append(steps, fmt.Sprintf("%s has not answered for %s: if it is off for good, `sudo sparkrun "+
			"mark-dead %s` %s", host, launcher.Age(now.Sub(j.AwaySince[host])), host, then))
	}
	if len(j.Plan.Nodes) > 0 && slices.Contains(j.FabricOnly, j.Plan.Nodes[0].Host) {
		steps = append(steps, fmt.Sprintf("%s is reached over the fabric only: on the management network its URL "+
			"answers nobody, see `sparkrun status`", j.Plan.Nodes[0].Host))
	}
	return steps
}
