// Package launch decides how a request becomes a job: its flags, files and secrets, its
// spec, what a dry run shows, and the one place where a job is sent and followed.
//
// It must not know a workload: what a workload asks the machines beforehand is given by
// its command.
package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/help"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync"
	"github.com/sparkrun/sparkrun/rendezvous/remote"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

// Starter runs a workload's command once its options are complete.
type Starter func(context.Context, *app.App, Options) error

// NewCmd makes `sparkrun launch`.
func NewCmd(a *app.App, opts *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "launch [flags] WORKLOAD -- ...",

		SuggestFor: []string{"start"},
		Short:      "Start a job on some of the machines",
		Long: `Starts a job and follows it: its ranks' output as [rank] line, then their exit code.
Every machine checks that it could start its ranks, and only then any rank starts. When
a rank fails the others are ended, and launch exits with the code of the one that failed
first: 128+n when signal n killed it, 125 for a failure of sparkrun's own, 124 when the
job ran out of its --timeout. Ctrl-C ends the job, and so does a closed pipe, as in
"| head"; a closed terminal leaves it running.

Flags may stand before or behind the workload; the program's own come behind --. The
guide has the rest: output, input, files, restarts and exit codes are in jobs.`,
		Example: `  sparkrun launch torchrun --nodes 2 --stage train.py -- train.py --lr 0.1
  sparkrun launch exec --nodes 3 --dry-run -- hostname
  sparkrun launch torchrun --nodes 2 --image nvcr.io/nvidia/pytorch:25.10-py3 --mount . --workdir . -- train.py
  sparkrun launch vllm Qwen/Qwen3-32B --nodes 2
  sparkrun launch --standalone torchrun --nproc-per-node 2 -- train.py  # this machine alone, without a cluster`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return app.Usagef("the workload is missing: sparkrun launch [flags] exec -- COMMAND, torchrun -- " +
					"SCRIPT, mpi -- PROG, nccl-test, or ray")
			}
			_, err := workloads.Find(engine.Workloads(), args[0]) // a known workload has a command of its own
			if errors.Is(err, workloads.ErrUnknown) {
				err = fmt.Errorf("%w; a program is run by `sparkrun launch exec -- %s`", err, app.QuoteAll(args))
			}
			return err
		},
	}
	// Accept torchrun's spelling too.
	cmd.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name = strings.ReplaceAll(name, "_", "-"); name == "nnodes" {
			name = "nodes"
		}
		return pflag.NormalizedName(name)
	})
	BindLaunch(cmd.PersistentFlags(), opts)
	BindContainer(cmd.PersistentFlags(), &opts.Container)
	GroupLaunch(cmd.PersistentFlags())
	app.CompleteLaunch(a, cmd)
	return cmd
}

