// Package network decides what a person types about the links between machines: what is
// cabled, which addresses and variables follow, and what tests of the links found.
//
// It must not evaluate a link: envgen and workloads do.
package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type fabricOptions struct {
	nodes        []string
	drawing      bool
	svg          string
	ibdev2netdev bool
	gids         bool
	watch        bool
	json         bool
	from         string
}

// NewFabricCmd makes `sparkrun fabric`.
func NewFabricCmd(a *app.App) *cobra.Command {
	opts := &fabricOptions{}
	cmd := &cobra.Command{
		Use:   "fabric",
		Short: "Show what is cabled to what",
		Long: `Shows the ConnectX ports of every machine and the cables between them, as the
machines see them at this moment: a table for each machine, with each port's role
and why it has it, and a line for each cable or switch with the subnets over it.
A port is two devices, the twins, which share its cable. It changes nothing, and
exits with 0 whatever is wrong; sparkrun doctor tells what is, and how to mend it.

GID is where in the device's GID table the RoCE v2 row of its IPv4 address is. It
moves; nobody should write it down.

Cables are found by frames that the agents send over them, so no address is
needed. Where no agent runs, or no leader is there, it shows what this machine
knows by itself, and says so.

--map draws the cabling. --watch goes on, and draws anew at every change; where
standard output is no terminal it prints a line with the time for each thing that
changed. --ibdev2netdev and --gids print what NVIDIA's ibdev2netdev and show_gids
would print on this machine, or on those that --node names.

--json prints one object: "topology" with nodes, links, lanes (subnets over a
link) and findings; "nodes" as in sparkrun status --json, each with its whole
inventory; "counters" with what each device counted in the last minute.

--from takes a file that sparkrun report made in place of the cluster: the reader
goes through what was captured there as if it were this machine's. Any machine
will do, it needs no agent and no hardware.`,
		Example: `  sparkrun fabric
  sparkrun fabric --map --watch
  sparkrun fabric --svg cabling.svg
  sparkrun fabric --gids --node spark2
  sparkrun fabric --json | jq -r '.topology.findings[] | .host + ": " + .text'
  sparkrun fabric --from sparkrun-report.tar.gz --map`,
		Args: app.Takes(0, ""),
		RunE: app.Running(a, opts, runFabric),
	}
	f := cmd.Flags()
	f.StringSliceVar(&opts.nodes, "node", nil, "only this machine (repeat for more)")
	app.CompleteFlag(cmd, "node", a.CompleteHosts)
	f.BoolVar(&opts.drawing, "map", false, "draw the cabling")
	f.StringVar(&opts.svg, "svg", "", "write a picture of the cabling to this file (- for standard output)")
	f.BoolVar(&opts.ibdev2netdev, "ibdev2netdev", false, "print what ibdev2netdev prints")
	f.BoolVar(&opts.gids, "gids", false, "print what show_gids prints")
	f.BoolVarP(&opts.watch, "watch", "w", false, "go on, and show every change")
	f.BoolVar(&opts.json, "json", false, "print JSON")
	f.StringVar(&opts.from, "from", "", "show a report's machines in place of the cluster's (- for standard input)")
	return cmd
}

// check refuses flags that exclude each other.
func (o fabricOptions) check() error {
	var forms []string
	for _, form := range []struct {
		flag  string
		given bool
	}{{"--map", o.drawing}, {"--svg", o.svg != ""}, {"--ibdev2netdev", o.ibdev2netdev}, {"--gids", o.gids},
		{"--json", o.json}} {
		if form.given {
			forms = append(forms, form.flag)
		}
	}
	drawn := o.drawing || o.svg != ""
	switch {
	case len(forms) > 1:
		return app.Usagef("%s: give one of them", strings.Join(forms, " and "))
	case o.watch && len(forms) > 0 && !o.drawing:
		return app.Usagef("--watch shows the tables or, with --map, the drawing: %s does not go with it", forms[0])
	case o.watch && o.from != "":
		return app.Usagef("--watch --from: a report does not change")
	case len(o.nodes) > 0 && drawn:
		return app.Usagef("--node %s: a drawing shows all machines", o.nodes[0])
	}
	return nil
}

