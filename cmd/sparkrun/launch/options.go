package launch

import (
	"context"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/launcher/filesync"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads"
)

// Options are a launch: the request, and what becomes of it here.
type Options struct {
	Workload string
	Request  workloads.Request // its Workdir as typed, possibly empty or relative

	Stage     []filesync.Source
	Secrets   []string
	Container ContainerOptions

	Detach, DryRun, JSON, Standalone, TTY bool

	keys   follow.DetachKeys
	Output follow.OutputMode

	Service ServiceOptions

	// Gather finds out what the launch has to know before there is a spec, asks the machines for it once, and completes
	// the options; nil: there is nothing to find out.
	Gather func(ctx context.Context, a *app.App, o *Options) error
	// Told is what the machines said of the launch when they were asked for that.
	Told *Answer

	// Model is looked for on the machines; Fit says what the launch takes of them, all of it with show, or
	// why it cannot be. Of a launch that serves no model both are absent.
	Model string
	Fit   func(res wire.ExplainResponse, show bool) error
}

const ibTestName = "ib-test"