// BindLaunch binds the flags of all workloads to the request.
func BindLaunch(fs *pflag.FlagSet, o *Options) {
	r, job := &o.Request, &o.Request.Job
	fs.Var(app.NodeCount{Least: &job.MinNodes, Most: &job.Nodes}, "nodes",
		"how many machines; MIN:MAX, and all, take as many as there are (default: those of --on, else 1)")
	fs.StringSliceVar(&job.On, "on", nil, "only these machines, in this order: `HOST,HOST`")
	fs.StringSliceVar(&job.Exclude, "exclude", nil, "never these machines: `HOST,HOST`")
	fs.Var(app.RanksEach{N: &r.RanksPerNode}, "nproc-per-node", "`N` ranks on each machine (default: 1)")
	fs.StringArrayVarP(&r.Env, "env", "e", nil,
		"set `NAME[=VALUE]` for the ranks; without a value, to this shell's; repeat for more")
	fs.StringVar(&r.Workdir, "workdir", "",
		"work in `DIR` on every machine (default: this directory; with --stage the job's folder)")
	fs.Var(stagings{&o.Stage}, "stage",
		"bring a file or folder to every machine, to DST in the job's folder (default: where SRC is); repeat for more")
	fs.BoolVar(&job.KeepCache, "keep-cache", false, "do not drop the machines' page cache before a GPU job")
	fs.StringArrayVar(&o.Secrets, "secret", nil,
		"give ranks `NAME[=FILE]`, this shell's variable or a file, without showing it to anybody else; repeat "+
			"for more")
	fs.Var(app.Published{All: &job.Publish}, "publish",
		"a TCP port, or FIRST-LAST, of the ranks that any host may reach; repeat for more (default: none)")
	fs.StringVar(&job.Name, "name", "", "a `NAME` for ps, logs and stop")
	fs.BoolVarP(&o.Detach, "detach", "d", false,
		"return when the ranks run, and print the job's id; a service need not answer yet")
	fs.Var(app.Span{D: &job.Grace}, "grace", "time between TERM and KILL (default: 10s)")
	fs.Var(app.Span{D: &job.StartTimeout}, "start-timeout", "time until the last rank must have started (default: 1m)")
	fs.Var(app.Span{D: &job.NodeTimeout}, "node-timeout",
		"silence on every address after which a machine is given up; 0 = never (default: 1m)")
	fs.Var(app.Span{D: &job.Timeout}, "timeout",
		"time the job may take, restarts included; it then ends with 124 (default: any)")
	fs.Var(app.Choice{V: (*string)(&job.OnFailure), Words: []string{"stop", "continue"}}, "on-failure",
		"when a rank fails or a machine is lost: stop the others, or let them continue (default: stop)")
	fs.Var(app.Choice{V: (*string)(&job.OnPartition), Words: []string{"continue", "end"}}, "on-partition",
		"ranks that hear no leader for --node-timeout: let them continue, or end them to make room for another "+
			"attempt (default: continue)")
	fs.Var(app.Amount{N: &job.MaxOutput}, "max-output",
		"output kept of each stream of a rank: its begin and its end (default: 1GiB)")
	fs.StringVar((*string)(&r.Stdin), "stdin", "",
		"who reads this command's standard input: `none|all|RANK` (default: 0; none with -d and --max-restarts)")
	fs.BoolVarP(&o.TTY, "tty", "t", false, "give rank 0, or that of --stdin, a terminal, and this one to it")
	fs.Var(&o.keys, "detach-keys",
		"keys that leave a --tty job running, such as ctrl-x,x; empty: none do (default: ctrl-p,ctrl-q)")
	fs.Var(app.Ulimits{All: &r.Ulimits}, "ulimit",
		"a resource limit of the ranks, such as memlock=unlimited or nofile=4096:65536; repeat for more")
	fs.Var(app.Choice{V: (*string)(&r.BindTo), Words: []string{"core", "numa", "none"}}, "bind-to",
		"bind each rank to its share of the cores, or to a NUMA node (default: none)")
	fs.StringVar(&job.User, "user", "", "run the ranks as `USER`; for root only (default: you)")
	fs.IntVar(&job.MaxRestarts, "max-restarts", 0, "try the job again after a failure, up to `N` times")
	fs.IntVar(&job.Spare, "spare", 0, "hold `N` machines in reserve, for an attempt after the loss of one")
	fs.StringVar(&r.Before, "before", "",
		"run the shell `COMMAND` once before the first attempt, on rank 0's machine; with --image in a container there")
	fs.StringVar(&r.After, "after", "",
		"run the shell `COMMAND` once when all ranks have completed, on rank 0's machine; with --image in a "+
			"container there")
	fs.Var(app.GPUCount{G: &job.GPUs, None: &r.NoGPUs}, "gpus",
		"GPUs to take of each machine: no other job that takes some is placed there (default: exec, mpi and "+
			"ib-test none, all others all)")
	fs.Var(app.Memory{M: &job.Memory}, "memory",
		"the part of each machine's memory that it takes, such as 40G, and 40G:60G if more while it starts: jobs "+
			"that say theirs share GPUs, and start one after the other")
	fs.BoolVar(&job.Wait, "wait", false, "queue while other jobs have the GPUs or the memory, instead of being refused")
	fs.BoolVar(&job.Share, "share", false, "use GPUs without taking them: beside other jobs")
	fs.BoolVar(&job.Force, "force", false,
		"start although the fabric between the machines is broken, or a model has no room on one")
	app.NCCLFlags(fs, &job.NCCL, &job.NCCLSubnetAware)
	fs.BoolVar(&o.DryRun, "dry-run", false, "show what would run where, and start nothing")
	fs.Var(&o.Output, "output", "how to show the ranks' output, as for logs (default: prefix)")
	fs.BoolVar(&o.JSON, "json", false, "print one JSON object a line: events and output; the same as --output json")
	fs.BoolVar(&o.Standalone, "standalone", false, "this machine only, without agent and cluster")
}

