package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/help"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

const (
	runtimeHost   = "host"
	runtimeDocker = "docker"
)

func bindServe(cmd *cobra.Command, o *launchOptions) {
	s, fs := &o.request.Serve, cmd.Flags()
	fs.Var(positive{&s.TP}, "tp", "tensor parallelism: `N` machines work on each layer together (default: from the machines and the model)")
	fs.Var(positive{&s.PP}, "pp", "pipeline parallelism: the layers are dealt out to `N` machines (default: likewise)")
	fs.StringVar(&s.Host, "host", "", "the `ADDRESS` that the server listens on (default: the first machine's on the management network)")
	fs.Var(positive{&s.Port}, "port", "the port of its API (default: the server's own)")
	fs.Var(choice{&o.serve.runtime, []string{runtimeHost, runtimeDocker}}, "runtime", "run it on the host, or in a container (default: docker)")
	completeWords(cmd, "runtime")
	addServiceFlags(cmd, &o.service)
	help.Group(fs, "Server", "tp", "pp", "host", "port", "runtime")
	help.Common(fs, "tp", "pp", "port", "host", "runtime")
}

// bindBackend binds what engines have that spread in two ways.
func bindBackend(cmd *cobra.Command, o *launchOptions) {
	s, fs := &o.request.Serve, cmd.Flags()
	fs.Var(choice{&s.Backend, []string{"auto", workloads.BackendNative, workloads.BackendRay}}, "backend", "how "+engine.Usual().Title+" spreads over machines (default: auto)")
	fs.IntVar(&s.DP, "dp", 0, "`N` copies of the model, each on machines of its own (default: 1)")
	completeWords(cmd, "backend")
	help.Group(fs, "Server", "backend", "dp")
}

// serveRun completes the options of a workload that serves and runs it: a model, and what
// stands after --.
func serveRun(a *app, opts *launchOptions, run starter) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		s := &opts.request.Serve
		if at := cmd.ArgsLenAtDash(); at >= 0 {
			args, s.Args = args[:at], args[at:]
		}
		if len(args) > 1 {
			return usagef("%s %s: one model; what is the server's goes after --", cmd.Name(), quoteAll(args))
		}
		if len(args) == 1 {
			s.Model = args[0]
		}
		switch {
		case opts.serve.runtime == runtimeHost && opts.box.image != "":
			return usagef("--runtime host and --image: give one of them")
		case opts.serve.runtime != runtimeHost && opts.box.image == "":
			e, is := engine.Named(cmd.Name())
			if !is { // run, whose recipe says
				e = engine.Usual()
			}
			opts.box.image, opts.serve.image = e.Image, true
		}
		return workloadRun(a, opts, run)(cmd, nil)
	}
}

// serve launches what serves a model, by a recipe or without one.
func serve(ctx context.Context, a *app, o launchOptions) error {
	if err := a.applyRecipe(&o); err != nil {
		return err
	}
	if err := interruptible(ctx, func(ctx context.Context) error { return a.settleServe(ctx, &o) }); err != nil {
		return err
	}
	o.model = modelOf(o)
	o.fit = func(res wire.ExplainResponse, show bool) error { return a.fit(o, res, show) }
	return a.launch(ctx, o)
}

// settleServe finds out what a launch that serves needs to know before there is a job: the
// image, what the model is like, and by which backend it spreads.
func (a *app) settleServe(ctx context.Context, o *launchOptions) error {
	e, _ := engine.Named(o.workload)
	s := &o.request.Serve
	if o.serve.image {
		from := "sparkrun's own for " + o.workload
		image, file, err := a.imageOf(o.workload)
		if err != nil {
			return err
		}
		o.box.image = e.Image // of `run` a recipe alone has said which it is
		if image != "" {
			o.box.image, from = image, file
		}
		switch {
		case o.box.image != "":
			a.say("image " + o.box.image + " (" + from + "; --image names another, --runtime host takes the machines' own program)")
		case o.serve.runtime == runtimeDocker:
			return usagef("--runtime docker: nobody publishes an image of %[1]s: --image names one of yours, or a line such as %[1]s: REF in ~/.config/sparkrun/%[2]s", o.workload, imagesFile)
		}
		if err := o.box.needsImage(); err != nil {
			return err
		}
	}
	o.request.Environ = a.environ
	if o.box.image != "" { // launch makes the whole of it later
		o.request.Container = &launcher.Container{Image: o.box.image}
	}
	if err := a.settleModel(ctx, o); err != nil {
		return err
	}
	away, err := a.away()
	if err != nil && !o.standalone {
		return err
	}
	o.request.Away = away != nil
	if s.Backend == "auto" {
		s.Backend = ""
	}
	_, nodes, err := e.Sizes(o.request)
	if err != nil {
		return err
	}
	if e.Backends != nil && nodes > 1 && s.Backend == "" && !e.NamesBackend(o.request) {
		if err := a.settleBackend(ctx, e, o); err != nil {
			return err
		}
	}
	for _, note := range e.Notes(o.request) {
		a.say(note)
	}
	return nil
}

