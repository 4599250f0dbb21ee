package gateway

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type keyLsOptions struct{ json bool }

func newKeyLsCmd(a *app.App) *cobra.Command {
	opts := &keyLsOptions{}
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the keys for models",
		Long: `Lists the keys: for which models each is, how many requests a second every machine takes
with it, until when, whether it starts services that are --on-demand, and who made it.
The keys themselves are with their holders alone.

--json prints an array of objects: name, models, rate, expires, no_wake, metrics,
created, by; what is not bounded is left out.`,
		Example: `  sparkrun gateway key ls
  sparkrun gateway key ls --json | jq -r '.[] | select(.expires == null).name'`,
		Args: app.Takes(0, ""),
		RunE: app.Running(a, opts, listKeys),
	}
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	return cmd
}

func listKeys(ctx context.Context, a *app.App, o keyLsOptions) error {
	b := a.Dial()
	defer b.Close()
	g, err := show(ctx, b)
	if err != nil {
		return err
	}
	if o.json {
		return a.Object(append([]wire.GatewayKey{}, g.Keys...))
	}
	rows := [][]string{{"NAME", "MODELS", "RATE", "EXPIRES", "WAKES", "MADE", "BY"}}
	for _, k := range g.Keys {
		limit := "-"
		if k.Rate > 0 {
			limit = strconv.FormatFloat(k.Rate, 'g', -1, 64) + "/s"
		}
		wakes := "yes"
		if k.NoWake {
			wakes = "no"
		}
		models := cmp.Or(plain.Text(strings.Join(k.Models, ",")), "all")
		if k.Metrics {
			models, wakes = "none: metrics", "no"
		}
		rows = append(rows, []string{k.Name, models, limit,
			expiry(k, time.Now()), wakes, k.Created.Local().Format(time.DateOnly), plain.Text(k.By)})
	}
	return a.Table(rows)
}

func expiry(k wire.GatewayKey, now time.Time) string {
	switch {
	case k.Expires == nil:
		return "never"
	case !k.Expires.After(now):
		return "expired"
	case k.Expires.Sub(now) < 48*time.Hour:
		return "in " + launcher.Age(k.Expires.Sub(now))
	}
	return k.Expires.Local().Format(time.DateOnly)
}
