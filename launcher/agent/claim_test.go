package agent

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
)

// freePort is one that nothing here listens on.
func freePort(t *testing.T) uint16 {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, ln.Close())
	return uint16(ln.Addr().(*net.TCPAddr).Port)
}

// wants has a job's server listen where people know.
func wants(port uint16) func(*launcher.Assignment) {
	return func(a *launcher.Assignment) {
		inSteps(a)
		a.Spec.Stages[0].Ports[0].At = port
	}
}

// isTaken prepares a job that has to be refused as this test's first one has the port.
func (n *node) isTaken(a launcher.Assignment, port uint16) {
	n.t.Helper()
	n.prepare(a)
	for {
		ev := n.hear(launcher.Refused)
		if ev.Key != a.Key {
			continue
		}
		if !strings.Contains(ev.Text, fmt.Sprintf("port %d is job %s's here (`sparkrun ps %[2]s`)", port, job)) {
			n.t.Errorf("refused with %q", ev.Text)
		}
		return
	}
}

// Whose later step could not be started still has the ranks of the first one.
func TestAPortIsKeptByARefusedStep(t *testing.T) {
	n := newNode(t)
	port := freePort(t)
	n.prepare(n.as("witness; sleep 1000", wants(port)))
	n.hear(launcher.Prepared)
	n.begin(0)
	n.hear(launcher.Started)
	must(t, os.WriteFile(namedPath(filepath.Join(n.cfg.RunDir, "jobs", key.String())), []byte("no JSON"), 0o600))
	n.begin(1)
	if ev := n.hear(launcher.Refused); !strings.Contains(ev.Text, "start ranks") {
		t.Fatalf("refused with %q", ev.Text)
	}
	n.isTaken(n.as("witness", wants(port), named("second")), port)
	n.end(key, 0)
	n.hear(launcher.Ended)
}
