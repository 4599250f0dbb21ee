package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// interruptible runs what a Ctrl-C may end, as nothing has been started yet.
func interruptible(ctx context.Context, fn func(context.Context) error) error {
	ctx, stop := stoppable(ctx)
	defer stop()
	if err := fn(ctx); err == nil || ctx.Err() == nil {
		return err
	}
	return exits(launcher.ExitInterrupted, nil)
}

// statusUnless asks for the cluster's state; a signal ends the asking.
func statusUnless(ctx context.Context, c cluster, signals <-chan os.Signal) (wire.Status, os.Signal, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		st  wire.Status
		err error
	}
	told := make(chan answer, 1)
	go func() { // ends with ctx at the latest
		st, err := c.Status(ctx, wire.StatusRequest{})
		told <- answer{st, err}
	}()
	select {
	case t := <-told:
		return t.st, nil, t.err
	case sig := <-signals:
		return wire.Status{}, sig, nil
	}
}

// stoppable gives a context that ends with the first Ctrl-C or TERM.
func stoppable(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}

func exitOf(sig os.Signal) int {
	if s, ok := sig.(syscall.Signal); ok {
		return launcher.Exit{Signal: int(s)}.Status()
	}
	return launcher.ExitInterrupted
}

// forwarded are the signals that mean something to ranks and nothing to launch.
var forwarded = []os.Signal{syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT, syscall.SIGTSTP}
