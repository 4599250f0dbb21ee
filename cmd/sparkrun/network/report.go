package network

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/envgen/bundle"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type reportOptions struct{ output string }

// NewReportCmd makes `sparkrun report`.
func NewReportCmd(a *app.App) *cobra.Command {
	opts := &reportOptions{}
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Collect what a bug report needs",
		Long: `Writes one file with what every machine of the cluster knows of its fabric and of
the others, for a bug report: sparkrun fabric --from shows it anywhere. It
changes nothing on the machines. One that is away, or slow, is named in the file
and on standard error; the exit code is 0 all the same. Where no agent runs it is
this machine's part alone.

It is a tar.gz archive of plain files:
  manifest.json        what this is, by which sparkrun, which machines
  cluster/             status.json, jobs.json, topology.json, counters.json, and
                       doctor.json: what sparkrun doctor finds, and the facts
  nodes/HOST/sys/      every file of sysfs that the reader looks at, with
  nodes/HOST/sys-*     what symbolic links and folders there said
  nodes/HOST/          links.json (interfaces and addresses), routes.json,
                       inventory.json, versions.json, and the end of agent.log

` + wrapped(bundle.Rules) + `

Look into it before you hand it on: tar tzf, tar xzf.`,
		Example: `  sparkrun report
  sparkrun report -o fabric.tar.gz
  sparkrun report -o - | ssh desk 'sparkrun fabric --from - --map'`,
		Args: app.Takes(0, ""),
		RunE: app.Running(a, opts, runReport),
	}
	cmd.Flags().StringVarP(&opts.output, "output", "o", "",
		"the file to write, - for standard output (default: sparkrun-report-DATE.tar.gz here)")
	return cmd
}

// wrapped breaks a text into lines as in help.
func wrapped(text string) string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > 80 {
			lines = append(lines, line)
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return strings.Join(append(lines, line), "\n")
}

func runReport(ctx context.Context, a *app.App, o reportOptions) error {
	now := time.Now()
	b := a.Dial()
	defer b.Close()
	r, err := collect(ctx, a, b, now)
	if err != nil {
		return err
	}
	name := cmp.Or(o.output, "sparkrun-report-"+now.Format("20060102-150405")+".tar.gz")
	to, done, err := create(a, name)
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := errors.Join(bundle.Write(to, r), done()); err != nil {
		return err
	}
	for _, n := range r.Nodes {
		if n.Missing != "" {
			a.Say(fmt.Sprintf("%s is not whole in it: %s", n.Host, n.Missing))
		}
	}
	if name != "-" {
		fmt.Fprintln(a.Out, name)
	}
	return nil
}

// collect asks the cluster, or reads this machine where no agent runs.
func collect(ctx context.Context, a *app.App, b *wire.Client, now time.Time) (bundle.Bundle, error) {
	r := bundle.Bundle{
		Manifest: bundle.Manifest{Made: now, Sparkrun: a.Version, Redacted: bundle.Rules},
		Cluster:  map[string][]byte{}, Files: map[string]map[string][]byte{},
	}
	take := func(e wire.Evidence) error {
		at := slices.IndexFunc(r.Nodes, func(n bundle.Node) bool { return n.Host == e.Host })
		if at < 0 {
			at = len(r.Nodes)
			r.Nodes = append(r.Nodes, bundle.Node{Host: e.Host, ID: string(e.Node)})
		}
		if e.Missing != "" {
			r.Nodes[at].Missing = e.Missing
			return nil
		}
		if r.Files[e.Host] == nil {
			r.Files[e.Host] = map[string][]byte{}
		}
		r.Files[e.Host][e.Path] = e.Data
		return nil
	}
	st, err := wire.ShowStatus.Call(ctx, b, wire.StatusRequest{})
	switch {
	case errors.Is(err, node.ErrNoAgent):
		v, err := ownView(ctx, a)
		if err != nil {
			return r, err
		}
		st = v.status
		if err := a.Evidence(ctx, take); err != nil {
			return r, err
		}
	case err != nil:
		return r, err
	default:
		if err := wire.Report.Call(ctx, b, wire.Empty{}, take); err != nil {
			return r, err
		}
	}
	r.Host = st.Self
	if err := addCluster(ctx, b, st, &r); err != nil {
		return r, err
	}
	// The tree has only numbers and names of hardware; everything else is text that may
	// contain anything.
	for _, files := range append(slices.Collect(maps.Values(r.Files)), r.Cluster) {
		for name, content := range files {
			if !strings.HasPrefix(name, "sys/") {
				files[name] = bundle.Redact(content)
			}
		}
	}
	return r, nil
}

// addCluster adds what is known of the cluster as a whole. What cannot be read is left
// out, with a note in its place.
func addCluster(ctx context.Context, b *wire.Client, st wire.Status, r *bundle.Bundle) error {
	add := func(name string, v any, missing error) error {
		if errors.Is(missing, node.ErrNoAgent) {
			return nil
		}
		if missing != nil {
			name, v = name+".missing", missing.Error()
		}
		text, err := json.MarshalIndent(v, "", " ")
		r.Cluster[name] = text
		return err
	}
	found, derr := wire.Doctor.Call(ctx, b, wire.DoctorRequest{})
	counters, cerr := wire.Counters.Call(ctx, b, wire.Empty{})
	jobs, jerr := wire.Jobs.Call(ctx, b, wire.JobsRequest{})
	v, err := newFabricView(st, counters.Nodes)
	if err != nil {
		return err
	}
	return errors.Join(
		add(statusFile, st, nil), add(topologyFile, v.scene.Topology, nil),
		add(countersFile, counters.Nodes, cerr), add(jobsFile, redactedJobs(jobs.Jobs), jerr),
		add(doctorFile, found, derr),
	)
}

// redactedJobs are the jobs without the secrets in their command lines and variables.
func redactedJobs(jobs []rendezvous.JobStatus) []rendezvous.JobStatus {
	out := slices.Clone(jobs)
	for i := range out {
		stages := slices.Clone(out[i].Spec.Stages)
		for j := range stages {
			stages[j].Argv = redactedArgv(stages[j].Argv)
			if c := stages[j].Container; c != nil {
				clean := *c
				clean.Argv = redactedArgv(c.Argv)
				stages[j].Container = &clean
			}
			env := slices.Clone(stages[j].Env)
			for k := range env {
				if bundle.SecretName(env[k].Name) {
					env[k].Value = launcher.Lit(bundle.Redacted)
				}
			}
			stages[j].Env = env
		}
		out[i].Spec.Stages = stages
		out[i].Spec.Secrets = slices.Clone(out[i].Spec.Secrets)
		for k := range out[i].Spec.Secrets {
			out[i].Spec.Secrets[k].Box = nil // it is sealed, but a report's reader has no use for it
		}
	}
	return out
}

// redactedArgv keeps references; where a secret was found in an argument, the rest of
// that argument is redacted too.
func redactedArgv(argv []launcher.Value) []launcher.Value {
	texts := make([]string, len(argv))
	for i, v := range argv {
		texts[i] = v.String()
	}
	clean := bundle.RedactArgs(texts)
	out := slices.Clone(argv)
	for i := range out {
		if clean[i] != texts[i] {
			out[i] = launcher.Lit(clean[i])
		}
	}
	return out
}
