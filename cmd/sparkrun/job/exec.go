package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type execOptions struct {
	job   string
	rank  int
	stdin bool
	tty   bool
	argv  []string
}

// NewExecCmd makes `sparkrun exec`.
func NewExecCmd(a *app.App) *cobra.Command {
	opts := &execOptions{}
	cmd := &cobra.Command{
		Use:   "exec JOB [flags] -- COMMAND [ARG...]",
		Short: "Run a command beside a running rank",
		Long: `Runs COMMAND beside a rank of a running job: on its machine, as its user, in its
working directory, with its environment and its limits. JOB is an id, the beginning
of one, or a name. COMMAND is not given to a shell: write sh -c '...' where one is
meant. The -- may be left out: what comes behind JOB and exec's own flags is COMMAND.

What it writes comes back as it is, and goes to no log. exec exits with its exit
code, 128+n if signal n ended it, 127 where there is no such program on that machine,
126 where it cannot be run, and 125 for every failure of sparkrun's own.

It reads nothing unless --stdin or --tty says so. INT, TERM, QUIT, USR1, USR2, CONT
and TSTP go to it; with --tty Ctrl-C is a key like any other.

It is no part of the job: its failure ends nothing, and nothing waits for it. When exec
ends in whatever way, a lost connection included, so does COMMAND: TERM, then KILL after
the job's grace. So it does when the last rank on its machine has ended. What it leaves
in the background stays until then. Only the job's user, and root, may do this.`,
		Example: `  sparkrun exec train -- nvidia-smi
  sparkrun exec train --rank 3 -- py-spy dump --pid 4711
  sparkrun exec -t train -- bash
  sparkrun exec -i train -- sh -c 'cat > notes.txt' < notes.txt`,
		ValidArgsFunction: a.CompleteJobs,
		Args: func(cmd *cobra.Command, args []string) error {
			switch at := cmd.ArgsLenAtDash(); {
			case len(args) == 0 || at == 0:
				return app.Usagef("the job is missing: `sparkrun ps` lists them")
			case at > 1:
				return app.Usagef("want one job, then the command: sparkrun exec %s -- COMMAND", args[0])
			case len(args) == 1 || args[1] == "":
				return app.Usagef("the command is missing: sparkrun exec %s -- COMMAND", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.job, opts.argv = args[0], args[1:]
			if opts.rank < 0 {
				return app.Usagef("--rank %d: want 0 or more", opts.rank)
			}
			for _, arg := range opts.argv {
				if !utf8.ValidString(arg) {
					return app.Usagef("argument %q: it is not UTF-8", arg)
				}
			}
			return runExec(cmd.Context(), a, *opts)
		},
	}
	fs := cmd.Flags()
	fs.IntVar(&opts.rank, "rank", 0, "the rank beside which it runs")
	fs.BoolVarP(&opts.stdin, "stdin", "i", false, "pass this command's standard input on")
	fs.BoolVarP(&opts.tty, "tty", "t", false, "give it a terminal, and this one to it")
	return cmd
}

func runExec(ctx context.Context, a *app.App, o execOptions) error {
	b := a.Dial()
	defer b.Close()
	v := execSession{agent: b, in: follow.InForeground(a.In), out: a.Out, err: a.Err, began: follow.NewFlagged(),
		say: a.Say}
	v.r = wire.ExecRequest{Job: o.job, Rank: o.rank, Session: uuid.NewString(), Argv: o.argv, Stdin: o.stdin}
	if o.tty {
		var err error
		if v.terminal, err = follow.TerminalOf(a.In); err != nil {
			return fmt.Errorf("%w: --stdin passes it on without one", err)
		}
		defer v.terminal.Restore()
		w := v.terminal.Window()
		v.r.TTY = &w
		if term, ok := a.Getenv("TERM"); ok { // what the command draws is shown on our terminal
			v.r.Env = []string{"TERM=" + term}
		}
	}
	signals, stop := a.Signals()
	defer stop()
	return app.Exits(v.run(ctx, signals))
}

// execSession is one exec session: a command in a rank's place.
type execSession struct {
	agent    *wire.Client
	r        wire.ExecRequest
	in       io.Reader
	out, err io.Writer
	terminal *follow.Terminal // of in, where the command has a terminal
	say      func(string)

	began follow.Flagged
	exit  *launcher.Exit // as the node reported it
}

// run returns the exit code, or an error of sparkrun itself.
func (v *execSession) run(ctx context.Context, signals <-chan os.Signal) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // this ends the command, wherever it runs
	told := make(chan error, 1)
	go func() {
		told <- wire.Exec.Call(ctx, v.agent, v.r, func(c wire.ExecChunk) error { return v.handle(ctx, c) })
	}() // ends with ctx
	ends := 0
	for {
		select {
		case err := <-told:
			return v.finish(err)
		case sig := <-signals:
			ending := sig == os.Interrupt || sig == syscall.SIGTERM
			if ending {
				ends++
			}
			switch {
			case sig == syscall.SIGHUP, ending && (ends > 2 || !v.began.Is()):
				return app.ExitOf(sig), nil
			case v.began.Is() && (ending || slices.Contains(app.Forwarded, sig)):
				go v.pass(ctx, sig.(syscall.Signal)) // ends with ctx
			}
		}
	}
}

// handle handles one message about the command.
func (v *execSession) handle(ctx context.Context, c wire.ExecChunk) error {
	switch {
	case c.Began != "":
		v.r.Job = string(c.Began) // by then the name may belong to another job
		v.began.Set()
		if v.r.Stdin || v.r.TTY != nil {
			go v.feed(ctx) // not joined: a read of a terminal ends only with the process
		}
	case c.Exit != nil:
		v.exit = c.Exit
	case c.Stream == wire.Stderr:
		return wroteAll(v.err.Write(c.Data))
	default:
		return wroteAll(v.out.Write(c.Data))
	}
	return nil
}

func wroteAll(_ int, err error) error {
	if err != nil {
		return fmt.Errorf("%w: %w", follow.ErrOutput, err)
	}
	return nil
}

func (v *execSession) finish(err error) (int, error) {
	if v.terminal != nil {
		v.terminal.Restore() // before any line is printed
	}
	switch {
	case errors.Is(err, syscall.EPIPE):
		return app.ExitOf(syscall.SIGPIPE), nil
	case err == nil && v.exit == nil:
		err = errors.New("its connection broke off")
	case v.exit != nil && v.exit.Error != "":
		v.say(fmt.Sprintf("rank %d: %s", v.r.Rank, v.exit.Error))
		return v.exit.Code, nil
	case v.exit != nil:
		return v.exit.Status(), nil
	}
	if v.began.Is() {
		err = fmt.Errorf("the command is ended: %w", err)
	}
	return launcher.ExitOwnFailure, err
}

// feed sends our standard input to the command.
func (v *execSession) feed(ctx context.Context) {
	r := wire.InputRequest{Job: v.r.Job}
	if v.terminal != nil {
		if err := v.terminal.Raw(); err != nil {
			v.say(err.Error())
			return
		}
		go v.terminal.Resizes(ctx, v.input, r, v.say) // ends with ctx
	}
	follow.Feed(ctx, v.input, r, v.in, v.say)
}

func (v *execSession) input(ctx context.Context, r wire.InputRequest) error {
	return wire.ExecReach.Call(ctx, v.agent, wire.ExecReachRequest{Job: r.Job, Rank: v.r.Rank, Session: v.r.Session,
		Offset: r.Offset, Data: r.Data, End: r.End, Window: r.Window})
}

func (v *execSession) signal(ctx context.Context, r wire.SignalRequest) error {
	return wire.ExecReach.Call(ctx, v.agent, wire.ExecReachRequest{Job: r.Job, Rank: v.r.Rank, Session: v.r.Session,
		Signal: r.Signal})
}

// pass passes a signal on, and stops us too where the shell expects that.
func (v *execSession) pass(ctx context.Context, sig syscall.Signal) {
	follow.Forward(ctx, v.signal, v.r.Job, sig, v.say)
	if sig == syscall.SIGTSTP {
		follow.StopSelf(v.terminal)
	}
}