// GroupLaunch puts the flags of BindLaunch and BindContainer into groups for help.
func GroupLaunch(fs *pflag.FlagSet) {
	help.Group(fs, "Machines", "nodes", "on", "exclude", "nproc-per-node", "gpus", "memory", "wait", "share", "force",
		"standalone")
	help.Group(fs, "Ranks", "env", "workdir", "stage", "secret", "user", "ulimit", "bind-to", "before", "after",
		"keep-cache")
	help.Group(fs, "Input and output", "name", "detach", "dry-run", "stdin", "tty", "detach-keys", "output", "json",
		"max-output")
	help.Group(fs, "Time and failure", "timeout", "start-timeout", "node-timeout", "grace", "on-failure",
		"on-partition", "max-restarts", "spare")
	help.Group(fs, "Network", "publish", "nccl", "nccl-subnet-aware")
	help.Group(fs, "Containers", "image", "image-map", "pull", "mount", "model-cache", "shm-size", "docker-arg")
	help.Common(fs, "nodes", "on", "nproc-per-node", "gpus", "env", "stage", "image", "name", "detach", "dry-run")
}

// WorkloadRun completes the options of a workload's command and runs them.
func WorkloadRun(a *app.App, opts *Options, run Starter) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := opts.Complete(cmd, args); err != nil {
			return err
		}
		if err := opts.Container.NeedsImage(); err != nil {
			return err
		}
		if ours := oursBehind(cmd, args); ours != "" {
			a.Say(fmt.Sprintf("behind %s, %s goes to it; sparkrun's flags come before: %s %s -- %s",
				args[0], ours, cmd.CommandPath(), ours, args[0]))
		}
		return run(cmd.Context(), a, *opts)
	}
}

// oursBehind gives the flags of launch that stand among a program's own without a --, such as "--nodes 2". Only
// flags that say where ranks run are looked for: what others are called, many programs have too.
func oursBehind(cmd *cobra.Command, args []string) string {
	if cmd.ArgsLenAtDash() >= 0 {
		return ""
	}
	var ours []string
	for i, word := range args {
		name, _, holds := strings.Cut(strings.ReplaceAll(word, "_", "-"), "=")
		switch name {
		case "--nodes", "--nnodes", "--nproc-per-node", "--on", "--exclude", "--stage", "--dry-run", "--max-restarts":
			if i == 0 {
				continue
			}
			ours = append(ours, word)
			if f := cmd.Flag(name[2:]); !holds && f.NoOptDefVal == "" && i+1 < len(args) {
				ours = append(ours, args[i+1])
			}
		}
	}
	return strings.Join(ours, " ")
}

// Complete takes from a workload's command line what its flags did not bind, and checks
// the result.
func (o *Options) Complete(cmd *cobra.Command, args []string) error {
	job := &o.Request.Job
	o.Workload, o.Request.Args = cmd.Name(), args
	if g := cmd.Flag("grace"); g.Changed && job.Grace == 0 {
		// In a Spec 0 means the default, so take the shortest grace: it kills just as
		// soon.
		job.Grace = time.Millisecond
	}
	if f := cmd.Flag("node-timeout"); f.Changed && job.NodeTimeout == 0 {
		job.NodeTimeout = launcher.Never
	}
	if on := cmd.Flag("on"); on.Changed && len(job.On) == 0 {
		return app.Usagef("--on \"\": it names no machine: leave it out for any")
	}
	for _, name := range []string{"start-timeout", "timeout"} {
		if f := cmd.Flag(name); f.Changed && f.Value.String() == "" {
			return app.Usagef("--%s 0: want more than 0", name)
		}
	}
	var err error
	if job.Service, err = o.Service.service(cmd.Flags()); err != nil {
		return err
	}
	o.Service = ServiceOptions{} // it is in the request now
	return errors.Join(o.check(), o.Container.check(), o.Output.Settle(&o.JSON))
}

