package launch

import (
	"strings"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/launcher/filesync"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads"
	"github.com/sparkrun/sparkrun/workloads/recipe"
)

// Options are a launch: the request, and what becomes of it here.
type Options struct {
	Workload string
	Request  workloads.Request // its Workdir as typed, possibly empty or relative

	Stage     []filesync.Source
	Secrets   []string
	Container ContainerOptions
	Recipe    RecipeOptions
	Serve     ServeOptions

	Detach, DryRun, JSON, Standalone, TTY bool

	keys   follow.DetachKeys
	Output follow.OutputMode

	Service ServiceOptions

	// Model is looked for on the machines; fit says what the launch takes of them, all of it with show, or
	// why it cannot be. Of a launch that serves no model both are absent.
	Model string
	Fit   func(res wire.ExplainResponse, show bool) error
}

// ServeOptions are of the workloads that serve a model.
type ServeOptions struct {
	Runtime string // "host", "docker" or empty: docker
	// Image says that nobody has named one.
	Image bool
}

// RecipeOptions are of launches by a recipe.
type RecipeOptions struct {
	Name  string // or file; empty: none
	Set   []string
	Trust bool
}

// Settings are the recipe's values that -o gives others.
func (o RecipeOptions) Settings() (out []recipe.Setting, err error) {
	for _, text := range o.Set {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, app.Usagef("-o %q: want NAME=VALUE, such as -o max_model_len=32768", text)
		}
		out = append(out, recipe.Setting{Name: strings.ReplaceAll(name, "-", "_"), Value: value})
	}
	return out, nil
}

const ibTestName = "ib-test"
