package main

import (
	"strings"

	"github.com/sparkrun/sparkrun/launcher/stage"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads"
	"github.com/sparkrun/sparkrun/workloads/ibtest"
	"github.com/sparkrun/sparkrun/workloads/recipe"
)

type launchOptions struct {
	workload string
	request  workloads.Request // its Workdir as typed, possibly empty or relative

	stage   []stage.Source
	secrets []string
	box     boxOptions
	recipe  recipeOptions
	serve   serveOptions

	detach, dryRun, json, standalone, tty bool

	keys   detachKeys
	output outputMode

	test    testOptions // nccl-test's
	ib      ibOptions
	service serviceOptions

	// model is looked for on the machines; fit says what the launch takes of them, all of it with show, or
	// why it cannot be. Of a launch that serves no model both are absent.
	model string
	fit   func(res wire.ExplainResponse, show bool) error
}

// testOptions are those of nccl-test that are about its result.
type testOptions struct {
	Via     string  // viaTests, viaTorch; empty and "auto" mean the same
	Folder  string  // of nccl-tests on the machines; empty: it is looked for
	Gate    float64 // of what is expected; 0: none
	SVG     string
	Read    string // a result to judge, in place of a test
	Verbose bool
}

// ibOptions are those of ib-test.
type ibOptions struct {
	ibtest.Options
	Gate         float64 // of what is expected; 0: none
	Expect       float64 // Gb/s of a cable; 0: what is known
	ExpectMicros float64
	Verbose      bool
}

// serveOptions are of the workloads that serve a model.
type serveOptions struct {
	runtime string // "host", "docker" or empty: docker
	// image says that nobody has named one.
	image bool
}

// recipeOptions are of launches by a recipe.
type recipeOptions struct {
	name  string // or file; empty: none
	set   []string
	trust bool
}

func (o recipeOptions) settings() (out []recipe.Setting, err error) {
	for _, text := range o.set {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, usagef("-o %q: want NAME=VALUE, such as -o max_model_len=32768", text)
		}
		out = append(out, recipe.Setting{Name: strings.ReplaceAll(name, "-", "_"), Value: value})
	}
	return out, nil
}

const ibTestName = "ib-test"
