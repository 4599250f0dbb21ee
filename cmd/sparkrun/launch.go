package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/help"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

// starter runs a workload's command once its options are complete.
type starter func(context.Context, *app, launchOptions) error

func newLaunchCmd(a *app, opts *launchOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use: "launch [flags] WORKLOAD -- ...",

		SuggestFor: []string{"start", "srun", "mpirun"},
		Short:      "Start a job on some of the machines",
		Long: `Starts a job and follows it: its ranks' output as [rank] line, then their exit code.
Every machine checks that it could start its ranks, and only then any rank starts. When
a rank fails the others are ended, and launch exits with the code of the one that failed
first: 128+n when signal n killed it, 125 for a failure of sparkrun's own, 124 when the
job ran out of its --timeout. Ctrl-C ends the job; a closed terminal leaves it running.

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
				return usagef("the workload is missing: sparkrun launch [flags] exec -- COMMAND, torchrun -- SCRIPT, mpi -- PROG, nccl-test, or ray")
			}
			_, err := workloads.Find(engine.Workloads(), args[0]) // a known one is a command of its own
			if errors.Is(err, workloads.ErrUnknown) {
				err = fmt.Errorf("%w; a program is run by `sparkrun launch exec -- %s`", err, quoteAll(args))
			}
			return err
		},
	}
	// torchrun's own spelling serves as well.
	cmd.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name = strings.ReplaceAll(name, "_", "-"); name == "nnodes" {
			name = "nodes"
		}
		return pflag.NormalizedName(name)
	})
	bindLaunch(cmd.PersistentFlags(), opts)
	bindBox(cmd.PersistentFlags(), &opts.box)
	groupLaunch(cmd.PersistentFlags())
	completeLaunch(a, cmd)
	return cmd
}

func bindLaunch(fs *pflag.FlagSet, o *launchOptions) {
	r, job := &o.request, &o.request.Job
	fs.Var(nodeCount{&job.MinNodes, &job.Nodes}, "nodes", "how many machines; MIN:MAX takes as many as there are (default: those of --on, else 1)")
	fs.StringSliceVar(&job.On, "on", nil, "only these machines, in this order: `HOST,HOST`")
	fs.StringSliceVar(&job.Exclude, "exclude", nil, "never these machines: `HOST,HOST`")
	fs.Var(positive{&r.RanksPerNode}, "nproc-per-node", "`N` ranks on each machine (default: 1)")
	fs.StringArrayVarP(&r.Env, "env", "e", nil, "set `NAME[=VALUE]` for the ranks; without a value, to this shell's; repeat for more")
	fs.StringVar(&r.Workdir, "workdir", "", "work in `DIR` on every machine (default: this directory; with --stage the job's folder)")
	fs.Var(stagings{&o.stage}, "stage", "bring a file or folder to every machine, to DST in the job's folder (default: where SRC is); repeat for more")
	fs.BoolVar(&job.KeepCache, "keep-cache", false, "do not drop the machines' page cache before a GPU job")
	fs.StringArrayVar(&o.secrets, "secret", nil, "give ranks `NAME[=FILE]`, this shell's variable or a file, without showing it to anybody else; repeat for more")
	fs.Var(published{&job.Publish}, "publish", "a TCP port, or FIRST-LAST, of the ranks that any host may reach; repeat for more (default: none)")
	fs.StringVar(&job.Name, "name", "", "a `NAME` for ps, logs and stop")
	fs.BoolVarP(&o.detach, "detach", "d", false, "return when the ranks run, and print the job's id; a service need not answer yet")
	fs.Var(span{&job.Grace}, "grace", "time between TERM and KILL (default: 10s)")
	fs.Var(span{&job.StartTimeout}, "start-timeout", "time until the last rank must have started (default: 1m)")
	fs.Var(span{&job.NodeTimeout}, "node-timeout", "silence on every address after which a machine is given up; 0 = never (default: 1m)")
	fs.Var(span{&job.Timeout}, "timeout", "time the job may take, restarts included; it then ends with 124 (default: any)")
	fs.Var(choice{(*string)(&job.OnFailure), []string{"stop", "continue"}}, "on-failure", "when a rank fails or a machine is lost: stop the others, or let them continue (default: stop)")
	fs.Var(choice{(*string)(&job.OnPartition), []string{"continue", "end"}}, "on-partition", "ranks that hear no leader for --node-timeout: let them continue, or end them to make room for another try (default: continue)")
	fs.Var(amount{&job.MaxOutput}, "max-output", "output kept of each stream of a rank: its begin and its end (default: 1GiB)")
	fs.StringVar((*string)(&r.Stdin), "stdin", "", "who reads this command's standard input: `none|all|RANK` (default: 0; none with -d and --max-restarts)")
	fs.BoolVarP(&o.tty, "tty", "t", false, "give rank 0, or that of --stdin, a terminal, and this one to it")
	fs.Var(&o.keys, "detach-keys", "keys that leave a --tty job running, such as ctrl-x,x; empty: none do (default: ctrl-p,ctrl-q)")
	fs.Var(ulimits{&r.Ulimits}, "ulimit", "a resource limit of the ranks, such as memlock=unlimited or nofile=4096:65536; repeat for more")
	fs.Var(choice{(*string)(&r.BindTo), []string{"core", "numa", "none"}}, "bind-to", "bind each rank to its share of the cores, or to a NUMA node (default: none)")
	fs.StringVar(&job.User, "user", "", "run the ranks as `USER`; for root only (default: you)")
	fs.IntVar(&job.MaxRestarts, "max-restarts", 0, "try the job again after a failure, up to `N` times")
	fs.IntVar(&job.Spare, "spare", 0, "hold `N` machines in reserve, for a try after the loss of one")
	fs.StringVar(&r.Before, "before", "", "run the shell `COMMAND` once before the first try, on rank 0's machine; with --image in a container there")
	fs.StringVar(&r.After, "after", "", "run the shell `COMMAND` once when all ranks have completed, on rank 0's machine; with --image in a container there")
	fs.Var(gpuCount{&job.GPUs, &r.NoGPUs}, "gpus", "GPUs to take of each machine: no other job that takes some is placed there (default: exec, mpi and ib-test none, all others all)")
	fs.BoolVar(&job.Wait, "wait", false, "stand in line while other jobs have the GPUs, rather than be refused")
	fs.BoolVar(&job.Share, "share", false, "use GPUs without taking them: beside other jobs")
	fs.BoolVar(&job.Force, "force", false, "start although the fabric between the machines is broken, or a model has no room on one")
	ncclFlags(fs, &job.NCCL, &job.NCCLSubnetAware)
	fs.BoolVar(&o.dryRun, "dry-run", false, "show what would run where, and start nothing")
	fs.Var(&o.output, "output", "how to show the ranks' output, as for logs (default: prefix)")
	fs.BoolVar(&o.json, "json", false, "print one JSON object a line: events and output; the same as --output json")
	fs.BoolVar(&o.standalone, "standalone", false, "this machine only, without agent and cluster")
}

// groupLaunch orders what bindLaunch and bindBox have bound, for help.
func groupLaunch(fs *pflag.FlagSet) {
	help.Group(fs, "Machines", "nodes", "on", "exclude", "nproc-per-node", "gpus", "wait", "share", "force", "standalone")
	help.Group(fs, "Ranks", "env", "workdir", "stage", "secret", "user", "ulimit", "bind-to", "before", "after", "keep-cache")
	help.Group(fs, "Input and output", "name", "detach", "dry-run", "stdin", "tty", "detach-keys", "output", "json", "max-output")
	help.Group(fs, "Time and failure", "timeout", "start-timeout", "node-timeout", "grace", "on-failure", "on-partition", "max-restarts", "spare")
	help.Group(fs, "Network", "publish", "nccl", "nccl-subnet-aware")
	help.Group(fs, "Containers", "image", "image-map", "pull", "mount", "model-cache", "shm-size", "docker-arg")
	help.Common(fs, "nodes", "on", "nproc-per-node", "gpus", "env", "stage", "image", "name", "detach", "dry-run")
}

// workloadRun completes the options of a workload's command and runs them.
func workloadRun(a *app, opts *launchOptions, run starter) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		opts.workload, opts.request.Args = cmd.Name(), args
		if g := cmd.Flag("grace"); g.Changed && opts.request.Job.Grace == 0 {
			// A Spec's zero means "the default": the shortest grace there is
			// kills just as soon.
			opts.request.Job.Grace = time.Millisecond
		}
		if f := cmd.Flag("node-timeout"); f.Changed && opts.request.Job.NodeTimeout == 0 {
			opts.request.Job.NodeTimeout = launcher.Never
		}
		if on := cmd.Flag("on"); on.Changed && len(opts.request.Job.On) == 0 {
			return usagef("--on \"\": it names no machine: leave it out for any")
		}
		for _, name := range []string{"start-timeout", "timeout"} {
			if f := cmd.Flag(name); f.Changed && f.Value.String() == "" {
				return usagef("--%s 0: want more than 0", name)
			}
		}
		var err error
		if opts.request.Job.Service, err = opts.service.service(cmd.Flags()); err != nil {
			return err
		}
		opts.service = serviceOptions{} // it has had its say
		var boxless error
		if !opts.serve.image { // else settleServe asks, once it has found one
			boxless = opts.box.needsImage()
		}
		if err := errors.Join(opts.check(), boxless, opts.box.check(), opts.output.settle(&opts.json)); err != nil {
			return err
		}
		return run(cmd.Context(), a, *opts)
	}
}

func (o launchOptions) check() error {
	job := o.request.Job
	switch {
	case o.dryRun && o.detach:
		return usagef("--dry-run and --detach: give one of them")
	case o.request.Stdin.Any() && o.detach && !o.tty:
		return usagef("--stdin and --detach: nobody stays to read it; --tty gives that rank a terminal to attach to")
	case o.tty && (o.json || o.output.kind != "" && o.output.kind != "raw"):
		return usagef("--tty: a terminal's output is raw: leave out --output and --json")
	case o.output.kind == "files" && o.detach:
		return usagef("--output files and --detach: nobody stays to write them; `sparkrun logs` does so later")
	case o.standalone && o.detach:
		return usagef("--detach: a --standalone job ends with its launch")
	case o.standalone && len(o.stage) > 0:
		return usagef("--stage: a --standalone job finds its files on this machine")
	case o.standalone && (len(job.On) > 0 || len(job.Exclude) > 0):
		return usagef("--on and --exclude: --standalone knows this machine only")
	case o.standalone && job.OnPartition == launcher.EndOnPartition:
		return usagef("--on-partition end: a --standalone job ends with its launch, and has no other machine")
	case o.standalone && job.Service != nil:
		return usagef("--standalone: a service goes on without its launch, which takes an agent")
	case job.Service != nil && (o.tty || o.request.Stdin.Any()):
		return usagef("--tty, --stdin: nobody stays to read it: launch leaves a service once it answers")
	case o.standalone && job.Nodes > 1:
		return usagef("--nodes %d: --standalone knows this machine only", job.Nodes)
	}
	return nil
}

// spec makes the job of the options. Everything that can be wrong with it by
// itself is found here, before anybody is asked.
func (a *app) spec(o launchOptions) (launcher.Spec, error) {
	w, err := workloads.Find(engine.Workloads(), o.workload)
	if err != nil {
		return launcher.Spec{}, err
	}
	r := o.request
	var away *node.RemoteState
	if !o.standalone {
		if away, err = a.away(); err != nil {
			return launcher.Spec{}, err
		}
	}
	cwd := ""
	if away == nil && (!filepath.IsAbs(r.Workdir) || len(o.box.mounts) > 0) {
		if cwd, err = a.getwd(); err != nil {
			return launcher.Spec{}, fmt.Errorf("find the working directory: %w; name one with --workdir", err)
		}
	}
	if r.Container, err = o.box.container(cwd); err != nil {
		return launcher.Spec{}, err
	}
	switch {
	case filepath.IsAbs(r.Workdir):
	case r.Container != nil && r.Workdir == "": // the image's
	case away != nil: // its user's home, as by ssh: this machine's folders are not there
		r.Workdir = filepath.Join("/", away.Home, r.Workdir)
	default:
		r.Workdir = filepath.Join(cwd, r.Workdir)
	}
	r.Environ, r.Away = a.environ, away != nil
	if r.Home, _ = a.getenv("HOME"); away != nil {
		r.Home = away.Home
	}
	r.Job.ID, r.Job.Submitted = launcher.NewJobID(), time.Now().UTC()
	return w.Spec(r)
}

func (a *app) launch(ctx context.Context, o launchOptions) error {
	var tty *terminal
	switch {
	case o.tty:
		var err error
		tty, err = terminalOf(a.in)
		if err != nil && !o.detach {
			return fmt.Errorf("%w; without --tty rank 0 reads it as it is", err)
		}
		w := tty.window()
		o.request.TTY, o.request.Stdin, o.output.kind = &w, cmp.Or(o.request.Stdin, "0"), "raw"
	case o.request.Stdin == "" && !o.detach && o.request.Job.MaxRestarts == 0 && o.request.Job.Service == nil:
		o.request.Stdin = "0"
	}
	spec, err := a.spec(o)
	if err != nil {
		return err
	}
	files, err := stageSpec(&spec, o)
	if err != nil {
		return err
	}
	a.sayOutside(o)
	secrets, err := readSecrets(&spec, o.secrets, a.getenv)
	if err != nil {
		return err
	}
	token, err := rayToken(&spec)
	if err != nil {
		return err
	}
	secrets = append(secrets, token...)
	b, err := a.open(o.standalone)
	if err != nil {
		return err
	}
	defer b.close()
	if o.dryRun {
		return interruptible(ctx, func(ctx context.Context) error { return a.dryRun(ctx, b, spec, o) })
	}
	if err := interruptible(ctx, func(ctx context.Context) error { return o.fits(ctx, b, spec) }); err != nil {
		return err
	}
	out, err := a.printer(o.output, o.json)
	if err != nil {
		return err
	}
	if err := interruptible(ctx, func(ctx context.Context) error {
		if err := handOver(ctx, b, &spec, files, a.say); err != nil {
			return err
		}
		err := sealSecrets(ctx, b, &spec, secrets)
		if err != nil && spec.Staged != nil {
			takeBack(ctx, b, &spec)
		}
		return err
	}); err != nil {
		return err
	}
	// Signals are the job's business from here on: none may end us unheard.
	signals, stop := a.signals()
	defer stop()
	f := follower{
		gangs: b, ranks: b, spec: spec, out: out, signals: signals, standalone: o.standalone, detach: o.detach,
		only: rayCommandOnly(spec),
	}
	if spec.MainStage().Stdin.Any() && !o.detach {
		f.in = inForeground(a.in)
	}
	if b.cluster != nil {
		st, sig, err := statusUnless(ctx, b, signals)
		switch {
		case err != nil:
			return err
		case sig != nil:
			return exits(exitOf(sig), nil)
		}
		f.spec.Epoch, f.spec.EpochBy, f.leader = st.Epoch, st.EpochBy, st.Leader
	}
	errs := a.err
	if tty != nil && !o.detach {
		defer tty.restore()
		rank, err := strconv.Atoi(string(spec.MainStage().Stdin))
		if err != nil {
			return err // the spec's check lets none through
		}
		f.terminal, f.only = tty, []int{rank}
		if !o.standalone { // whose jobs end with us
			f.keys = o.keys.orDefault()
		}
		if a.errTTY {
			errs = rawLines{errs}
		}
	}
	n := openNotes(errs)
	f.say, f.out.note = n.say, n.say
	if o.detach {
		f.out = newPrinter(discard{}, discard{}) // its story is not told
	}
	code, err := f.run(ctx)
	n.Close()
	if f.rejected && spec.Staged != nil {
		takeBack(ctx, b, &spec) // nothing ran that could be looked at, and the disk may be what was short
	}
	if o.detach && code == 0 && err == nil {
		onlyOn := ""
		if p := f.onlyOn.Load(); p != nil {
			onlyOn = *p
		}
		return a.printID(spec, onlyOn, f.outcome == nil, o.json)
	}
	return exits(code, err)
}

func (a *app) open(standalone bool) (*backend, error) {
	if standalone {
		return a.standalone()
	}
	return a.dial(), nil
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }
