package job

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/image"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type serviceUpdateOptions struct {
	request wire.UpdateServiceRequest
	noPull  bool
}

func newServiceUpdateCmd(a *app.App) *cobra.Command {
	opts := &serviceUpdateOptions{}
	cmd := &cobra.Command{
		Use:   "update JOB --image IMAGE",
		Short: "Give a service another image",
		Long: `The service's machines get IMAGE first. Then the one address for all models holds
new requests for it, those under way have two minutes to end, and its ranks start anew
in IMAGE; held requests are answered by them. Where a machine cannot get IMAGE nothing
is changed. If they do not become ready the service goes back to the image that it
had, by itself. It counts as none of the failures that --restart allows. It does not
wait: sparkrun ps JOB tells what became of it.

JOB is an id, the beginning of one, or a name.`,
		Example: `  sparkrun service update llm --image nvcr.io/nvidia/vllm:26.06-py3`,
		Args:    app.Takes(1, "the service's JOB"), ValidArgsFunction: a.CompleteJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.request.Job = args[0]
			if opts.request.Image == "" {
				return app.Usagef("service update: --image names the image")
			}
			return app.Running(a, opts, updateService)(cmd, args)
		},
	}
	cmd.Flags().StringVar(&opts.request.Image, "image", "", "the `IMAGE` that it is to run in")
	cmd.Flags().BoolVar(&opts.noPull, "no-pull", false, "do not have its machines get the image first")
	return cmd
}

func updateService(ctx context.Context, a *app.App, o serviceUpdateOptions) error {
	b := a.Dial()
	defer b.Close()
	if !o.noPull {
		if err := fetchFor(ctx, a, b, o.request); err != nil {
			return err
		}
	}
	res, err := wire.UpdateService.Call(ctx, b, o.request)
	if err != nil {
		return err
	}
	a.SayAlone(res.OnlyOn)
	_, err = fmt.Fprintf(a.Out, "%[1]s gets %[2]s once its requests have ended: `sparkrun ps %[1]s` tells whether it stays\n",
		res.Job, o.request.Image)
	return err
}

// fetchFor has the machines of a service get an image, while it runs on in the one that it has.
func fetchFor(ctx context.Context, a *app.App, b *wire.Client, r wire.UpdateServiceRequest) error {
	jobs, err := wire.Jobs.Call(ctx, b, wire.JobsRequest{})
	if err != nil {
		return err
	}
	j, err := pick(jobs, r.Job)
	if err != nil || j.Outcome != nil || j.Spec.Service == nil || j.Image() == "" || j.Image() == r.Image {
		return err // what is wrong with it the leader says
	}
	if err := image.Fetch(ctx, a, b, r.Image, j.MainHosts(), true, false); err != nil {
		return fmt.Errorf("job %s runs on in %s: %w (--no-pull: each machine's Docker pulls it, after the service's end)",
			j.Spec.ID, j.Image(), err)
	}
	return nil
}
