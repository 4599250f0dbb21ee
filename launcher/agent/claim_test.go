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
		if !strings.Contains(ev.Text, fmt.Sprintf("job %[2]s has port %[1]d here (`sparkrun ps %[2]s`)", port, job)) {
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

// A job whose server still loads its model, and holds nothing, has its port: what is found free for
// another one is not that, though it could be bound, and though this agent did not give it.
func TestPortsThatAreFoundAreNoOtherJobs(t *testing.T) {
	for name, first := range map[string]int{"named": 27123, "rendezvous": 29765} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			port := uint16(first)
			for taken(int(port)) { // somebody else may have it
				port++
			}
			look := func() { n.a.ports.Store(uint32(port) - firstNamed) } // holdSpan begins with it
			if port >= firstPort {
				look = func() { n.a.ports.Store(uint32(port) - firstPort - 1) }
			}
			found := func(when string, id launcher.JobID) {
				t.Helper()
				look()
				second := n.as("gate", func(a *launcher.Assignment) {
					a.Spec.Stages[0].UsesPort = port >= firstPort
					if port < firstPort {
						a.Spec.Stages[0].Ports = []launcher.NamedPort{{Name: "any"}}
					}
				}, named(id))
				n.prepare(second)
				ev := n.hear(launcher.Prepared)
				if got := max(ev.Port, int(ev.Ports["any"].First)); got == int(port) || got == 0 {
					t.Errorf("%s: the other job was given port %d", when, got)
				}
				n.end(second.Key, 0)
				n.hear(launcher.Ended)
			}
			n.prepare(n.as("witness; sleep 1000", wants(port)))
			n.hear(launcher.Prepared)
			n.begin(0)
			n.hear(launcher.Started)
			found("the same agent", "second")
			n.drop()
			n.open()
			found("another agent", "third")
			n.end(key, 0)
			n.hear(launcher.Ended)
		})
	}
}

// The port at which the ranks of a job meet is that job's before rank 0 listens, on rank 0's machine:
// on another one it is anybody's.
func TestRendezvousPortIsOneJobs(t *testing.T) {
	n := newNode(t)
	n.launch(n.as("sleep 1000", usesPort))
	port := uint16(n.entry(key).Port)
	second := n.as("witness", wants(port), named("second"))
	n.isTaken(second, port)
	n.drop()
	n.open()
	n.end(second.Key, 0)
	n.hear(launcher.Ended)
	second.Generation++
	n.isTaken(second, port)
	n.end(second.Key, 0)
	n.hear(launcher.Ended)
	n.end(key, 0)
	n.hear(launcher.Ended)

	away := n.as("sleep 1000", usesPort, named("third"), func(a *launcher.Assignment) {
		a.NodeRank, a.NodeCount, a.FirstRank, a.World, a.Spec.Nodes = 1, 2, 1, 2, 2
	})
	n.prepare(away)
	n.hear(launcher.Prepared)
	n.start(away.Key, int(port))
	n.hear(launcher.Started)
	second.Generation++
	n.prepare(second)
	if ev := n.hear(launcher.Prepared); ev.Ports["web"].First != port {
		t.Errorf("ports %v", ev.Ports)
	}
	for _, k := range []launcher.Key{away.Key, second.Key} {
		n.end(k, 0)
		n.hear(launcher.Ended)
	}
}