func (o Options) check() error {
	job := o.Request.Job
	switch {
	case o.DryRun && o.Detach:
		return app.Usagef("--dry-run and --detach: give one of them")
	case o.Request.Stdin.Any() && o.Detach && !o.TTY:
		return app.Usagef("--stdin and --detach: nobody stays to read it; --tty gives that rank a terminal to " +
			"attach to")
	case o.TTY && (o.JSON || o.Output.Kind != "" && o.Output.Kind != "raw"):
		return app.Usagef("--tty: a terminal's output is raw: leave out --output and --json")
	case o.Output.Kind == "files" && o.Detach:
		return app.Usagef("--output files and --detach: nobody stays to write them; `sparkrun logs` does so later")
	case o.Standalone && o.Detach:
		return app.Usagef("--detach: a --standalone job ends with its launch")
	case o.Standalone && len(o.Stage) > 0:
		return app.Usagef("--stage: a --standalone job finds its files on this machine")
	case o.Standalone && (len(job.On) > 0 || len(job.Exclude) > 0):
		return app.Usagef("--on and --exclude: --standalone knows this machine only")
	case o.Standalone && job.OnPartition == launcher.EndOnPartition:
		return app.Usagef("--on-partition end: a --standalone job ends with its launch, and has no other machine")
	case o.Standalone && job.Service != nil:
		return app.Usagef("--standalone: a service goes on without its launch, which takes an agent")
	case job.Service != nil && (o.TTY || o.Request.Stdin.Any()):
		return app.Usagef("--tty, --stdin: nobody stays to read it: launch leaves a service once it answers")
	case o.Standalone && job.Nodes > 1:
		return app.Usagef("--nodes %d: --standalone knows this machine only", job.Nodes)
	}
	return nil
}

// Spec makes the job of the options. All errors that can be found without asking anybody
// are found here.
func Spec(a *app.App, o Options) (launcher.Spec, error) {
	w, err := workloads.Find(engine.Workloads(), o.Workload)
	if err != nil {
		return launcher.Spec{}, err
	}
	r := o.Request
	var away *remote.State
	if !o.Standalone {
		if away, err = a.Away(); err != nil {
			return launcher.Spec{}, err
		}
	}
	cwd := ""
	if away == nil && (!filepath.IsAbs(r.Workdir) || len(o.Container.Mounts) > 0) {
		if cwd, err = a.Getwd(); err != nil {
			return launcher.Spec{}, fmt.Errorf("find the working directory: %w; name one with --workdir", err)
		}
	}
	if r.Container, err = o.Container.container(cwd); err != nil {
		return launcher.Spec{}, err
	}
	switch {
	case filepath.IsAbs(r.Workdir):
	case r.Container != nil && r.Workdir == "": // the image's working directory
	case away != nil: // the user's home, as with ssh: this machine's folders are not there
		r.Workdir = filepath.Join("/", away.Home, r.Workdir)
	default:
		r.Workdir = filepath.Join(cwd, r.Workdir)
	}
	r.Environ, r.Away = a.Environ, away != nil
	if r.Home, _ = a.Getenv("HOME"); away != nil {
		r.Home = away.Home
	}
	r.Job.ID, r.Job.Submitted = launcher.NewJobID(), time.Now().UTC()
	return w.Spec(r)
}

// Run launches a job and follows it: the only place where a request becomes a job. The
// request is completed by Gather, becomes a spec, and is explained or sent.
func Run(ctx context.Context, a *app.App, o Options) error {
	if o.Gather != nil {
		if err := app.Interruptible(ctx, func(ctx context.Context) error { return o.Gather(ctx, a, &o) }); err != nil {
			return err
		}
	}
	tty, err := readers(a, &o)
	if err != nil {
		return err
	}
	c, err := load(a, o)
	if err != nil {
		return err
	}
	if names := withoutEffect(c.spec); len(names) > 0 {
		a.Say("warning: " + strings.Join(names, ", ") + ": a Spark's GB10 has no GPUDirect RDMA, so this does nothing there")
	}
	b, end, err := Open(a, o.Standalone)
	if err != nil {
		return err
	}
	defer end()
	if o.DryRun {
		return app.Interruptible(ctx, func(ctx context.Context) error { return dryRun(ctx, a, b, c.spec, o) })
	}
	if err := app.Interruptible(ctx, func(ctx context.Context) error { return o.fits(ctx, b, c.spec) }); err != nil {
		return err
	}
	if err := app.Interruptible(ctx, func(ctx context.Context) error { return BringImage(ctx, a, b, c.spec, o) }); err != nil {
		return err
	}
	out, err := follow.OpenPrinter(a, o.Output, o.JSON)
	if err != nil {
		return err
	}
	if err := app.Interruptible(ctx, func(ctx context.Context) error { return c.handOver(ctx, b, a.Say) }); err != nil {
		return err
	}
	return c.send(ctx, a, b, o, out, tty)
}

// withoutEffect names the variables of a job, of its user or its recipe, that are about GPUDirect RDMA.
func withoutEffect(spec launcher.Spec) (names []string) {
	for _, st := range spec.Stages {
		for _, v := range st.Env {
			switch v.Name {
			case "NCCL_DMABUF_ENABLE", "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_NET_GDR_C2C", "NCCL_GDRCOPY_ENABLE":
				if !slices.Contains(names, v.Name) {
					names = append(names, v.Name)
				}
			}
		}
	}
	return names
}

