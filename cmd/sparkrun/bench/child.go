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

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/workloads/bench"
)

// childGrace is for a child that was asked to end: launch has its job end meanwhile.
const childGrace = time.Minute

// child runs a command to its end. It is a process group of its own: Ctrl-C at our terminal reaches it once, as the end
// of ctx. What it leaves behind in that group is killed.
func (r *runner) child(ctx context.Context, argv []string, env []bench.Setting, out, errs io.Writer) error {
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
	cmd.Dir, cmd.Env = r.dir, slices.Clone(r.a.Environ)
	if r.a.Context != "" {
		cmd.Env = append(cmd.Env, app.ContextEnv+"="+r.a.Context)
	}
	for _, e := range env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }
	cmd.WaitDelay = childGrace
	if err = cmd.Start(); err == nil {
		err = await(cmd)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if exit, is := errors.AsType[*exec.ExitError](err); is {
		return fmt.Errorf("%s: %w", app.QuoteAll(argv[:min(3, len(argv))]), exit)
	}
	return err
}

// await waits for a command. Whatever is left of its group is killed as soon as it has exited, not when its output
// ends: what it left behind may hold that.
func await(cmd *exec.Cmd) error {
	swept := make(chan struct{})
	go func() {
		defer close(swept)
		_ = unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) // or Wait was first
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)                                     // as a rule there is nobody
	}()
	err := cmd.Wait()
	<-swept
	return err
}

// tail keeps the last bytes of what is written to it, and passes all on to an optional writer.
type tail struct {
	kept bytes.Buffer
	to   io.Writer
}

// keptOutput is read for figures, in bytes: the last of them count.
const keptOutput = 8 << 20

func (t *tail) Write(p []byte) (int, error) {
	if t.to != nil {
		t.to.Write(p) //nolint:errcheck // a terminal that is gone stops no benchmark
	}
	if t.kept.Len() > 2*keptOutput {
		t.kept.Next(t.kept.Len() - keptOutput)
	}
	return t.kept.Write(p)
}

func (t *tail) String() string { return t.kept.String() }

// after is an error of what has written this, with the last lines that say anything.
func (t *tail) after(err error) error {
	const most = 3
	if err == nil {
		return nil
	}
	lines := strings.FieldsFunc(t.String(), func(r rune) bool { return r == '\n' || r == '\r' })
	said := strings.Join(lines[max(0, len(lines)-most):], " / ")
	if said == "" {
		return err
	}
	return fmt.Errorf("%w; it said last: %s", err, strings.ToValidUTF8(said[max(0, len(said)-600):], ""))
}
