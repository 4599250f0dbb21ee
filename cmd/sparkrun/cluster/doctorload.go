package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/launcher/load"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// runLoad has machines loaded. A machine that was not loaded is a failure: it was asked for.
func runLoad(ctx context.Context, a *app.App, o doctorOptions) error {
	switch {
	case o.request.Fix:
		return app.Usagef("--load changes nothing: leave --fix out")
	case o.load < load.Least || o.load > load.Most:
		return app.Usagef("--load %s: want %s to %s", o.load, load.Least, load.Most)
	}
	b := a.Dial()
	defer b.Close()
	r := wire.LoadRequest{For: o.load, Node: o.request.Node}
	r.Path, _ = a.Getenv("PATH")
	a.Say(fmt.Sprintf("loading %s for %s", cmp.Or(r.Node, "all idle machines"), o.load))
	res, err := wire.Load.Call(ctx, b, r)
	if errors.Is(err, node.ErrNoAgent) {
		return fmt.Errorf("--load is an agent's to do: %w", err)
	}
	if err != nil {
		return err
	}
	if o.json {
		err = a.Object(res)
	} else {
		err = tellLoads(a, res, o.quiet)
	}
	for _, n := range res.Nodes {
		if err == nil && n.Error != "" {
			err = app.Exits(app.ExitFailure, nil)
		}
	}
	return err
}

func tellLoads(a *app.App, res wire.LoadResponse, quiet bool) error {
	if !quiet {
		rows := [][]string{{"HOST", "LOADED", "BY", "TFLOP/S", "READS GB/S", "CLOCK", "POWER", "HEAT"}}
		for _, l := range res.Nodes {
			rows = append(rows, loadRow(l))
		}
		if err := a.Table(rows); err != nil {
			return err
		}
	}
	for _, l := range res.Nodes {
		switch {
		case l.Error != "":
			a.Say(fmt.Sprintf("%s was not loaded: %s", l.Host, plain.Line(l.Error)))
		case l.GPU == nil:
			a.Say(fmt.Sprintf("no GPU of %s was loaded, only its processors: %s", l.Host, plain.Line(l.Trouble)))
		case l.GPU.MHz == nil:
			a.Say(fmt.Sprintf("nvidia-smi on %s told no clock meanwhile", l.Host))
		}
	}
	if len(res.Findings) > 0 && !quiet {
		fmt.Fprintln(a.Out)
	}
	tellDoctor(a, wire.DoctorResponse{Findings: res.Findings, Nodes: make([]wire.DoctorNode, len(res.Nodes))}, quiet,
		" by this load alone; without --load doctor looks for all else")
	return nil
}

func loadRow(l doctor.Load) []string {
	if l.Error != "" {
		return []string{l.Host, "-", "-", "-", "-", "-", "-", "-"}
	}
	what, g := "processors", doctor.GPU{}
	if l.GPU != nil {
		what, g = l.GPU.Name, *l.GPU
	}
	figure := func(v *float64, unit string) string {
		if v == nil {
			return "-"
		}
		return fmt.Sprintf("%.0f %s", *v, unit)
	}
	return []string{l.Host, plain.Line(what), plain.Line(l.Via), strings.TrimSpace(fmt.Sprintf("%.3g %s", l.Flops/1e12, plain.Line(l.Kind))),
		fmt.Sprintf("%.0f", l.Read/1e9), figure(g.MHz, "MHz"), figure(g.Watts, "W"), figure(g.Celsius, "°C")}
}
