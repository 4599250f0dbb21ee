package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

const leaseLength = 8 * time.Second

// withLease makes an assignment of a job that has one.
func withLease(a *launcher.Assignment) {
	a.Spec.OnPartition, a.Spec.NodeTimeout, a.Spec.MaxRestarts, a.Spec.Spare = launcher.EndOnPartition, leaseLength, 1, 1
}

func (n *node) startWith(lease launcher.Uptime) {
	n.t.Helper()
	n.order(launcher.Order{Start: &launcher.Start{Key: key, Lease: lease}})
}

// The first lease comes with the start, the leader's answers renew it, also where the
// agent was started anew meanwhile; then there are no more, and the shim ends the rank.
func TestLeaseRunsOut(t *testing.T) {
	n := newNode(t)
	n.prepare(n.as("exec sleep 1000", withLease))
	n.hear(launcher.Prepared)
	n.startWith(Uptime())
	n.hear(launcher.Started)
	n.drop()
	n.open()
	time.Sleep(leaseLength / 4)
	n.a.Renew(Uptime() - 1) // of two, the later counts
	last := Uptime()
	n.a.Renew(last)
	n.a.Renew(last - launcher.Uptime(time.Second))
	ev := n.hear(launcher.Exited)
	if left := last + launcher.Uptime(leaseLength) - Uptime(); left > 0 {
		t.Errorf("it ended %s before its lease", time.Duration(left))
	}
	if e := ev.Exit; !strings.Contains(e.Cause, "no leader answered for 8s") || e.ByUs || !e.Failed() {
		t.Errorf("exit %+v", e)
	}
	n.hear(launcher.Ended)
}

// A start that brings no lease, or one that is over, starts nothing.
func TestNoStartWithoutLease(t *testing.T) {
	for name, tt := range map[string]struct {
		lease launcher.Uptime
		why   string
	}{
		"none":            {0, "has sent no lease"},
		"over":            {1, "had run out"}, // made a nanosecond after the boot
		"of another boot": {Uptime() + launcher.Uptime(time.Hour), "has sent no lease"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.prepare(n.as("witness", withLease))
			n.hear(launcher.Prepared)
			n.startWith(tt.lease)
			if ev := n.hear(launcher.Refused); !strings.Contains(ev.Text, tt.why) {
				t.Errorf("refused: %s", ev.Text)
			}
			n.end(key, 0)
			n.hear(launcher.Ended)
			if w := n.witness(); len(w) > 0 {
				t.Errorf("a rank ran: %v", w)
			}
		})
	}
}

// A shim of a version without leases, which says so: its ranks are not started.
func TestOldShimHasNoLease(t *testing.T) {
	dir := t.TempDir()
	ln, err := net.Listen("unix", filepath.Join(dir, "shim.sock"))
	must(t, err)
	defer ln.Close()
	go func() { // ends with the listener
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			line, _ := bufio.NewReader(c).ReadBytes('\n')
			var req struct {
				ID int
				Op string
			}
			_ = json.Unmarshal(line, &req)
			answer := `{"v":1,"id":%d,"ok":true,"hello":{"key":{"job":"abcd234567","generation":1},"pid":1,"phase":"waiting"}}`
			if req.Op != "hello" {
				answer = `{"v":1,"id":%d,"error":{"code":"unknown-op","text":"unknown"}}`
			}
			fmt.Fprintf(c, answer+"\n", req.ID)
			c.Close()
		}
	}()
	err = (&attempt{dir: dir}).giveLease(t.Context(), nil, Uptime(), time.Minute)
	if !errors.Is(err, shim.ErrUnknownOp) || !strings.Contains(err.Error(), "launch it again") {
		t.Errorf("got %v", err)
	}
}
