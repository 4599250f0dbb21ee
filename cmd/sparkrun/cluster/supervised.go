package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
)

// turnEvery is the pause between two checks of an agent whose service manager asks for no
// other interval (WatchdogSec=).
const turnEvery = 30 * time.Second

// supervise reports the agent's state to the service manager: sd_notify(3). Nil where
// there is none.
func supervise(a *app.App, log *slog.Logger) func(context.Context, node.Supervised) error {
	if to, _ := a.Getenv("NOTIFY_SOCKET"); to == "" {
		return nil
	}
	w := &watched{log: log, every: turnEvery}
	within, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("read watchdog time", "error", err)
	}
	if within > 0 {
		w.every = within / 3
	}
	return w.run
}

// watched is the state told to the service manager. It is kept when the node is opened
// again.
type watched struct {
	log   *slog.Logger
	every time.Duration
	said  string // the last state told
}

func (w *watched) tell(word string) {
	if _, err := daemon.SdNotify(false, word); err != nil {
		w.log.Warn("tell service manager", "word", word, "error", err)
	}
}

// run tells the service manager that the node is alive as long as it is. Until the node
// is ready, which may take as long as nobody plugs in a cable, this also extends its
// start time-out.
func (w *watched) run(ctx context.Context, n node.Supervised) error {
	next := time.NewTicker(w.every)
	defer next.Stop()
	for look := true; ; {
		if look {
			if err := n.Alive(ctx); err != nil {
				return err
			}
			w.tell(daemon.SdNotifyWatchdog)
			if n.Ready != nil {
				w.tell(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", (3 * w.every).Microseconds()))
			}
		}
		line, changed := n.State()
		if line != w.said {
			w.said = line
			w.tell("STATUS=" + line)
		}
		look = false
		select {
		case <-n.Stopping:
			w.tell(daemon.SdNotifyStopping)
			n.Stopping, n.Ready = nil, nil // a node that is stopping no longer becomes ready
		case <-n.Ready:
			w.tell(daemon.SdNotifyReady)
			n.Ready = nil
		case <-next.C:
			look = true
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
