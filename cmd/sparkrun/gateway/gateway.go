// Package gateway has the commands of the one address for all models: what is behind it, its keys and its aliases.
//
// It makes keys, and shows each once: the cluster gets only a hash.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// NewCmd makes `sparkrun gateway`.
func NewCmd(a *app.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "One address for all models: what is behind it, keys, aliases",
		Long: `On port 7942 every machine of the cluster answers OpenAI's API, and Anthropic's, for all
models that the cluster's services serve: a request goes to the service that serves the
model it names, wherever that runs.

Without a key it listens on 127.0.0.1 alone, for programs of the machine itself. Once
there is a key it listens on the management network as well, and asks for one; by TLS
after gateway ca create. sparkrun help serving has how to use it.`,
		Example: `  sparkrun gateway ls
  sudo sparkrun gateway key create webui
  curl http://127.0.0.1:7942/v1/models`,
	}
	app.Group(cmd)
	cmd.AddCommand(newLsCmd(a), newStatsCmd(a), newOpenCmd(a), newCloseCmd(a), newKeyCmd(a), newAliasCmd(a),
		newVirtualIPCmd(a), newCACmd(a))
	return cmd
}

func show(ctx context.Context, b *wire.Client) (wire.GatewayResponse, error) {
	return app.Patiently(ctx, func() (wire.GatewayResponse, error) {
		return wire.ShowGateway.Call(ctx, b, wire.Empty{})
	})
}

// change makes a change, and gives the settings after it; they are nil where nobody could be asked.
func change(ctx context.Context, a *app.App, c rendezvous.GatewayChange) (*wire.GatewayResponse, error) {
	b := a.Dial()
	defer b.Close()
	asked := 0
	res, err := app.Patiently(ctx, func() (wire.Acknowledged, error) {
		asked++
		return wire.ChangeGateway.Call(ctx, b, c)
	})
	gone := errors.Is(err, rendezvous.ErrNoKey) || errors.Is(err, rendezvous.ErrNoAlias) ||
		errors.Is(err, rendezvous.ErrNoGatewayCA)
	if err != nil && !(gone && asked > 1) { // else the last leader had recorded it
		return nil, err
	}
	a.SayAlone(res.OnlyOn)
	now, err := show(ctx, b)
	if err != nil {
		return nil, nil //nolint:nilerr // the change is made
	}
	return &now, nil
}

// completionWait bounds a completion: longer is worse than no answer.
const completionWait = 300 * time.Millisecond

// complete offers what words finds in the settings, for arguments that are not given yet, up to most of them.
func complete(a *app.App, most int, words func(g wire.GatewayResponse, args []string) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
		defer cancel()
		b := a.Dial()
		defer b.Close()
		g, err := wire.ShowGateway.Call(ctx, b, wire.Empty{})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		out := words(g, args)
		return slices.DeleteFunc(out, func(w string) bool { return slices.Contains(args, w) }),
			cobra.ShellCompDirectiveNoFileComp
	}
}

// modelsOf are the names that services give their models, each once, without those that have failed.
func modelsOf(g wire.GatewayResponse) (models []string) {
	for _, b := range g.Backends {
		if !b.Failed() {
			models = append(models, b.Models...)
		}
	}
	slices.Sort(models)
	return slices.Compact(models)
}

// sayReach says who reaches the gateway after a change.
func sayReach(a *app.App, g *wire.GatewayResponse) {
	if g == nil || g.Port == 0 {
		return
	}
	switch keys := len(g.Keys); {
	case keys > 0:
		a.Say(fmt.Sprintf("it listens on port %d of every machine, and asks for one of %s", g.Port, app.Count(keys, "key")))
	case g.Open:
		a.Say(fmt.Sprintf("warning: there is no key: everybody who reaches port %d of a machine may use its models", g.Port))
	default:
		a.Say(fmt.Sprintf("there is no key: it listens on 127.0.0.1:%d of every machine alone", g.Port))
	}
}
