package launch

import (
	"context"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/image"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync/oci"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// BringImage has the machines that a job would get have its image before it is given to them, where they are more than
// one: it comes from its registry once. Errors of the launch itself are left to the launch.
func BringImage(ctx context.Context, a *app.App, b *wire.Client, spec launcher.Spec, o Options) error {
	c := spec.MainStage().Container
	if o.Standalone || c == nil || c.Pull == launcher.PullNever || strings.HasPrefix(c.Image, "sha256:") ||
		max(spec.Nodes, spec.MinNodes, len(spec.On)) == 1 {
		return nil
	}
	named, err := oci.ParseRef(c.Image)
	if err != nil { // the beginning of an ID, or nothing that an engine takes
		return nil //nolint:nilerr // the launch says so
	}
	there, err := wire.Images.Call(ctx, b, wire.ImagesRequest{Ref: named.String()})
	if err != nil {
		return ctx.Err()
	}
	lacks := func(n wire.NodeImages) bool { return n.Error == "" && len(n.Images) == 0 }
	if c.Pull != launcher.PullAlways && !slices.ContainsFunc(there.Nodes, lacks) {
		return nil
	}
	hosts := spec.On
	switch {
	case len(hosts) > 0:
	case spec.Wait || spec.Spare > 0: // it may get any of them
		for _, n := range there.Nodes {
			if n.Error == "" && !slices.Contains(spec.Exclude, n.Host) {
				hosts = append(hosts, n.Host)
			}
		}
	default:
		res, err := explain(ctx, b, spec, o.Model)
		if err != nil {
			return ctx.Err()
		}
		for _, n := range res.Nodes {
			hosts = append(hosts, n.Host)
		}
	}
	wanted := func(n wire.NodeImages) bool {
		return slices.Contains(hosts, n.Host) && (c.Pull == launcher.PullAlways || lacks(n))
	}
	if len(hosts) < 2 || !slices.ContainsFunc(there.Nodes, wanted) {
		return nil
	}
	return image.Bring(ctx, a, b, c.Image, hosts, c.Pull != launcher.PullAlways, o.JSON)
}
