// Command sparkrun is the agent of a node, and the commands that a person types, which
// call it. It decides what is printed, what the exit code is, and which hint an error
// gets. The list of all commands is in root.go; each is a file in its noun's folder.
//
// It must not decide anything about clusters, jobs or ranks: it asks cmd/node and the
// agent, and workloads for what a launch means.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"

	"golang.org/x/term"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/mpi"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/launcher/shim"
	"github.com/sparkrun/sparkrun/workloads/engine"
	"github.com/sparkrun/sparkrun/workloads/nettest/ibtest"
)

// version is set by the release build: -ldflags "-X main.version=1.2.3".
var version = ""

func main() {
	// Not for people: agents start it, once per job, and ranks wait for it. So it does
	// without the commands: making them takes longer than the shim's own start.
	if len(os.Args) == 3 && os.Args[1] == "shim" {
		os.Exit(shim.Main(os.Args[2]))
	}
	// Not for people either: parts of an Open MPI job.
	if len(os.Args) > 1 && os.Args[1] == mpi.NodeCommand {
		os.Exit(mpi.NodeMain(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == mpi.RemoteCommand {
		os.Exit(mpi.RemoteMain(os.Args[2:]))
	}
	if len(os.Args) == 2 && os.Args[1] == mpi.TaskCommand {
		os.Exit(mpi.TaskMain())
	}
	if len(os.Args) > 1 && os.Args[1] == ibtest.NodeCommand { // a rank of an ib-test
		os.Exit(ibtest.NodeMain(os.Args[2:], node.DefaultPaths().Sysfs, node.Survey))
	}
	if len(os.Args) > 1 {
		if rank := engine.RankProgram(os.Args[1]); rank != nil { // a rank of a job that serves
			os.Exit(rank(os.Args[2:]))
		}
	}
	os.Exit(run())
}

func run() int {
	a := &app.App{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		OutTTY: term.IsTerminal(int(os.Stdout.Fd())), ErrTTY: term.IsTerminal(int(os.Stderr.Fd())),
		Environ: os.Environ(), Getwd: os.Getwd, Version: buildVersion(), Shim: shimProgram,
		Columns: terminalWidth, Rows: terminalHeight, Survey: node.Survey, Evidence: node.Evidence, Find: node.Find, BrowseSSH: node.FindSSH,
		DialHere: app.DialAgent, Standalone: node.OpenStandalone, Signals: listen,
	}
	a.Dial = a.DialChosen
	return execute(context.Background(), a, os.Args[1:])
}

// execute runs one command line and returns its exit code.
func execute(ctx context.Context, a *app.App, args []string) int {
	root := newRootCmd(a)
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	cmd, args, err := asTyped(a, root, args)
	if err == nil {
		root.SetArgs(args)
		cmd, err = root.ExecuteContextC(ctx)
	}
	if err == nil {
		return 0
	}
	if text := complaint(cmd, err); text != "" {
		fmt.Fprint(a.Err, plain.Text(text))
	}
	return codeOf(cmd, err)
}

// listen delivers the signals that a launch handles itself. One that was ignored when we
// were started (nohup, a shell's background job) stays ignored.
func listen() (<-chan os.Signal, func()) {
	c := make(chan os.Signal, 4)
	for _, s := range append([]os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}, app.Forwarded...) {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
	// A write to a closed pipe must return an error; otherwise the Go runtime ends the
	// process.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	return c, func() { signal.Stop(c); signal.Stop(pipe) }
}

// terminalWidth is the width of standard output; where it is no terminal, $COLUMNS or a
// width that most windows have.
func terminalWidth() int {
	if w, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil && w > 0 {
		return w
	}
	if w, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && w > 0 {
		return w
	}
	return 100
}

// terminalHeight is that of standard output; 0 where it is no terminal.
func terminalHeight() int {
	_, h, _ := term.GetSize(int(os.Stdout.Fd())) //nolint:errcheck // 0, then
	return h
}

func buildVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	rev, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			rev = s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+changes"
		}
	}
	if rev == "" {
		return "devel"
	}
	return "devel-" + rev + dirty
}