func runFabric(ctx context.Context, a *app.App, o fabricOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	if o.watch {
		return watchFabric(ctx, a, o)
	}
	v, err := readView(ctx, a, o)
	if err != nil {
		return err
	}
	if err := v.only(o.nodes); err != nil {
		return err
	}
	switch {
	case o.json:
		err = a.Object(v.object())
	case o.svg != "":
		err = a.WriteFile(o.svg, topology.SVG(v.scene.Topology, v.status.Away()...))
	case o.ibdev2netdev:
		err = classic(a, v, o.nodes, envgen.IBDev2Netdev)
	case o.gids:
		err = classic(a, v, o.nodes, envgen.ShowGIDs)
	default:
		_, err = io.WriteString(a.Out, show(a, v, o))
	}
	for _, note := range v.notes {
		a.Say(note)
	}
	return err
}

// show gives the drawing or the tables, with the findings and notes.
func show(a *app.App, v *fabricView, o fabricOptions) string {
	if o.drawing {
		return topology.Map(v.scene.Topology, a.Columns())
	}
	return v.tables()
}

// readView reads the cluster's view, this machine's own, or a report's.
func readView(ctx context.Context, a *app.App, o fabricOptions) (*fabricView, error) {
	if o.from != "" {
		return replay(ctx, a, o.from)
	}
	b := a.Dial()
	defer b.Close()
	st, err := wire.ShowStatus.Call(ctx, b, wire.StatusRequest{})
	if errors.Is(err, node.ErrNoAgent) {
		return ownView(ctx, a)
	}
	if err != nil {
		return nil, err
	}
	// The counters are useful, but not worth failing for.
	counters, err := wire.Counters.Call(ctx, b, wire.Empty{})
	v, verr := newFabricView(st, counters.Nodes)
	if verr != nil {
		return nil, verr
	}
	if err != nil {
		v.notes = append(v.notes, fmt.Sprintf("the counters are missing: %v", err))
	}
	return v, nil
}

// ownView reads this machine where no agent runs.
func ownView(ctx context.Context, a *app.App) (*fabricView, error) {
	inv, err := a.Survey(ctx)
	if err != nil {
		return nil, err
	}
	return newFabricView(wire.Status{
		Self: inv.Host,
		Problem: "no sparkrun agent runs on this machine: this is what the machine itself shows; cables are not " +
			"looked for",
		Nodes: []wire.NodeStatus{{ID: "self", Host: inv.Host, State: "unknown", Inventory: inv}},
	}, nil)
}

// classic prints the output of one of the classic tools for this machine or the named
// ones; for several it adds headings.
func classic(a *app.App, v *fabricView, named []string, print func(envgen.Inventory) string) error {
	if len(named) == 0 {
		if err := v.only([]string{v.status.Self}); err != nil {
			return err
		}
	}
	var b bytes.Buffer
	for i, n := range v.status.Nodes {
		if len(v.status.Nodes) > 1 {
			if i > 0 {
				b.WriteString("\n")
			}
			fmt.Fprintf(&b, "%s:\n", plain.Text(n.Host))
		}
		b.WriteString(plain.Text(print(n.Inventory)))
	}
	_, err := a.Out.Write(b.Bytes())
	return err
}

// only keeps the named machines, in the cluster's order.
func (v *fabricView) only(hosts []string) error {
	if len(hosts) == 0 {
		return nil
	}
	var known []string
	for _, n := range v.status.Nodes {
		known = append(known, n.Host)
	}
	for _, h := range hosts {
		if !slices.Contains(known, h) {
			return fmt.Errorf("no machine %s: there are %s", h, strings.Join(known, ", "))
		}
	}
	v.status.Nodes = slices.DeleteFunc(slices.Clone(v.status.Nodes),
		func(n wire.NodeStatus) bool { return !slices.Contains(hosts, n.Host) })
	return nil
}
