package app

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Interruptible runs fn, which Ctrl-C may end since nothing has been started yet.
func Interruptible(ctx context.Context, fn func(context.Context) error) error {
	ctx, stop := Stoppable(ctx)
	defer stop()
	if err := fn(ctx); err == nil || ctx.Err() == nil {
		return err
	}
	return Exits(launcher.ExitInterrupted, nil)
}

// StatusUnless asks who leads, and in which epoch, until a signal arrives.
func StatusUnless(ctx context.Context, c *wire.Client, signals <-chan os.Signal) (wire.Status, os.Signal, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		st  wire.Status
		err error
	}
	told := make(chan answer, 1)
	go func() { // ends with ctx at the latest
		st, err := wire.ShowStatus.Call(ctx, c, wire.StatusRequest{Brief: true})
		told <- answer{st, err}
	}()
	select {
	case t := <-told:
		return t.st, nil, t.err
	case sig := <-signals:
		return wire.Status{}, sig, nil
	}
}

// Stoppable gives a context that the first Ctrl-C or TERM ends.
func Stoppable(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}

// ExitOf is the exit code of a program that the signal ended.
func ExitOf(sig os.Signal) int {
	if s, ok := sig.(syscall.Signal); ok {
		return launcher.Exit{Signal: int(s)}.Status()
	}
	return launcher.ExitInterrupted
}

// Forwarded are the signals that launch passes to the ranks and does not handle itself.
var Forwarded = []os.Signal{syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT, syscall.SIGTSTP}
