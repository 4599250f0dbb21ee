package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type doctorOptions struct {
	request wire.DoctorRequest
	json    bool
	quiet   bool
	codes   bool
	explain string
	load    time.Duration
	loads   bool // --load was given, be it 0
}

// NewDoctorCmd makes `sparkrun doctor`.
func NewDoctorCmd(a *app.App) *cobra.Command {
	opts := &doctorOptions{}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find what is wrong with the machines, their cables and settings",
		Long: `Examines all machines of the cluster side by side: cables, addresses and RDMA
devices; limits, Docker, NCCL's files, versions, clocks, disks, memory, firewalls,
mounts and where models lie; and whether packets pass: a don't-fragment ping as
large as the MTU between all that share a cable, both ways, a question who else has
an address, and a connection to each agent. It takes a few seconds and changes
nothing. Also: GPUs that slow themselves or run far below their clock, heat, and
machines that went off without a shutdown in the last week.

Each finding has a code that never changes its meaning, the machine and device,
what was seen, and a command to mend it, to be run on that machine. An error is
what makes a job fail, hang, or run without the fabric; a warning costs speed or
will bite later; a note needs nothing done.

--fix, for root, does three things where a finding calls for them, and nothing
else: it sets a fabric NIC up that is set down, sets the MTU of a fabric NIC to
9000 until the next reboot, and drops the page cache. It never touches the NIC
that the cluster talks over. Then it examines again.

--load 20s instead works idle machines' GPUs for so long, side by side, with your
rights: by torch, else by the CUDA driver (both need python3 in PATH), else the
processors, and says so. It judges arithmetic, memory and clock beside the peers'
median, and gives way to jobs. Over 4 GiB of memory have to be free.

Where no agent runs it looks at this machine alone, and says so.

Exit code 1 if an error stands, or a machine was not loaded, else 0.`,
		Example: `  sparkrun doctor
  sparkrun doctor --node spark2 --quiet
  sudo sparkrun doctor --fix
  sparkrun doctor --load 20s
  sparkrun doctor --json | jq -r '.findings[] | select(.severity == "error") | .code'
  sparkrun doctor --explain mtu-low`,
		Args: app.Takes(0, ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.loads = cmd.Flags().Changed("load")
			return app.Running(a, opts, runDoctor)(cmd, args)
		},
	}
	f := cmd.Flags()
	f.StringVar(&opts.request.Node, "node", "", "tell only what is wrong on this machine")
	app.CompleteFlag(cmd, "node", a.CompleteHost)
	f.BoolVar(&opts.request.Fix, "fix", false,
		"set NICs up, set their MTU, drop the page cache, where that helps; as root")
	f.Var(app.Span{D: &opts.load}, "load", "load machines for so long, 5s to 2m, and judge what they reach")
	f.BoolVar(&opts.json, "json", false, "print JSON: what was read of each machine, too")
	f.BoolVarP(&opts.quiet, "quiet", "q", false, "print errors only")
	f.BoolVar(&opts.codes, "codes", false, "list all codes and what they mean")
	f.StringVar(&opts.explain, "explain", "", "say what a code means")
	return cmd
}

func runDoctor(ctx context.Context, a *app.App, o doctorOptions) error {
	if o.codes || o.explain != "" {
		return explainCodes(a, o)
	}
	if o.loads {
		return runLoad(ctx, a, o)
	}
	o.request.Ask = asking(a)
	b := a.Dial()
	defer b.Close()
	res, err := wire.Doctor.Call(ctx, b, o.request)
	if errors.Is(err, node.ErrNoAgent) && !o.request.Fix {
		a.Say("no agent runs here: looking at this machine alone")
		res, err = node.DoctorAlone(ctx, node.Config{Paths: node.DefaultPaths()}, o.request, err)
	}
	if err != nil {
		return err
	}
	if o.json {
		if err := a.Object(res); err != nil {
			return err
		}
	} else {
		if o.request.Fix && len(res.Mended) == 0 {
			a.Say("--fix: found nothing that it mends, and has changed nothing")
		}
		tellDoctor(a, res, o.quiet, "")
	}
	if ofSeverity(res.Findings, envgen.SeverityError) > 0 {
		return app.Exits(app.ExitFailure, nil)
	}
	return nil
}

// asking is the user as this machine knows him; the agent takes the name from the socket.
func asking(a *app.App) doctor.Ask {
	var ask doctor.Ask
	if u, err := user.Current(); err == nil {
		ask.User = u.Username
	}
	ask.Path, _ = a.Getenv("PATH")
	ask.ConfFile, _ = a.Getenv("NCCL_CONF_FILE")
	return ask
}

func explainCodes(a *app.App, o doctorOptions) error {
	all := doctor.Explanations()
	if o.explain != "" {
		i := slices.IndexFunc(all, func(e envgen.Explanation) bool { return e.Code == o.explain })
		if i < 0 {
			return app.Usagef("--explain %s: no finding has that code; `sparkrun doctor --codes` lists them", o.explain)
		}
		all = all[i : i+1]
	}
	if o.json {
		return a.Object(all)
	}
	var rows [][]string
	for _, e := range all {
		rows = append(rows, []string{e.Code, e.Text})
	}
	return a.Table(rows)
}

// severities are in the order in which they are printed.
var severities = []struct {
	severity envgen.Severity
	noun     string
}{{envgen.SeverityError, "error"}, {envgen.SeverityWarning, "warning"}, {envgen.SeverityInfo, "note"}}

// of says what they are of beside a number of machines.
func tellDoctor(a *app.App, res wire.DoctorResponse, quiet bool, of string) {
	for _, m := range res.Mended {
		what := "done"
		if m.Error != "" {
			what = "not done: " + m.Error
		}
		fmt.Fprintf(a.Out, "%s: %s (%s)\n", m.Host, m.Command, what)
	}
	if len(res.Mended) > 0 {
		fmt.Fprintln(a.Out)
	}
	var counts []string
	for _, s := range severities {
		n := ofSeverity(res.Findings, s.severity)
		counts = append(counts, app.Count(n, s.noun))
		if n == 0 || quiet && s.severity != envgen.SeverityError {
			continue
		}
		fmt.Fprintln(a.Out, strings.ToUpper(s.noun+"s"))
		for _, f := range doctor.Together(res.Findings) {
			if f.Severity == s.severity {
				tellFinding(a, f)
			}
		}
		fmt.Fprintln(a.Out)
	}
	if !quiet {
		fmt.Fprintf(a.Out, "%s on %s%s\n", strings.Join(counts, ", "), app.Count(len(res.Nodes), "machine"), of)
	}
}

// tellFinding prints one finding; its command is on a line of its own, to be copied.
func tellFinding(a *app.App, f envgen.Finding) {
	where := strings.Join(slices.DeleteFunc([]string{f.Host, f.Port, f.Device},
		func(s string) bool { return s == "" }), " ")
	fmt.Fprintf(a.Out, "  %s  %s\n    %s\n", f.Code, plain.Line(cmp.Or(where, "cluster")), plain.Line(f.Text))
	fmt.Fprintf(a.Out, "    seen: %s\n", plain.Line(f.Evidence))
	on := "on any machine"
	if f.Host != "" {
		on = "on " + plain.Line(f.Host)
	}
	fmt.Fprintf(a.Out, "    %s: %s\n", on, plain.Line(f.Remedy))
}

func ofSeverity(findings []envgen.Finding, s envgen.Severity) int {
	n := 0
	for _, f := range findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}
