package gateway

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type statsOptions struct{ json bool }

func newStatsCmd(a *app.App) *cobra.Command {
	opts := &statsOptions{}
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Show what was asked for, by model and key",
		Long: `Adds up what the machines' gateways have counted since their agents started:

  ERRORS       refused, broken off, or answered by the engine with a status from 400 on
  NOW          requests under way, and of them those that wait for their model
  FIRST BYTE   the mean time until an answer began
  TOKENS       read and generated, where answers said so

--json prints an array, an object a machine: host, counts, and error where it does not
answer. first_byte has a count, the sum in nanoseconds, and up_to: how many took at most
5, 25, 100, 250, 500 ms, 1, 2.5, 5, 10, 30, 60 and 300 s.`,
		Example: `  sparkrun gateway stats
  sparkrun gateway stats --json | jq '[.[].counts[].requests] | add'`,
		Args: app.Takes(0, ""),
		RunE: app.Running(a, opts, stats),
	}
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	return cmd
}

func stats(ctx context.Context, a *app.App, o statsOptions) error {
	b := a.Dial()
	defer b.Close()
	res, err := wire.GatewayCounts.Call(ctx, b, wire.GatewayCountsRequest{})
	if err != nil {
		return err
	}
	if o.json {
		return a.Object(append([]wire.NodeGatewayCounts{}, res.Nodes...))
	}
	type pair struct{ model, key string }
	all := map[pair]wire.GatewayCount{}
	for _, n := range res.Nodes {
		if n.Error != "" {
			a.Say(plain.Text(n.Host + ": " + n.Error))
		}
		for _, c := range n.Counts {
			p := pair{c.Model, c.Key}
			if sum, has := all[p]; has {
				c = sum.Add(c)
			}
			all[p] = c
		}
	}
	rows := [][]string{}
	for _, c := range all {
		first := "-"
		if n := c.FirstByte.Count; n > 0 {
			first = (c.FirstByte.Sum / time.Duration(n)).Round(time.Millisecond).String()
		}
		rows = append(rows, []string{cmp.Or(plain.Text(c.Model), "-"), cmp.Or(plain.Text(c.Key), "-"),
			fmt.Sprint(c.Requests), fmt.Sprint(c.Errors), fmt.Sprintf("%d (%d wait)", c.UnderWay, c.Waiting), first,
			fmt.Sprintf("%d/%d", c.TokensIn, c.TokensOut)})
	}
	slices.SortFunc(rows, func(a, b []string) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	return a.Table(append([][]string{{"MODEL", "KEY", "REQUESTS", "ERRORS", "NOW", "FIRST BYTE", "TOKENS"}}, rows...))
}
