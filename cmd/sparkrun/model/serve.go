// Package model decides what a person types to serve a model, by an engine or a recipe,
// and what is asked of the machines beforehand so that the model fits there.
//
// It must not know an engine by name: workloads/engine has a row for each.
package model

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/help"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

const (
	runtimeHost   = "host"
	runtimeDocker = "docker"
)

// serveOptions are for a launch that serves a model.
type serveOptions struct {
	launch.Options
	recipe  recipeOptions
	runtime string // "host", "docker" or empty: docker
	// ownImage says that the image is the engine's default: nobody has named one.
	ownImage bool
	noFetch  bool
	// unfetched says why the model is left to the server, where that is not by the user's wish.
	unfetched string
}

func bindServe(cmd *cobra.Command, o *serveOptions, l *launch.Options) {
	s, fs := &l.Request.Serve, cmd.Flags()
	fs.Var(app.Positive{N: &s.TP}, "tp",
		"tensor parallelism: `N` machines work on each layer together (default: from the machines and the model)")
	fs.Var(app.Positive{N: &s.PP}, "pp",
		"pipeline parallelism: the layers are dealt out to `N` machines (default: from the machines and the model)")
	fs.StringVar(&s.Host, "host", "",
		"the `ADDRESS` that the server listens on (default: the first machine's on the management network)")
	fs.Var(app.Positive{N: &s.Port}, "port", "the port of its API (default: the server's own)")
	fs.Var(app.Choice{V: &o.runtime, Words: []string{runtimeHost, runtimeDocker}}, "runtime",
		"run it on the host, or in a container (default: docker)")
	app.CompleteWords(cmd, "runtime")
	fs.BoolVar(&o.noFetch, "no-fetch", false,
		"leave the model to the server, in place of fetching it once for all machines beforehand")
	launch.AddServiceFlags(cmd, &l.Service)
	help.Group(fs, "Server", "tp", "pp", "host", "port", "runtime", "no-fetch")
	help.Common(fs, "tp", "pp", "port", "host", "runtime")
}

// bindBackend binds the flag of engines that can spread in two ways.
func bindBackend(cmd *cobra.Command, o *launch.Options) {
	s, fs := &o.Request.Serve, cmd.Flags()
	fs.Var(app.Choice{V: &s.Backend, Words: []string{"auto", workloads.BackendNative, workloads.BackendRay}},
		"backend", "how "+engine.Usual().Title+" spreads over machines (default: auto)")
	fs.IntVar(&s.DP, "dp", 0, "`N` copies of the model, each on machines of its own (default: 1)")
	app.CompleteWords(cmd, "backend")
	help.Group(fs, "Server", "backend", "dp")
}

// run completes the options of a workload that serves and runs it: with a model, and the
// arguments after --.
func (o *serveOptions) run(a *app.App, l *launch.Options, run launch.Starter) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		s := &l.Request.Serve
		if at := cmd.ArgsLenAtDash(); at >= 0 {
			args, s.Args = args[:at], args[at:]
		}
		if len(args) > 1 {
			what := "one model; what is the server's goes after --"
			if cmd.Name() == "run" { // as docker run IMAGE COMMAND
				what = "one recipe; a program is run in an image by `sparkrun launch exec --image " + app.Quote(args[0]) +
					" -- " + app.QuoteAll(args[1:]) + "`"
			}
			return app.Usagef("%s %s: %s", cmd.Name(), app.QuoteAll(args), what)
		}
		if len(args) == 1 {
			s.Model = args[0]
		}
		switch {
		case o.runtime == runtimeHost && l.Container.Image != "":
			return app.Usagef("--runtime host and --image: give one of them")
		case o.runtime != runtimeHost && l.Container.Image == "":
			e, is := engine.Named(cmd.Name())
			if !is { // run has no engine: the recipe names it
				e = engine.Usual()
			}
			l.Container.Image, o.ownImage = e.Image, true
		}
		if err := l.Complete(cmd, nil); err != nil {
			return err
		}
		if !o.ownImage { // otherwise settle checks, once it has found an image
			if err := l.Container.NeedsImage(); err != nil {
				return err
			}
		}
		l.Gather = o.gather
		return run(cmd.Context(), a, *l)
	}
}

