package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// watchFabric shows the fabric after every change, until it is interrupted. The agent
// sends the changes; nothing is polled as long as that works.
func watchFabric(ctx context.Context, a *app.App, o fabricOptions) error {
	b := a.Dial()
	defer b.Close()
	w := &fabricWatch{app: a, opts: o, now: time.Now}
	interruption := app.Outage{Say: a.Say}
	var again app.Pause
	for first := true; ; {
		err := wire.Follow.Call(ctx, b, wire.Empty{}, func(st wire.Status) error {
			first = false
			again.Reset()
			interruption.Over()
			return w.take(st)
		})
		switch {
		case ctx.Err() != nil:
			return nil // Ctrl-C is the normal end of a watch
		case errors.Is(err, follow.ErrOutput), first && errors.Is(err, node.ErrNoAgent), err != nil && !app.Passing(err):
			return err
		case err != nil:
			interruption.Failed(fmt.Sprintf("the view is cut off (%v); waiting for it", err))
		}
		if again.Wait(ctx) != nil {
			return nil
		}
	}
}

// fabricWatch shows one view after the other.
type fabricWatch struct {
	app  *app.App
	opts fabricOptions
	now  func() time.Time
	last *fabricView
}

// take shows a view. The view of a node without a leader says less than the one before,
// which is kept.
func (w *fabricWatch) take(st wire.Status) error {
	if st.Leader == "" && w.last != nil && w.last.status.Leader != "" {
		w.last.status.Problem = st.Problem
		return w.show(w.last, []string{"no leader, the last view stands: " + st.Problem})
	}
	v, err := newFabricView(st, nil)
	if err == nil {
		err = v.only(w.opts.nodes)
	}
	if err != nil {
		return err
	}
	var lines []string
	if w.last == nil {
		lines = append([]string{fmt.Sprintf("%s: %s", v.scene.Topology.Shape, v.scene.Topology.Why)}, v.notes...)
	} else {
		lines = append(membersChanged(w.last.status, st), topology.Changes(w.last.scene, v.scene)...)
	}
	w.last = v
	return w.show(v, lines)
}

// show redraws on a terminal, and elsewhere prints what changed.
func (w *fabricWatch) show(v *fabricView, lines []string) error {
	stamp := w.now().Format("2006-01-02T15:04:05.000Z07:00")
	var b strings.Builder
	if w.app.OutTTY {
		b.WriteString("\x1b[H\x1b[2J") // home, clear
		b.WriteString(show(w.app, v, w.opts))
		b.WriteString("\n")
	}
	for _, line := range lines {
		fmt.Fprintf(&b, "%s %s\n", stamp, plain.Text(line))
	}
	if _, err := io.WriteString(w.app.Out, b.String()); err != nil {
		return fmt.Errorf("%w: %w", follow.ErrOutput, err)
	}
	return nil
}

// membersChanged reports changes of leader and of members.
func membersChanged(before, after wire.Status) []string {
	var lines []string
	if before.Leader != after.Leader || before.Problem != after.Problem && after.Leader != "" {
		lines = append(lines, "leader "+cmp.Or(after.Leader, "none"))
	}
	was := map[string]string{}
	for _, n := range before.Nodes {
		was[n.Host] = n.State
	}
	for _, n := range after.Nodes {
		if state, known := was[n.Host]; known && state != n.State {
			lines = append(lines, fmt.Sprintf("%s is %s", n.Host, n.State))
		}
	}
	return lines
}
