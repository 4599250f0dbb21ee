package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// supervise tells the service manager that the agent answers, and from then on, as
// often as it asks (WatchdogSec=), that it is alive: sd_notify(3). Nil where there
// is none to tell.
func (a *app) supervise(log *slog.Logger) func(context.Context, func(context.Context) error) error {
	if to, _ := a.getenv("NOTIFY_SOCKET"); to == "" {
		return nil
	}
	tell := func(word string) {
		if _, err := daemon.SdNotify(false, word); err != nil {
			log.Warn("tell service manager", "word", word, "error", err)
		}
	}
	return func(ctx context.Context, alive func(context.Context) error) error {
		within, err := daemon.SdWatchdogEnabled(false)
		if err != nil {
			log.Warn("read watchdog time", "error", err)
		}
		tell(daemon.SdNotifyReady)
		if within == 0 {
			<-ctx.Done()
			return ctx.Err()
		}
		next := time.NewTicker(within / 3)
		defer next.Stop()
		for {
			if err := alive(ctx); err != nil {
				return err
			}
			tell(daemon.SdNotifyWatchdog)
			select {
			case <-next.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}
