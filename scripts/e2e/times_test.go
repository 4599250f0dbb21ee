package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// times is how long something took, time after time.
type times []time.Duration

const timesHead = "     N       MIN       P50       P99       MAX"

// String is a row under timesHead.
func (s times) String() string {
	if len(s) == 0 {
		return fmt.Sprintf("%6d", 0)
	}
	s = slices.Sorted(slices.Values(s))
	at := func(share float64) string {
		d := s[int(share*float64(len(s)-1)+0.5)]
		return d.Round(time.Millisecond).String()
	}
	return fmt.Sprintf("%6d%10s%10s%10s%10s", len(s), at(0), at(0.5), at(0.99), at(1))
}

// machineLoad is this machine's load average of the last minute.
func machineLoad() string {
	b, _ := os.ReadFile("/proc/loadavg")
	load, _, _ := strings.Cut(string(b), " ")
	return load
}

// word is a line of an agent's log.
type word struct {
	host string
	at   time.Time
	line string
}

var logged = regexp.MustCompile(`^time=(\S+) level=\S+ msg=("[^"]*"|\S+)`)

// words gives what the hosts' agents have logged since, by that message.
func (l *lab) words(msg string, since time.Time) (all []word) {
	l.t.Helper()
	logs, err := filepath.Glob("/var/tmp/sparkrun-lab/" + l.name + "/hosts/*/agent.log")
	if err != nil || len(logs) == 0 {
		l.t.Fatalf("no logs of agents: %v", err)
	}
	for _, path := range logs {
		b, err := os.ReadFile(path)
		if err != nil {
			l.t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			m := logged.FindStringSubmatch(line)
			if m == nil || strings.Trim(m[2], `"`) != msg {
				continue
			}
			// The log has milliseconds: what is of the same one counts.
			if at, err := time.Parse(time.RFC3339, m[1]); err == nil && !at.Before(since.Truncate(time.Millisecond)) {
				all = append(all, word{filepath.Base(filepath.Dir(path)), at, strings.TrimSpace(line)})
			}
		}
	}
	slices.SortFunc(all, func(a, b word) int { return a.at.Compare(b.at) })
	return all
}