// gather applies the recipe, and finds out what must be known of the model and its
// server.
func (o *serveOptions) gather(ctx context.Context, a *app.App, l *launch.Options) error {
	s := *o
	s.Options = *l
	if err := applyRecipe(a, &s); err != nil {
		return err
	}
	if err := s.settle(ctx, a); err != nil {
		return err
	}
	s.Model = modelOf(s.Options)
	settled := s.Options
	s.Fit = func(res wire.ExplainResponse, show bool) error { return fit(a, settled, res, show) }
	*l = s.Options
	return nil
}

// settle finds out what a serving launch needs to know before there is a job: the image,
// the model's size and shape, and the backend by which it spreads.
func (o *serveOptions) settle(ctx context.Context, a *app.App) error {
	e, _ := engine.Named(o.Workload)
	s := &o.Request.Serve
	if o.ownImage {
		from := "sparkrun's own for " + o.Workload
		image, file, err := imageOf(a, o.Workload)
		if err != nil {
			return err
		}
		o.Container.Image = e.Image // for `run` only the recipe has named the engine
		if image != "" {
			o.Container.Image, from = image, file
		}
		switch {
		case o.Container.Image != "":
			a.Say("image " + o.Container.Image + " (" + from + "; --image names another, --runtime host takes the " +
				"machines' own program)")
		case o.runtime == runtimeDocker:
			return app.Usagef("--runtime docker: nobody publishes an image of %[1]s: --image names one of yours, "+
				"or a line such as %[1]s: REF in ~/.config/sparkrun/%[2]s", o.Workload, imagesFile)
		}
		if err := o.Container.NeedsImage(); err != nil {
			return err
		}
	}
	o.Request.Environ = a.Environ
	if o.Container.Image != "" { // launch completes it later
		o.Request.Container = &launcher.Container{Image: o.Container.Image}
	}
	if err := o.fetchFirst(ctx, a); err != nil {
		return err
	}
	if err := o.settleModel(ctx, a); err != nil {
		return err
	}
	if o.unfetched != "" {
		a.Say(o.unfetched)
	}
	if err := o.settleMemory(ctx, a); err != nil {
		return err
	}
	away, err := a.Away()
	if err != nil && !o.Standalone {
		return err
	}
	o.Request.Away = away != nil
	if s.Backend == "auto" {
		s.Backend = ""
	}
	_, nodes, err := e.Sizes(o.Request)
	if err != nil {
		return err
	}
	if e.Backends != nil && nodes > 1 && s.Backend == "" && !e.NamesBackend(o.Request) {
		if err := o.settleBackend(ctx, a, e); err != nil {
			return err
		}
	}
	for _, note := range e.Notes(o.Request) {
		a.Say(note)
	}
	return nil
}

// settleBackend finds out whether a server can spread over machines by itself.
func (o *serveOptions) settleBackend(ctx context.Context, a *app.App, e engine.Engine) (err error) {
	switch s := &o.Request.Serve; {
	case o.ownImage && o.Container.Image == e.Image: // the default image is known to
		s.Backend = workloads.BackendNative
	case o.DryRun:
		s.Backend = workloads.BackendNative
		a.Say("shown is --backend native; a launch asks " + e.Title + " first whether it knows that")
	default:
		if err := fitFirst(ctx, a, o.Options); err != nil {
			return err
		}
		s.Backend, err = askBackend(ctx, a, e, o.Options)
		o.Told = nil // a job has run there since, and may have fetched its image
	}
	return err
}

// imagesFile is the file that names images, for a user or for a machine.
const imagesFile = "images.yaml"

