package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// The service manager hears READY, then WATCHDOG for as long as the agent is
// alive, and nothing more from one that hangs.
func TestSupervise(t *testing.T) {
	at := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: at, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	hear := func(within time.Duration) string {
		b := make([]byte, 100)
		_ = socket.SetReadDeadline(time.Now().Add(within))
		n, err := socket.Read(b)
		if err != nil {
			return err.Error()
		}
		return string(b[:n])
	}
	for name, value := range map[string]string{"NOTIFY_SOCKET": at, "WATCHDOG_USEC": "300000", "WATCHDOG_PID": ""} {
		t.Setenv(name, value)
	}
	a := &app{environ: []string{"NOTIFY_SOCKET=" + at}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	turns, hung, ended := 0, make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- a.supervise(slog.New(slog.DiscardHandler))(ctx, func(ctx context.Context) error {
			if turns++; turns <= 3 {
				return nil
			}
			close(hung)
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	for i, want := range []string{"READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"} {
		if got := hear(30 * time.Second); got != want {
			t.Errorf("word %d is %q, want %q", i, got, want)
		}
	}
	<-hung
	if got := hear(500 * time.Millisecond); got == "WATCHDOG=1" {
		t.Error("an agent that hangs is called alive")
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}

func TestNobodySupervises(t *testing.T) {
	if (&app{}).supervise(slog.New(slog.DiscardHandler)) != nil {
		t.Error("without NOTIFY_SOCKET there is nobody to tell")
	}
}