// readers decides which ranks read this command's standard input, and returns its
// terminal where a rank gets it.
func readers(a *app.App, o *Options) (tty *follow.Terminal, err error) {
	switch {
	case o.TTY:
		tty, err = follow.TerminalOf(a.In)
		if err != nil && !o.Detach {
			return nil, fmt.Errorf("%w; without --tty rank 0 reads it as it is", err)
		}
		w := tty.Window()
		o.Request.TTY, o.Request.Stdin, o.Output.Kind = &w, cmp.Or(o.Request.Stdin, "0"), "raw"
	case o.Request.Stdin == "" && !o.Detach && o.Request.Job.MaxRestarts == 0 && o.Request.Job.Service == nil:
		o.Request.Stdin = "0"
	}
	return tty, nil
}

// payload is a job's spec with the files and secrets that it brings along.
type payload struct {
	spec    launcher.Spec
	files   filesync.Files
	secrets []wire.Plain
}

// load makes the spec of a launch, and reads its files and secrets.
func load(a *app.App, o Options) (c payload, err error) {
	if c.spec, err = Spec(a, o); err != nil {
		return c, err
	}
	if c.files, err = stageSpec(&c.spec, o); err != nil {
		return c, err
	}
	sayOutside(a, o)
	if c.secrets, err = readSecrets(&c.spec, o.Secrets, a.Getenv); err != nil {
		return c, err
	}
	token, err := rayToken(&c.spec)
	c.secrets = append(c.secrets, token...)
	return c, err
}

// handOver gives the files and secrets to the agent.
func (c *payload) handOver(ctx context.Context, b *wire.Client, say func(string)) error {
	if err := handOver(ctx, b, &c.spec, c.files, say); err != nil {
		return err
	}
	err := sealSecrets(ctx, b, &c.spec, c.secrets)
	if err != nil && c.spec.Staged != nil {
		takeBack(ctx, b, &c.spec)
	}
	return err
}

// send launches the job, follows it, and gives its exit code.
func (c *payload) send(ctx context.Context, a *app.App, b *wire.Client, o Options, out *follow.Printer,
	tty *follow.Terminal) error {
	// From here on signals are for the job: none may end us silently.
	signals, stop := a.Signals()
	defer stop()
	spec := c.spec
	f := follow.Follower{
		Agent: b, Spec: spec, Out: out, Signals: signals, Standalone: o.Standalone, Detach: o.Detach,
		Only: rayCommandOnly(spec),
	}
	if spec.MainStage().Stdin.Any() && !o.Detach {
		f.In = follow.InForeground(a.In)
	}
	if !o.Standalone {
		st, sig, err := app.StatusUnless(ctx, b, signals)
		switch {
		case err != nil:
			return err
		case sig != nil:
			return app.Exits(app.ExitOf(sig), nil)
		}
		f.Spec.Epoch, f.Spec.EpochBy, f.Leader = st.Epoch, st.EpochBy, st.Leader
	}
	errs := a.Err
	if tty != nil && !o.Detach {
		defer tty.Restore()
		rank, err := strconv.Atoi(string(spec.MainStage().Stdin))
		if err != nil {
			return err // the check of the spec excludes that
		}
		f.Terminal, f.Only = tty, []int{rank}
		if !o.Standalone { // a standalone job ends with us
			f.Keys = o.keys.OrDefault()
		}
		if a.ErrTTY {
			errs = follow.RawLines{To: errs}
		}
	}
	n := follow.OpenNotes(errs)
	f.Say, f.Out.Note = n.Say, n.Say
	if o.Detach {
		f.Out = follow.NewPrinter(io.Discard, io.Discard) // its events are not printed
	}
	code, err := f.Run(ctx)
	n.Close()
	if f.Rejected && spec.Staged != nil {
		takeBack(ctx, b, &spec) // nothing ran that anybody could examine, and the disk may be what is full
	}
	if o.Detach && code == 0 && err == nil {
		onlyOn := ""
		if p := f.OnlyOn.Load(); p != nil {
			onlyOn = *p
		}
		return follow.PrintID(a, spec, onlyOn, f.Outcome == nil, o.JSON)
	}
	return app.Exits(code, err)
}

// Open gives a client of the cluster, or of this machine alone.
func Open(a *app.App, standalone bool) (b *wire.Client, end func(), err error) {
	if standalone {
		return a.Standalone()
	}
	b = a.Dial()
	return b, b.Close, nil
}
