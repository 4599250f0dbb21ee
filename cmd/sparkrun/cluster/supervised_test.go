package cluster

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
)

// notifySocket stands for the service manager: it gives what it hears, a datagram each.
func notifySocket(t *testing.T) (a *app.App, hear func() string) {
	at := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: at, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	for name, value := range map[string]string{"NOTIFY_SOCKET": at, "WATCHDOG_USEC": "300000", "WATCHDOG_PID": ""} {
		t.Setenv(name, value)
	}
	return &app.App{Environ: []string{"NOTIFY_SOCKET=" + at}}, func() string {
		b := make([]byte, 200)
		_ = socket.SetReadDeadline(time.Now().Add(30 * time.Second))
		n, err := socket.Read(b)
		if err != nil {
			return err.Error()
		}
		return string(b[:n])
	}
}

// The service manager hears why the agent is not ready, and is asked for time, for
// as long as that takes; then READY, WATCHDOG for as long as it is alive, STOPPING.
func TestSupervise(t *testing.T) {
	a, hear := notifySocket(t)
	// until gives what is said before a word, each thing once.
	until := func(last string) map[string]bool {
		t.Helper()
		before := map[string]bool{}
		for range 1000 {
			word := hear()
			if word == last {
				return before
			}
			before[word] = true
		}
		t.Fatalf("never said %q; said %v", last, before)
		return nil
	}
	type state struct {
		line    string
		changed chan struct{}
	}
	var now atomic.Pointer[state]
	waits := &state{"waits for a management address", make(chan struct{})}
	now.Store(waits)
	ready, stopping := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- supervise(a, slog.New(slog.DiscardHandler))(ctx, node.Supervised{
			Ready: ready, Stopping: stopping,
			Alive: func(ctx context.Context) error { return ctx.Err() },
			State: func() (string, <-chan struct{}) { s := now.Load(); return s.line, s.changed },
		})
	}()
	const more = "EXTEND_TIMEOUT_USEC=300000"
	for range 3 { // as often as it takes
		if before := until(more); before["READY=1"] || !before["WATCHDOG=1"] {
			t.Errorf("before an address: %v", before)
		}
	}
	now.Store(&state{"leads the cluster", make(chan struct{})})
	close(waits.changed)
	if before := until("STATUS=leads the cluster"); before["READY=1"] {
		t.Errorf("before it is ready: %v", before)
	}
	close(ready)
	until("READY=1")
	until("WATCHDOG=1")
	until("WATCHDOG=1")
	if before := until("WATCHDOG=1"); before[more] {
		t.Errorf("one that is ready asks for time: %v", before)
	}
	close(stopping)
	if before := until("STOPPING=1"); before["READY=1"] {
		t.Errorf("twice ready: %v", before)
	}
	until("WATCHDOG=1") // it hands over, which may hang as well
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}

// Nothing more is heard from an agent that hangs.
func TestSuperviseOneThatHangs(t *testing.T) {
	a, hear := notifySocket(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hung, ended := make(chan struct{}), make(chan error, 1)
	turns := 0
	go func() {
		ended <- supervise(a, slog.New(slog.DiscardHandler))(ctx, node.Supervised{
			Alive: func(ctx context.Context) error {
				if turns++; turns <= 3 {
					return nil
				}
				close(hung)
				<-ctx.Done()
				return ctx.Err()
			},
			State: func() (string, <-chan struct{}) { return "leads the cluster", nil },
		})
	}()
	<-hung
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	for i, want := range []string{"WATCHDOG=1", "STATUS=leads the cluster", "WATCHDOG=1", "WATCHDOG=1"} {
		if got := hear(); got != want {
			t.Errorf("word %d is %q, want %q", i, got, want)
		}
	}
	if _, err := daemon.SdNotify(false, "the end"); err != nil {
		t.Fatal(err)
	}
	if got := hear(); got != "the end" {
		t.Errorf("said as it hung: %q", got)
	}
}

func TestNobodySupervises(t *testing.T) {
	if supervise(&app.App{}, slog.New(slog.DiscardHandler)) != nil {
		t.Error("without NOTIFY_SOCKET there is nobody to tell")
	}
}
