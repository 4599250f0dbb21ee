package image

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type lsOptions struct {
	request wire.ImagesRequest
	json    bool
}

func newLsCmd(a *app.App) *cobra.Command {
	opts := &lsOptions{}
	cmd := &cobra.Command{
		Use: "ls [REF]", Aliases: []string{"list"},
		Short: "List which machine's Docker has which images",
		Long: `Lists the images that have a name. The same name with different IDs is not the same
image; but Dockers that store images in different ways give one image different IDs.`,
		Example: "  sparkrun image ls\n  sparkrun image ls nvcr.io/nvidia/pytorch:25.10-py3",
		Args:    cobra.MaximumNArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			opts.request.Ref = args[0]
		}
		return app.Running(a, opts, list)(cmd, args)
	}
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	return cmd
}

func list(ctx context.Context, a *app.App, o lsOptions) error {
	b := a.Dial()
	defer b.Close()
	res, err := app.Patiently(ctx, func() (wire.ImagesResponse, error) { return wire.Images.Call(ctx, b, o.request) })
	if err != nil {
		return err
	}
	if o.json {
		return a.Object(res)
	}
	var rows [][]string
	for _, n := range res.Nodes {
		for _, im := range n.Images {
			names := im.Refs
			if len(names) == 0 {
				names = im.Digests
			}
			for _, name := range names {
				rows = append(rows, []string{shortRef(name), short(im.ID), n.Host, launcher.Size(im.Size),
					launcher.Age(time.Since(im.Created)) + " ago"})
			}
		}
	}
	slices.SortStableFunc(rows, func(x, y []string) int { return cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(x[1], y[1])) })
	if len(rows) == 0 {
		a.Say("no machine's Docker has any")
	} else if err := a.Table(slices.Insert(rows, 0, []string{"IMAGE", "ID", "HOST", "SIZE", "CREATED"})); err != nil {
		return err
	}
	for _, n := range res.Nodes {
		if n.Error != "" {
			a.Say(n.Host + ": " + n.Error)
		}
	}
	return nil
}

// shortRef cuts a digest in a name.
func shortRef(ref string) string {
	name, digest, has := strings.Cut(ref, "@")
	if !has {
		return ref
	}
	return name + "@" + short(digest)
}