// imageOf gives the image that a file names for a workload, and that file; the user's
// file overrides the machine's.
func imageOf(a *app.App, workload string) (image, file string, err error) {
	dirs := []string{"/etc/sparkrun"}
	if own, err := a.UserFolder("XDG_CONFIG_HOME", ".config"); err == nil { // a service has no home
		dirs = []string{own, "/etc/sparkrun"}
	}
	for _, dir := range dirs {
		file = filepath.Join(dir, imagesFile)
		b, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var all map[string]string
		if err == nil {
			err = yaml.Unmarshal(b, &all)
		}
		if wrong := (*yaml.TypeError)(nil); errors.As(err, &wrong) { // yaml's own text speaks of Go types
			err = errors.New("not all of it is lines of a workload and its image")
		}
		for name := range all {
			if !engine.Serves(name) {
				err = fmt.Errorf("%q is no workload that serves a model", name)
			}
		}
		if err != nil {
			return "", "", fmt.Errorf("read images: %s: %w; want lines such as %s: %s", file, err, engine.Usual().Name,
				engine.Usual().Image)
		}
		if image := all[workload]; image != "" {
			return image, file, nil
		}
	}
	return "", "", nil
}

// question is the launch by which one of the machines prints a server's help, where the
// server itself would run. It brings no files along, so that nothing changes the image.
func question(o launch.Options, e engine.Engine) launch.Options {
	ask := o
	ask.Workload, ask.Detach, ask.JSON, ask.Stage, ask.Secrets = "exec", false, false, nil, nil
	job := &ask.Request.Job
	job.Name, job.Nodes, job.GPUs, job.Wait, job.Spare, job.Service, job.Publish, job.Memory = "", 1, launcher.NoGPUs,
		false, 0, nil, nil, nil
	if job.On = slices.Clone(job.On); len(job.On) > 1 {
		job.On = job.On[:1]
	}
	r := &ask.Request
	r.NoGPUs, r.Setup, r.Before, r.After, r.Stdin = true, "", "", "", launcher.StdinNone
	r.Args = e.Backends.Ask(o.Request)
	return ask
}

func askBackend(ctx context.Context, a *app.App, e engine.Engine, o launch.Options) (string, error) {
	ask := question(o, e)
	spec, err := launch.Spec(a, ask)
	if err != nil {
		return "", err
	}
	spec.Name = app.QuestionName + e.Name + "-" + string(spec.ID)
	a.Say("asking " + e.Title + " how it spreads over machines: " + app.QuoteAll(ask.Request.Args) + " (--backend " +
		"says so)")
	b, end, err := launch.Open(a, o.Standalone)
	if err != nil {
		return "", err
	}
	defer end()
	whole := o // the question's machine is not the only one that is to have the image
	whole.Request.Serve.Backend = workloads.BackendNative
	if job, err := launch.Spec(a, whole); err == nil {
		if err := launch.BringImage(ctx, a, b, job, whole); err != nil {
			return "", err
		}
	}
	signals, stop := a.Signals()
	defer stop()
	var help, said bytes.Buffer
	f := follow.Follower{Agent: b, Spec: spec, Out: follow.NewPrinter(&help, &said), Signals: signals,
		Standalone: o.Standalone, Say: func(string) {}}
	f.Out.Note = f.Say
	code, err := f.Run(ctx)
	switch {
	case err != nil:
		return "", fmt.Errorf("ask %s how it spreads: %w", e.Title, err)
	case code != 0:
		last := "it said nothing"
		if lines := strings.FieldsFunc(help.String()+said.String(), func(r rune) bool { return r == '\n' }); len(lines) > 0 {
			last = "its last line: " + lines[len(lines)-1]
		}
		return "", app.Exits(code,
			fmt.Errorf("ask %s how it spreads: `%s` ended with %d; %s; --backend native or ray does not ask",
				e.Title, app.QuoteAll(ask.Request.Args), code, last))
	case e.Backends.Knows(help.String()):
		return workloads.BackendNative, nil
	}
	a.Say("this " + e.Title + " does not know " + e.Backends.Sign + ": it spreads by Ray")
	return workloads.BackendRay, nil
}
