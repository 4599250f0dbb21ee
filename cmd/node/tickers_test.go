package node

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// An idle agent costs what wakes it. So who lets something tick says here how often, and why nothing tells it instead.
var tickers = map[string]string{
	"cmd/node/checkup/load.go":             "1 s, while a machine is under doctor's load",
	"cmd/node/gateway/gatewaytest/main.go": "100 ms, in a program for tests",
	"cmd/node/survey/survey.go":            "10 s: the devices' counters, which tell nobody",
	"cmd/sparkrun/cluster/supervised.go":   "systemd's watchdog, of an agent that has one",
	"cmd/sparkrun/follow/follow.go":        "1 s, in a command",
	"cmd/sparkrun/follow/watch.go":         "1 s, in a command that draws what is used now",
	"cmd/sparkrun/overview/status.go":      "1 s, in a command that draws what is used now",
	"launcher/bootstrap/dial.go":           "in a command: is a machine there yet",
	"launcher/filesync/relay/take.go":      "while a file comes from a source: silence tells nobody",
	"launcher/logs/read.go":                "while output is followed: files tell nobody",
	"rendezvous/discover/browse.go":        "in a command, for 2.5 s",
	"rendezvous/failover/failover.go":      "5 ms, for the moment of an opening",
	"rendezvous/failover/incarnation.go":   "1 h, and 5 s where raft waits for an answer",
	"rendezvous/failover/leader.go":        "5 s, of a leader: silences tell nobody",
	"rendezvous/membership/membership.go":  "5 s: is this node alone",
	"workloads/nettest/ibtest/node.go":     "20 ms, in a test of the network",
}

func TestWhatTicksIsKnown(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, tree := range []string{"cmd", "envgen", "launcher", "rendezvous", "workloads"} {
		err := fs.WalkDir(os.DirFS(root), tree, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(filepath.Join(root, path))
			if s := string(text); strings.Contains(s, "time.NewTicker(") || strings.Contains(s, "time.Tick(") {
				found = append(found, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range found {
		if tickers[path] == "" {
			t.Errorf("%s has a ticker: can it wait for an event, or arm a timer only while something is under way? If not, say why here", path)
		}
	}
	for path := range tickers {
		if !slices.Contains(found, path) {
			t.Errorf("%s has no ticker any more", path)
		}
	}
}
