package network

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/node/survey"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type envOptions struct {
	node   string // a host; empty means this machine, or the one of rank 0
	format string
	job    launcher.Spec // its nodes, and its NCCL
}

// NewEnvCmd makes `sparkrun env`.
func NewEnvCmd(a *app.App) *cobra.Command {
	opts := &envOptions{}
	cmd := &cobra.Command{
		Use:   "env",
		Short: "Show the network variables that a job's ranks get",
		Long: `Works out, for a machine's place in a job on the given machines, the variables that
say which NICs NCCL, Gloo, UCX and MPI shall use, and where each comes from: just
as launch does, before anything is started. Without --on and --nodes the job is
on all machines that are ready; without --node the place is this machine's.

Formats: table (with sources), json, shell (eval or source it), and docker: an
env file as "docker run --env-file" reads it, which takes what follows the = as
it stands, so nothing is quoted.

What the fabric has against such a job (see launch) is told on stderr; variables
are printed all the same. For the variables of one job with all that its workload
and --env add, see launch --dry-run.`,
		Example: `  sparkrun env
  sparkrun env --on spark1,spark3 --node spark3 --nccl 2.28.9
  eval "$(sparkrun env --nodes 2 --format shell)"
  sparkrun env --format docker > fabric.env && docker run --env-file fabric.env IMAGE`,
		Args: app.Takes(0, ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(envFormats, opts.format) {
				return app.Usagef("--format %s: want %s", opts.format, strings.Join(envFormats, ", "))
			}
			return app.Running(a, opts, runEnv)(cmd, args)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&opts.node, "node", "", "the machine whose variables these are (default: this one)")
	fs.Var(app.Positive{N: &opts.job.Nodes}, "nodes",
		"how many machines (default: those of --on, else all that are ready)")
	fs.StringSliceVar(&opts.job.On, "on", nil, "these machines, in this order: host,host")
	fs.StringSliceVar(&opts.job.Exclude, "exclude", nil, "never these machines: host,host")
	app.NCCLFlags(fs, &opts.job.NCCL, &opts.job.NCCLSubnetAware)
	fs.StringVar(&opts.format, "format", "table", strings.Join(envFormats, ", "))
	app.CompleteFlag(cmd, "node", a.CompleteHost)
	app.CompleteFlag(cmd, "on", a.CompleteHosts)
	app.CompleteFlag(cmd, "exclude", a.CompleteHosts)
	return cmd
}

var envFormats = []string{"table", "shell", "docker", "json"}

// placeEnv is a machine's place in a job, as --format json prints it.
type placeEnv struct {
	Host     string           `json:"host"`
	NodeRank int              `json:"node_rank"`
	Hosts    []string         `json:"hosts"` // of the job, by node rank
	Network  string           `json:"network"`
	Shape    envgen.Shape     `json:"shape,omitempty"`
	Head     netip.Addr       `json:"head"`
	Addr     netip.Addr       `json:"addr"`
	Why      string           `json:"why"`
	Vars     []envgen.Var     `json:"vars"`
	Findings []envgen.Finding `json:"findings,omitempty"`
}

func runEnv(ctx context.Context, a *app.App, o envOptions) error {
	b := a.Dial()
	defer b.Close()
	st, err := wire.ShowStatus.Call(ctx, b, wire.StatusRequest{})
	if err != nil {
		return err
	}
	p, err := placeIn(st, o)
	if err != nil {
		return err
	}
	for _, f := range p.Findings {
		a.Say(string(f.Severity) + ": " + rendezvous.Describe(f))
	}
	switch o.format {
	case "json":
		return a.Object(p)
	case "shell":
		return writeShell(a.Out, p.Vars)
	case "docker":
		return writeEnvFile(a.Out, p.Vars)
	}
	fmt.Fprintf(a.Out, "%s, node rank %d of %s; head address %s (%s)\n", p.Host, p.NodeRank,
		strings.Join(p.Hosts, ", "), p.Head, p.Why)
	rows := [][]string{{"VARIABLE", "VALUE", "SOURCE"}}
	for _, v := range p.Vars {
		rows = append(rows, []string{v.Name, v.Value, v.Source})
	}
	return a.Table(rows)
}

// placeIn works out a machine's place in the job, and its variables.
func placeIn(st wire.Status, o envOptions) (placeEnv, error) {
	spec := o.job
	if spec.Nodes == 0 && len(spec.On) == 0 {
		for _, n := range st.Nodes {
			if n.State == "ready" && !slices.Contains(spec.Exclude, n.Host) {
				spec.Nodes++
			}
		}
	}
	if len(spec.On) == 0 {
		spec.Near = cmp.Or(o.node, st.Self)
	}
	plan, findings, err := survey.Preview(st, spec)
	if err != nil {
		return placeEnv{}, err
	}
	p := placeEnv{NodeRank: -1, Network: plan.Network, Head: plan.Head, Why: plan.Why, Findings: findings}
	for i, n := range plan.Nodes {
		p.Hosts = append(p.Hosts, n.Host)
		if n.Host == cmp.Or(o.node, st.Self) {
			p.NodeRank = i
		}
	}
	if p.NodeRank < 0 {
		return placeEnv{}, app.Usagef("%s has no part in a job on %s: name one of them with --node",
			cmp.Or(o.node, st.Self), strings.Join(p.Hosts, ", "))
	}
	at := plan.Nodes[p.NodeRank]
	p.Host, p.Addr, p.Shape = at.Host, at.Entry.Addr, at.Entry.Shape
	for _, n := range st.Nodes {
		if n.ID == at.Node {
			p.Vars, err = survey.Vars(n.Inventory, at.Entry, len(plan.Nodes), spec)
		}
	}
	return p, err
}

// writeShell writes variables that a POSIX shell can source.
func writeShell(w io.Writer, vars []envgen.Var) error {
	for _, v := range vars {
		if _, err := fmt.Fprintf(w, "export %s='%s'\n", v.Name, strings.ReplaceAll(v.Value, "'", `'\''`)); err != nil {
			return err
		}
	}
	return nil
}

// writeEnvFile writes docker's env file: NAME=VALUE up to the end of the line, without
// escapes (docker/cli, pkg/kvfile), so that a line break cannot be written. Nor can a
// value in quotes: newer dockers remove them, older ones do not.
func writeEnvFile(w io.Writer, vars []envgen.Var) error {
	for _, v := range vars {
		if strings.ContainsAny(v.Value, "\r\n\"'") {
			return fmt.Errorf("write an env file: the value of %s has a quote or a line break, which dockers read "+
				"differently", v.Name)
		}
		if _, err := fmt.Fprintf(w, "%s=%s\n", v.Name, v.Value); err != nil {
			return err
		}
	}
	return nil
}
