package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
)

// serveLong is of the help of every workload that serves.
const serveLong = `It listens on the first machine's address on the management network, and on no other;
--host 0.0.0.0 has it listen on all. Its port is open to any host that reaches that
address, with no key asked for. --secret VLLM_API_KEY has vLLM ask for one; SGLang would
take it from its command line alone, and TensorRT-LLM asks for none: put a proxy before
them. --api-key and --hf-token in SERVER ARGS are refused: others would see them there.

It runs in a container of the image that launch names: sparkrun's own for it, that of
~/.config/sparkrun/images.yaml or /etc/sparkrun/images.yaml (a line such as
vllm: REF), or --image's; --runtime host runs the machines' own program. In the
container MODEL's folder, the cache of Hugging Face and those of compiled kernels are
the machine's; they are made where they are missing. Weights that a machine does not
have are fetched by the server there.

It is a service: launch prints where it answers and leaves, and it goes on until sparkrun
stop. With --detach launch prints the job's id and leaves once the server has been
started; ps shows when it answers. --restart, --autostart, --probe and --on-wedge say
what becomes of it meanwhile.`

// serveOptions are of the workloads that serve a model.
type serveOptions struct {
	runtime string // "host", "docker" or empty: docker
	// image says that nobody has named one.
	image bool
}

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
}

// bindBackend binds what vLLM alone has.
func bindBackend(cmd *cobra.Command, o *launchOptions) {
	s, fs := &o.request.Serve, cmd.Flags()
	fs.Var(choice{&s.Backend, []string{"auto", workloads.BackendNative, workloads.BackendRay}}, "backend", "how vLLM spreads over machines (default: auto)")
	fs.IntVar(&s.DP, "dp", 0, "`N` copies of the model, each on machines of its own (default: 1)")
	completeWords(cmd, "backend")
}

// serveRun completes the options of a workload that serves and runs it: a model, and what
// stands after --.
func serveRun(opts *launchOptions, run func(context.Context, launchOptions) error) func(*cobra.Command, []string) error {
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
		case cmd.Name() == workloads.EXO: // only who has made an image has one
			opts.serve.image = opts.serve.runtime != runtimeHost && opts.box.image == ""
		case opts.serve.runtime != runtimeHost && opts.box.image == "":
			opts.box.image, opts.serve.image = cmp.Or(workloads.DefaultImages()[cmd.Name()], workloads.DefaultImages()[workloads.VLLM]), true
		}
		return workloadRun(opts, run)(cmd, nil)
	}
}

// settleServe finds out what a launch that serves needs to know before there is a job: the
// image, what the model is like, and by which backend vLLM spreads.
func (a *app) settleServe(ctx context.Context, o *launchOptions) error {
	if !workloads.Serves(o.workload) {
		return nil
	}
	s := &o.request.Serve
	if o.serve.image {
		from := "sparkrun's own for " + o.workload
		image, file, err := a.imageOf(o.workload)
		if err != nil {
			return err
		}
		o.box.image = workloads.DefaultImages()[o.workload] // of `run` a recipe alone has said which it is
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
	_, nodes, err := workloads.ServeSizes(o.workload, o.request)
	if s.Backend == "auto" {
		s.Backend = ""
		_, nodes, err = workloads.ServeSizes(o.workload, o.request)
	}
	if err != nil {
		return err
	}
	if o.workload == workloads.VLLM && nodes > 1 && s.Backend == "" && !workloads.NamesBackend(o.request) {
		switch {
		case o.serve.image && o.box.image == workloads.DefaultImages()[workloads.VLLM]: // it is known to know --nnodes
			s.Backend = workloads.BackendNative
		case o.dryRun:
			s.Backend = workloads.BackendNative
			a.say("shown is --backend native; a launch asks vLLM first whether it knows that")
		default:
			if err := a.fitFirst(ctx, *o); err != nil {
				return err
			}
			if s.Backend, err = a.askBackend(ctx, *o); err != nil {
				return err
			}
		}
	}
	for _, note := range workloads.ServeNotes(o.workload, o.request) {
		a.say(note)
	}
	return nil
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
			if !workloads.Serves(name) {
				err = fmt.Errorf("%q is no workload that serves a model", name)
			}
		}
		if err != nil {
			return "", "", fmt.Errorf("read images: %s: %w; want lines such as vllm: %s", file, err, workloads.DefaultImages()[workloads.VLLM])
		}
		if image := all[workload]; image != "" {
			return image, file, nil
		}
	}
	return "", "", nil
}

// question is the launch that has vLLM's help told by one of the machines, in the place where
// the server would run. Nothing is brought along for it, so that nothing changes its image.
func (o launchOptions) question() launchOptions {
	ask := o
	ask.workload, ask.detach, ask.json, ask.stage, ask.secrets = "exec", false, false, nil, nil
	job := &ask.request.Job
	job.Name, job.Nodes, job.GPUs, job.Wait, job.Spare, job.Service, job.Publish = "", 1, launcher.NoGPUs, false, 0, nil, nil
	if job.On = slices.Clone(job.On); len(job.On) > 1 {
		job.On = job.On[:1]
	}
	r := &ask.request
	r.NoGPUs, r.Setup, r.Before, r.After, r.Stdin = true, "", "", "", launcher.StdinNone
	r.Args = append(workloads.VLLMProgram(o.request), "serve", "--help=all")
	return ask
}

// questionName is what the job of a question is called, with its id behind it.
const questionName = "ask-vllm-"

func isQuestion(spec launcher.Spec) bool { return spec.Name == questionName+string(spec.ID) }

func (a *app) askBackend(ctx context.Context, o launchOptions) (string, error) {
	ask := o.question()
	spec, err := a.spec(ask)
	if err != nil {
		return "", err
	}
	spec.Name = questionName + string(spec.ID)
	a.say("asking vLLM how it spreads over machines: " + quoteAll(ask.request.Args) + " (--backend says so)")
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
		return "", fmt.Errorf("ask vLLM how it spreads: %w", err)
	case code != 0:
		return "", exits(code, fmt.Errorf("ask vLLM how it spreads: `%s` ended with %d; `sparkrun logs %s` has what it said; --backend native or ray does not ask", quoteAll(ask.request.Args), code, spec.ID))
	case workloads.KnowsNodes(help.String()):
		return workloads.BackendNative, nil
	}
	a.say("this vLLM does not know --nnodes: it spreads by Ray")
	return workloads.BackendRay, nil
}
