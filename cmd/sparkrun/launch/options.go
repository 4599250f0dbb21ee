package launch

import (
	"context"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/launcher/filesync"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads"
)

// Options are a launch: the request, and how this command handles it.
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

	// Gather finds out what must be known before there is a spec, asks the machines once
	// for it, and completes the options; nil: nothing is needed.
	Gather func(ctx context.Context, a *app.App, o *Options) error
	// Told is what the machines answered about the launch.
	Told *Answer

	// Model is looked for on the machines; Fit says what the launch needs of them
	// (everything, with show), or why it cannot run. Both are absent for a launch that
	// serves no model.
	Model string
	Fit   func(res wire.ExplainResponse, show bool) error
}

const ibTestName = "ib-test"
