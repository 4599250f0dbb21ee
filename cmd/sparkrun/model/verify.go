package model

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type verifyOptions struct {
	request wire.ModelRequest
	json    bool
}

func newVerifyCmd(a *app.App) *cobra.Command {
	opts := &verifyOptions{}
	cmd := &cobra.Command{
		Use:   "verify ORG/NAME[@REVISION]",
		Short: "Read a model's files, and compare them with their sums",
		Long: `Has every machine that has the model read all of its files, and compare them with
the sums that the Hub gave. A file that is not what it should be counts as missing
from then on: the next pull brings it anew. It exits with 1 if there is one, or a
machine is away.`,
		Example: "  sparkrun model verify Qwen/Qwen3-8B\n  sparkrun model verify org/data@v1.2 --type dataset --on spark1",
		Args:    app.Takes(1, "a model: ORG/NAME"),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := named(args[0], &opts.request.ModelRepo, &opts.request.Revision); err != nil {
			return err
		}
		return app.Running(a, opts, verify)(cmd, args)
	}
	onFlag(a, cmd, &opts.request.On, "on these machines: `HOST,HOST` (default: all that have it)")
	typeFlag(cmd, &opts.request.Type)
	jsonFlag(cmd.Flags(), &opts.json, "print JSON when all have ended")
	return cmd
}

func verify(ctx context.Context, a *app.App, o verifyOptions) error {
	b := a.Dial()
	defer b.Close()
	var ended []wire.ModelVerdict
	live := a.ErrTTY && !o.json
	read := map[string]wire.ModelVerdict{}
	err := wire.ModelVerify.Call(ctx, b, o.request, func(v wire.ModelVerdict) error {
		if v.Ended {
			ended = append(ended, v)
		}
		if read[v.Host] = v; live {
			var done, all int64
			for _, v := range read {
				done, all = done+v.Read, all+v.Bytes
			}
			fmt.Fprintf(a.Err, "\r\x1b[K%s of %s read", launcher.Size(done), launcher.Size(all))
		}
		return nil
	})
	if live {
		fmt.Fprint(a.Err, "\r\x1b[K")
	}
	if err != nil {
		return err
	}
	if o.json {
		if err := a.Object(map[string]any{"nodes": ended}); err != nil {
			return err
		}
	}
	wrong := 0
	for _, v := range ended {
		if v.Error != "" || len(v.Bad) > 0 {
			wrong++
		}
		if !o.json {
			sayVerdict(a, typed(o.request.ModelRepo, o.request.Revision), v)
		}
	}
	if wrong > 0 {
		return fmt.Errorf("verify %s: it was not found right on %d of %s", o.request.Name, wrong, app.Count(len(ended), "machine"))
	}
	return nil
}

func sayVerdict(a *app.App, name string, v wire.ModelVerdict) {
	if v.Error == "" && len(v.Bad) == 0 {
		fmt.Fprintf(a.Out, "%s: %s, all right\n", v.Host, launcher.Size(v.Read))
		return
	}
	if v.Error != "" {
		a.Say(v.Host + ": " + v.Error)
	}
	for _, bad := range v.Bad {
		a.Say(fmt.Sprintf("%s: %s of %s: %s", v.Host, bad.Path, short(bad.Commit), bad.Why))
	}
	if len(v.Bad) > 0 {
		a.Say(fmt.Sprintf("%s: `sparkrun model pull %s --on %[1]s` brings it anew", v.Host, name))
	}
}
