package cluster

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type markDeadOptions struct{ host string }

// NewMarkDeadCmd makes `sparkrun mark-dead`.
func NewMarkDeadCmd(a *app.App) *cobra.Command {
	opts := &markDeadOptions{}
	cmd := &cobra.Command{
		Use:   "mark-dead HOST",
		Short: "Say of a silent machine that nothing runs on it any more",
		Long: `Tells the cluster that HOST, which does not answer, runs no rank any more: it was
switched off, or taken away. Silence is no proof of that, and two attempts at a job
at once would ruin its files. So jobs with --max-restarts that had ranks there, and
services that come back after a power cut, wait for this word, or for the machine
itself, before they are tried again; and a service that goes on without the machine
is started anew elsewhere only then, where --restart has an attempt left: else it ends.

A machine that shows any sign of life, on the management network or on the fabric,
is refused. The word is recorded: it counts for later leaders too, until the
machine is heard again. If it was wrong, what still runs there is ended as soon as
the machine is reached again. It takes root.`,
		Example:           `  sudo sparkrun mark-dead spark3`,
		Args:              app.Takes(1, "the host"),
		ValidArgsFunction: a.CompleteSilent,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.host = args[0]
			return app.Running(a, opts, runMarkDead)(cmd, args)
		},
	}
	return cmd
}

func runMarkDead(ctx context.Context, a *app.App, o markDeadOptions) error {
	b := a.Dial()
	defer b.Close()
	res, err := wire.MarkDead.Call(ctx, b, wire.MarkDeadRequest{Host: o.host})
	if err != nil {
		return err
	}
	a.SayAlone(res.OnlyOn)
	_, err = fmt.Fprintf(a.Out, "%s is taken for dead; jobs that waited for it go on\n", o.host)
	return err
}
