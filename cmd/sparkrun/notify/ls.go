package notify

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type lsOptions struct{ json bool }

func newLsCmd(a *app.App) *cobra.Command {
	opts := &lsOptions{}
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List who is told, of what, and how that went",
		Long: `Lists the webhooks and commands: of what each is told, how many events it has yet to be
told of, and when the last one was sent or why it did not arrive. Of a URL only the host
is shown, of a command only the program.

--json prints an array of objects: name, kind, to, on, created, by, waiting, last, error.`,
		Example: `  sparkrun notify ls
  sparkrun notify ls --json | jq -r '.[] | select(.error != "").name'`,
		Args: app.Takes(0, ""),
		RunE: app.Running(a, opts, list),
	}
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	return cmd
}

func list(ctx context.Context, a *app.App, o lsOptions) error {
	b := a.Dial()
	defer b.Close()
	res, err := show(ctx, b)
	if err != nil {
		return err
	}
	if o.json {
		return a.Object(append([]wire.NotifyTarget{}, res.Targets...))
	}
	rows := [][]string{{"NAME", "KIND", "TO", "ON", "BY", "WAITING", "LAST"}}
	for _, t := range res.Targets {
		last := "never"
		if t.Last != nil {
			last = launcher.Age(time.Since(*t.Last)) + " ago"
		}
		if t.Error != "" {
			last += ": " + plain.Line(t.Error)
		}
		rows = append(rows, []string{t.Name, t.Kind, plain.Line(t.To), onText(t.On), plain.Line(t.By),
			strconv.Itoa(t.Waiting), last})
	}
	if res.LeftOut > 0 {
		a.Say(app.Count(res.LeftOut, "event") + " did not reach all of them, as too many waited")
	}
	return a.Table(rows)
}

// onText lists events, or those that are left out if that is shorter.
func onText(on []rendezvous.NotifyEvent) string {
	var without []string
	for _, e := range rendezvous.NotifyEvents() {
		if !slices.Contains(on, e) {
			without = append(without, string(e))
		}
	}
	switch {
	case len(without) == 0:
		return "all"
	case len(without) < len(on):
		return "all but " + strings.Join(without, ",")
	}
	return rendezvous.JoinEvents(on)
}