// settleBackend finds out whether a server has a way of its own over machines.
func (a *app) settleBackend(ctx context.Context, e engine.Engine, o *launchOptions) (err error) {
	switch s := &o.request.Serve; {
	case o.serve.image && o.box.image == e.Image: // which is known to
		s.Backend = workloads.BackendNative
	case o.dryRun:
		s.Backend = workloads.BackendNative
		a.say("shown is --backend native; a launch asks " + e.Title + " first whether it knows that")
	default:
		if err := a.fitFirst(ctx, *o); err != nil {
			return err
		}
		s.Backend, err = a.askBackend(ctx, e, *o)
	}
	return err
}

// imagesFile is where images are named, of a user and of a machine.
const imagesFile = "images.yaml"

// imageOf gives the image that a file names for a workload, and the file; the user's wins.
func (a *app) imageOf(workload string) (image, file string, err error) {
	dirs := []string{"/etc/sparkrun"}
	if own, err := a.userFolder("XDG_CONFIG_HOME", ".config"); err == nil { // a service has no home
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
		if wrong := (*yaml.TypeError)(nil); errors.As(err, &wrong) { // whose words are Go's
			err = errors.New("not all of it is lines of a workload and its image")
		}
		for name := range all {
			if !engine.Serves(name) {
				err = fmt.Errorf("%q is no workload that serves a model", name)
			}
		}
		if err != nil {
			return "", "", fmt.Errorf("read images: %s: %w; want lines such as %s: %s", file, err, engine.Usual().Name, engine.Usual().Image)
		}
		if image := all[workload]; image != "" {
			return image, file, nil
		}
	}
	return "", "", nil
}

// question is the launch that has a server's help told by one of the machines, in the place where
// the server would run. Nothing is brought along for it, so that nothing changes its image.
func (o launchOptions) question(e engine.Engine) launchOptions {
	ask := o
	ask.workload, ask.detach, ask.json, ask.stage, ask.secrets = "exec", false, false, nil, nil
	job := &ask.request.Job
	job.Name, job.Nodes, job.GPUs, job.Wait, job.Spare, job.Service, job.Publish = "", 1, launcher.NoGPUs, false, 0, nil, nil
	if job.On = slices.Clone(job.On); len(job.On) > 1 {
		job.On = job.On[:1]
	}
	r := &ask.request
	r.NoGPUs, r.Setup, r.Before, r.After, r.Stdin = true, "", "", "", launcher.StdinNone
	r.Args = e.Backends.Ask(o.request)
	return ask
}

func (a *app) askBackend(ctx context.Context, e engine.Engine, o launchOptions) (string, error) {
	ask := o.question(e)
	spec, err := a.spec(ask)
	if err != nil {
		return "", err
	}
	spec.Name = questionName + e.Name + "-" + string(spec.ID)
	a.say("asking " + e.Title + " how it spreads over machines: " + quoteAll(ask.request.Args) + " (--backend says so)")
	b, err := a.open(o.standalone)
	if err != nil {
		return "", err
	}
	defer b.close()
	signals, stop := a.signals()
	defer stop()
	var help bytes.Buffer
	f := follower{gangs: b, ranks: b, spec: spec, out: newPrinter(&help, discard{}), signals: signals, standalone: o.standalone, say: func(string) {}}
	f.out.note = f.say
	code, err := f.run(ctx)
	switch {
	case err != nil:
		return "", fmt.Errorf("ask %s how it spreads: %w", e.Title, err)
	case code != 0:
		return "", exits(code, fmt.Errorf("ask %s how it spreads: `%s` ended with %d; `sparkrun logs %s` has what it said; --backend native or ray does not ask", e.Title, quoteAll(ask.request.Args), code, spec.ID))
	case e.Backends.Knows(help.String()):
		return workloads.BackendNative, nil
	}
	a.say("this " + e.Title + " does not know " + e.Backends.Sign + ": it spreads by Ray")
	return workloads.BackendRay, nil
}
