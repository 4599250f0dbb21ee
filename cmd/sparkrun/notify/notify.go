// Package notify has the commands that say who is told of jobs, services and machines.
//
// It must not show a URL's path, a header or a command's arguments: the cluster keeps them sealed.
package notify

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// NewCmd makes `sparkrun notify`.
func NewCmd(a *app.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "notify",
		Short: "Be told when a job fails, a service is down, a machine is lost",
		Long: `The machine that leads calls a webhook, or runs a command, when something happens:

  job-failed      a job failed, or could not be started; with the rank and its cause
  job-ended       a job completed, or was stopped
  service-wedged  a service has requests and gives no token
  service-down    a service that answered does not, or has failed for good
  service-up      a service answers: for the first time, or again
  node-lost       a machine has not answered for a minute
  node-back       it answers again
  doctor-error    doctor would show an error that cables and addresses show by themselves

Each event is told once, also when the leader changes; what comes and goes is told of
less often. A target that cannot be reached gets five tries in ten minutes, and holds up
no job and no other target.`,
		Example: `  sudo sparkrun notify add webhook https://hooks.slack.com/services/T0/B0/XXXX
  sudo sparkrun notify add command --on node-lost -- /usr/local/bin/page-me
  sparkrun notify ls`,
	}
	app.Group(cmd)
	cmd.AddCommand(newAddCmd(a), newLsCmd(a), newRmCmd(a), newTestCmd(a))
	return cmd
}

func show(ctx context.Context, b *wire.Client) (wire.NotifyResponse, error) {
	return app.Patiently(ctx, func() (wire.NotifyResponse, error) {
		return wire.ShowNotify.Call(ctx, b, wire.Empty{})
	})
}

func change(ctx context.Context, a *app.App, r wire.NotifyChangeRequest) error {
	b := a.Dial()
	defer b.Close()
	asked := 0
	res, err := app.Patiently(ctx, func() (wire.Acknowledged, error) {
		asked++
		return wire.ChangeNotify.Call(ctx, b, r)
	})
	if err != nil && !(errors.Is(err, rendezvous.ErrNoNotify) && asked > 1) { // else the last leader had recorded it
		return err
	}
	a.SayAlone(res.OnlyOn)
	return nil
}

// completeName offers those that there are.
func completeName(a *app.App) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), 300*time.Millisecond) // longer is worse than no answer
		defer cancel()
		b := a.Dial()
		defer b.Close()
		if len(args) == 0 {
			res, _ := wire.ShowNotify.Call(ctx, b, wire.Empty{})
			for _, t := range res.Targets {
				names = append(names, t.Name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
