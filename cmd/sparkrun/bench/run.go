package bench

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/workloads/bench"
)

type runOptions struct {
	file                             string
	only                             []string
	resume, changed, dryRun, verbose bool
}

func newRunCmd(a *app.App) *cobra.Command {
	opts := &runOptions{}
	cmd := &cobra.Command{
		Use:   "run FILE",
		Short: "Run a file of benchmarks, or go on with a run that was interrupted",
		Long: `Runs all cases of a file, one after the other. A server is started once for all cases
that ask the same one. Each repeat is on the disk before the next begins, so Ctrl-C, a
crash or a power cut loses one at most: --resume goes on with the file's last run, in the
folder where that was begun, does again what has failed, and stops a server that was left
behind. A file that has changed since is refused; with --changed, cases that are the same
are not run again.

What fails is kept with its cause, and the others go on; the exit code is then 1. Nothing
else should use the machines meanwhile: this takes no care of that.`,
		Example: `  sparkrun bench run pair.yaml --dry-run
  sparkrun bench run pair.yaml --only chat
  sparkrun bench run pair.yaml --resume`,
		Args: func(_ *cobra.Command, args []string) error {
			if opts.resume && len(opts.only) > 0 {
				return app.Usagef("--resume and --only: a run goes on with the scenarios that it began with")
			}
			if opts.changed && !opts.resume {
				return app.Usagef("--changed: this is for --resume")
			}
			return app.Takes(1, "the file")(nil, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.file = args[0]
			ctx := cmd.Context()
			if !signal.Ignored(syscall.SIGHUP) { // as nohup does. A shell and the kernel may both send it: the second ends nothing
				var deaf context.CancelFunc
				ctx, deaf = signal.NotifyContext(ctx, syscall.SIGHUP)
				defer deaf()
			}
			ctx, stop := app.Stoppable(ctx)
			defer stop()
			context.AfterFunc(ctx, stop) // a second Ctrl-C ends this at once
			// Who reads what we say may be gone. Go ends a program for that, and the server would stay.
			signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
			err := run(ctx, a, *opts)
			if ctx.Err() != nil && cmd.Context().Err() == nil {
				if err != nil && err != ctx.Err() {
					a.Say(err.Error())
				}
				return app.Exits(app.ExitOf(os.Interrupt), nil)
			}
			return err
		},
	}
	fs := cmd.Flags()
	fs.StringSliceVar(&opts.only, "only", nil, "only these scenarios: `NAME,NAME`")
	fs.BoolVar(&opts.resume, "resume", false, "go on with the last run of this file")
	fs.BoolVar(&opts.changed, "changed", false, "with --resume: although the file has changed")
	fs.BoolVar(&opts.dryRun, "dry-run", false, "show what would be run, and how often")
	fs.BoolVarP(&opts.verbose, "verbose", "v", false, "show what servers and commands write, on standard error")
	return cmd
}

// maxFile is how long a file of scenarios may be, in bytes.
const maxFile = 1 << 20

func run(ctx context.Context, a *app.App, o runOptions) error {
	text, err := app.ReadFile(o.file, maxFile)
	if err != nil {
		return err
	}
	f, err := bench.Read(text)
	if err != nil {
		return fmt.Errorf("%s: %w", o.file, err)
	}
	path, err := filepath.Abs(o.file)
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(".")
	if err != nil {
		return err
	}
	r := runner{a: a, o: o, journal: &journal{}}
	defer func() { r.f.Close() }() // which does nothing where there is none
	h := bench.Header{Name: f.Name, File: path, Text: string(text), Dir: dir, At: time.Now().UTC(), Only: o.only}
	if o.resume {
		if r.journal, err = resume(a, path); err != nil {
			return err
		}
		h.ID, h.Only, h.Dir = r.ID(), r.Last().Only, r.Last().Dir
		switch changed := r.Last().Text != h.Text; {
		case changed && !o.changed:
			return fmt.Errorf("resume run %s: %s has changed since: --changed goes on nevertheless, and does not run again "+
				"what is the same; without --resume it is a new run", h.ID, o.file)
		case !changed && r.Ended != nil && r.Ended.Failed == 0:
			return fmt.Errorf("nothing to resume: run %s is done", h.ID)
		}
	}
	cases, err := f.Cases(h.Only)
	if err != nil {
		return err
	}
	if o.dryRun {
		return show(a, r.left(cases))
	}
	h.Circumstances = circumstances(ctx, a)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if !o.resume {
		h.ID = strings.Join(strings.Fields(f.Name), "-") + "-" + h.At.Local().Format("20060102-150405.000")
		if r.journal, err = create(a, h.ID); err != nil {
			return fmt.Errorf("begin a run: %w", err)
		}
	}
	if err := r.add(bench.Line{Run: &h}); err != nil {
		return err
	}
	a.Say("run " + h.ID)
	r.dir = h.Dir
	failed, err := r.all(ctx, cases)
	switch {
	case ctx.Err() != nil || err != nil:
		a.Say(fmt.Sprintf("interrupted: `sparkrun bench run %s --resume` goes on", app.Quote(o.file)))
		return err
	case failed > 0:
		return app.Exits(app.ExitFailure, fmt.Errorf("%s failed: `sparkrun bench show %s` has the causes, --resume does them again",
			app.Count(failed, "case"), h.ID))
	}
	_, err = fmt.Fprintln(a.Out, h.ID)
	return err
}

// resume opens the last run of a file.
func resume(a *app.App, path string) (*journal, error) {
	all, err := kept(a)
	for _, r := range slices.Backward(all) {
		if r.Last().File == path {
			return reopen(r.path)
		}
	}
	return &journal{}, cmp.Or(err, fmt.Errorf("nothing to resume: no run of %s is kept", path))
}

// left are the cases of which a run has not measured everything, with the repeats that it lacks.
func (r *runner) left(cases []bench.Case) (out []bench.Case) {
	for _, c := range cases {
		if c.Repeats = len(r.lacks(c)); c.Repeats > 0 {
			out = append(out, c)
		}
	}
	return out
}

// show prints what would be run.
func show(a *app.App, cases []bench.Case) error {
	var b strings.Builder
	runs, warm, servers, last := 0, 0, 0, ""
	for _, c := range cases {
		runs, warm = runs+c.Repeats, warm+c.Warmup
		fmt.Fprintf(&b, "%s\n  %d x", c.Label(), c.Repeats)
		if c.Warmup > 0 {
			fmt.Fprintf(&b, ", after %d to warm up", c.Warmup)
		}
		if l := c.Load; l != nil {
			fmt.Fprintf(&b, ": %d requests, %d at a time, of %d tokens, answers of %d; client %s", l.Prompts, l.Concurrency, l.Input,
				l.Output, l.Use)
			if c.Server() != last {
				servers++
			}
			last = c.Server()
		}
		b.WriteString("\n  ")
		for _, e := range c.Env {
			b.WriteString(app.Quote(e.Name+"="+e.Value) + " ")
		}
		fmt.Fprintf(&b, "%s\n", app.QuoteAll(c.Argv))
	}
	fmt.Fprintf(&b, "%s: %s, and %d to warm up; %s to start\n", app.Count(len(cases), "case"), app.Count(runs, "run"), warm,
		app.Count(servers, "server"))
	_, err := fmt.Fprint(a.Out, plain.Text(b.String()))
	return err
}
