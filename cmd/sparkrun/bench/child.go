package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/workloads/bench"
)

// childGrace is for a child that was asked to end: launch has its job end meanwhile.
const childGrace = time.Minute

// child runs a command to its end. It is a process group of its own: Ctrl-C at our terminal reaches it once, as the end
// of ctx. What it leaves behind in that group is killed.
func child(ctx context.Context, a *app.App, argv []string, env []bench.Setting, out, errs io.Writer) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	name := argv[0]
	if name == "sparkrun" {
		name = exe
	}
	cmd := exec.CommandContext(ctx, name, argv[1:]...)
	cmd.Args[0] = argv[0]
	cmd.Env = slices.Clone(a.Environ)
	if a.Context != "" {
		cmd.Env = append(cmd.Env, app.ContextEnv+"="+a.Context)
	}
	for _, e := range env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = childGrace
	err = cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // as a rule there is nobody
	}
	if exit, is := errors.AsType[*exec.ExitError](err); is && ctx.Err() == nil {
		return fmt.Errorf("%s: %s", app.QuoteAll(argv[:min(3, len(argv))]), exit)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// tail keeps the last bytes of what is written to it, and passes all on to an optional writer.
type tail struct {
	bytes.Buffer
	to io.Writer
}

// keptOutput is read for figures, in bytes: the last of them count.
const keptOutput = 8 << 20

func (t *tail) Write(p []byte) (int, error) {
	if t.to != nil {
		t.to.Write(p) //nolint:errcheck // a terminal that is gone stops no benchmark
	}
	if t.Len() > 2*keptOutput {
		t.Next(t.Len() - keptOutput)
	}
	return t.Buffer.Write(p)
}

// lastLines are the last lines of an output that say anything, for an error.
func lastLines(output string) string {
	const most = 3
	lines := strings.FieldsFunc(output, func(r rune) bool { return r == '\n' || r == '\r' })
	said := strings.Join(lines[max(0, len(lines)-most):], " / ")
	if len(said) > 600 {
		said = said[len(said)-600:]
	}
	return strings.ToValidUTF8(said, "")
}
