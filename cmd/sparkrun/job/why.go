package job

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// How many findings fit a screen, and how many lines of what was looked at.
const (
	whyMost    = 4
	lookedMost = 20
)

type whyOptions struct {
	of   string
	json bool
}

// NewWhyCmd makes `sparkrun why`.
func NewWhyCmd(a *app.App) *cobra.Command {
	opts := &whyOptions{}
	cmd := &cobra.Command{
		Use:   "why JOB|SERVICE|NODE",
		Short: "Why a job waits, is slow, stuck or over, or what ails a machine",
		Long: `Looks for what is wrong with a job, a service or a machine, and lists what it finds, the
most probable cause first: with figures beside those of the other ranks and of before,
the rank, machine and port, and what to type next. Of a healthy one it says "nothing
found", and what was looked at. JOB is an id, the beginning of one, or a name.

A job that has not started: who has its machines, and which are drained or away. One that
starts: what each machine does for it, and whether its container engine answers. One that
runs: ranks that are stopped, locked up, starved of processor time, short of memory or
behind the others, that wait for a file's lock, have lost a process, or wait for who is
no rank, as a proxy or a DNS server, with who that is and since when no byte has come;
which have not come to where ranks meet, and where they try to; GPUs below their clock,
or held by a stranger; links that are down, lossy or slow, and ranks that talk over
another network than the fabric. One that is over: the root cause, and what its machine
lacks now. That ranks wait is a finding once it has lasted for a minute; that they wait
for one that loads or saves is none.

It takes some seconds and changes nothing. It reads what the kernel tells of ranks, and
where py-spy is installed, in PATH or beside the rank's Python, their stacks: with their
user's rights, without stopping them, and only for their user and root.

It exits with 0, whether or not something was found. --json prints:
  job_id, host   what was asked for; the other is empty
  findings   code (it stays the same), text, sure (1 to 100), rank, host, port,
             evidence (lines), remedy
  looked     what was looked at;  unasked: what could not be, and why`,
		Example: `  sparkrun why train
  sparkrun why spark2
  sparkrun why k3x --json | jq -r '.findings[0].remedy'`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			names, how := a.CompleteJobs(cmd, args, typed)
			if len(args) == 0 {
				hosts, _ := a.CompleteHost(cmd, args, typed)
				names = append(names, hosts...)
			}
			return names, how
		},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return app.Usagef("want one job, service or machine: `sparkrun ps` and `sparkrun status` list them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.of = args[0]
			return app.Running(a, opts, runWhy)(cmd, args)
		},
	}
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	return cmd
}

func runWhy(ctx context.Context, a *app.App, o whyOptions) error {
	b := a.Dial()
	defer b.Close()
	res, err := wire.Why.Call(ctx, b, wire.WhyRequest{Of: o.of})
	if err != nil {
		return err
	}
	if o.json {
		line := struct {
			Job      string            `json:"job_id"`
			Host     string            `json:"host"`
			Findings []wire.WhyFinding `json:"findings"`
			Looked   []string          `json:"looked"`
			Unasked  []string          `json:"unasked"`
		}{Host: res.Host, Findings: res.Findings, Looked: res.Looked, Unasked: append([]string{}, res.Unasked...)}
		if res.Job != nil {
			line.Job = string(res.Job.Spec.ID)
		}
		return a.Object(line)
	}
	for _, line := range whyLines(res, time.Now()) {
		if _, err := fmt.Fprintln(a.Out, plain.Text(line)); err != nil {
			return err
		}
	}
	return nil
}

// whyLines are about a screen.
func whyLines(res wire.WhyResponse, now time.Time) (out []string) {
	if j := res.Job; j != nil {
		state := j.State
		if j.Spec.Service != nil && j.Outcome == nil {
			word, _ := j.ServiceState()
			state = rendezvous.State(word)
		}
		head := fmt.Sprintf("job %s", j.Spec.ID)
		if j.Spec.Name != "" {
			head += fmt.Sprintf(" (%s)", j.Spec.Name)
		}
		out = append(out, fmt.Sprintf("%s of %s: %s, placed %s", head, cmp.Or(j.Spec.User, "?"), state.Text(),
			ago(j.Planned, now)))
	} else {
		out = append(out, res.Host)
	}
	for i, f := range res.Findings[:min(len(res.Findings), whyMost)] {
		out = append(out, fmt.Sprintf("%d. %s", i+1, f.Text))
		for _, e := range f.Evidence {
			out = append(out, "     "+e)
		}
		if j := res.Job; j != nil && (f.Code == "ended" || f.Code == "again") {
			if o := cmp.Or(j.Outcome, j.Last); o != nil {
				for _, line := range follow.Why(*o, j.Spec) {
					out = append(out, "     "+line)
				}
			}
		}
		if f.Remedy != "" {
			out = append(out, "   $ "+f.Remedy)
		}
	}
	if more := len(res.Findings) - whyMost; more > 0 {
		out = append(out, fmt.Sprintf("and %d more, less probable: --json has them", more))
	}
	if len(res.Findings) == 0 {
		out = append(out, "nothing found. Looked at:")
		for _, line := range res.Looked[:min(len(res.Looked), lookedMost)] {
			out = append(out, "  "+line)
		}
		if more := len(res.Looked) - lookedMost; more > 0 {
			out = append(out, fmt.Sprintf("  and %d more: --json has them", more))
		}
	}
	for _, line := range res.Unasked {
		out = append(out, "not asked: "+line)
	}
	return out
}
