package e2e

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience is how long a cable may take to be known: a probe speaks every 2 s
// on a port, every 4 s on each twin, and the machine may be busy.
const patience = 60 * time.Second

// fabric is what `sparkrun fabric --json` tells.
type fabric struct {
	Topology struct {
		Shape string
		Why   string
		Nodes []struct {
			ID, Host string
			Ports    []struct {
				Slot, Role string
				Devices    []struct{ HCA string }
			}
		}
		Links []struct {
			Seen, Up, Switched bool
			Role               string
			Ends               []struct{ Node, Slot string }
		}
		Findings []struct{ Code, Severity, Host, Port, Device, Text string }
	}
}

func (l *lab) fabric(host string) fabric {
	l.t.Helper()
	out := l.on(host, "sparkrun", "fabric", "--json").must(l.t).out
	var f fabric
	if err := json.Unmarshal([]byte(out), &f); err != nil {
		l.t.Fatalf("fabric --json: %v\n%s", err, out)
	}
	return f
}

// cables are the links of the fabric, as "spark1/0-spark2/1", sorted.
func (f fabric) cables() string {
	hosts := map[string]string{}
	for _, n := range f.Topology.Nodes {
		hosts[n.ID] = n.Host
	}
	var cables []string
	for _, link := range f.Topology.Links {
		if !link.Seen || !link.Up || link.Role != "fabric" {
			continue
		}
		var ends []string
		for _, e := range link.Ends {
			ends = append(ends, hosts[e.Node]+"/"+e.Slot[len(e.Slot)-1:])
		}
		cables = append(cables, strings.Join(ends, "-"))
	}
	slices.Sort(cables)
	return strings.Join(cables, " ")
}

// finds reports whether there is a finding of that code at a host's port ("0" or
// "1").
func (f fabric) finds(code, host, port string) bool {
	for _, x := range f.Topology.Findings {
		if x.Code == code && x.Host == host && strings.HasSuffix(x.Port, "."+port) {
			return true
		}
	}
	return false
}

// sees waits until the cluster's view is such, and logs how long it took.
func (l *lab) sees(host, what string, ok func(fabric) bool) {
	l.t.Helper()
	var last fabric
	defer func() {
		if l.t.Failed() {
			l.t.Logf("last seen: %s (%s), cables %s, findings %+v", last.Topology.Shape, last.Topology.Why, last.cables(), last.Topology.Findings)
		}
	}()
	took := eventually(l.t, patience, what, func() bool {
		last = l.fabric(host)
		return ok(last)
	})
	l.t.Logf("%s after %s", what, took.Round(time.Millisecond))
}

func shaped(shape, cables string) func(fabric) bool {
	return func(f fabric) bool { return f.Topology.Shape == shape && f.cables() == cables }
}

// lines starts a command on a host and gives its output line by line, until the
// test ends.
func (l *lab) lines(host string, args ...string) <-chan string {
	l.t.Helper()
	cmd := l.command(append([]string{"exec", host, "--"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		l.t.Fatal(err)
	}
	lines := make(chan string, 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	l.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		<-done
		_ = cmd.Wait() // by our signal
	})
	return lines
}

// until waits for a line that ends so.
func until(t testing.TB, lines <-chan string, end string) string {
	t.Helper()
	deadline := time.After(patience)
	var seen []string
	for {
		select {
		case line := <-lines:
			if seen = append(seen, line); strings.HasSuffix(line, end) {
				return line
			}
		case <-deadline:
			t.Fatalf("no line ends with %q in\n%s", end, strings.Join(seen, "\n"))
			return ""
		}
	}
}

// Three Sparks without any address on the fabric: what is cabled to what is
// known from the probes alone, a crossed ring is named, a pulled cable shows on
// another host at once, and so do a switch and a twin that is not there.
func TestFabricOfThree(t *testing.T) {
	l := up(t, 3, "--topology", "ring", "--no-addresses")
	const ring = "spark1/0-spark2/1 spark1/1-spark3/0 spark2/0-spark3/1"
	l.sees("spark1", "the ring", shaped("ring", ring))

	// A cable is pulled between two hosts, and a third one watches.
	watch := l.lines("spark3", "sparkrun", "fabric", "--watch")
	until(t, watch, l.fabric("spark3").Topology.Why)
	began := time.Now()
	l.do("unplug", "spark1", "0")
	line := until(t, watch, "gone: cable: spark1 port 0 - spark2 port 1")
	shown, err := time.Parse(time.RFC3339, strings.Fields(line)[0])
	if err != nil {
		t.Fatal(err)
	}
	// The product's goal is 1 s; a test on a busy machine asks for less.
	took := shown.Sub(began)
	t.Logf("a pulled cable shows on another host %s after the command that pulls it", took.Round(time.Millisecond))
	if took > 10*time.Second {
		t.Errorf("a pulled cable shows on another host after %s", took)
	}

	// Ports 0 and 1 of spark2 crossed: 0-0 and 1-1, and the ring still closes.
	l.do("cable", "spark1", "0", "spark2", "0")
	l.do("cable", "spark2", "1", "spark3", "1")
	l.sees("spark2", "the crossed ring", func(f fabric) bool {
		return shaped("ring", "spark1/0-spark2/0 spark1/1-spark3/0 spark2/1-spark3/1")(f) && f.finds("ring-miswired", "spark2", "0")
	})

	l.do("unplug", "spark2", "1")
	for _, h := range other(3) {
		l.do("cable", h, "0", "switch") // takes its cable out
	}
	l.do("fault", "spark3", "missing-twin", "0")
	l.sees("spark1", "the switch, and the missing twin", func(f fabric) bool {
		return shaped("switch", "spark1/0-spark2/0-spark3/0")(f) && f.finds("twin-missing", "spark3", "0")
	})
	l.do("mend", "spark3")
	l.sees("spark1", "the twin again", func(f fabric) bool { return !f.finds("twin-missing", "spark3", "0") })
}

// Two Sparks and two cables: each in the other's place is named while there are
// addresses; without any the cables are known all the same.
func TestFabricOfTwo(t *testing.T) {
	l := up(t, 2, "--topology", "pair2")
	l.sees("spark1", "two cables", shaped("pair", "spark1/0-spark2/0 spark1/1-spark2/1"))
	l.do("cable", "spark1", "0", "spark2", "1")
	l.do("cable", "spark1", "1", "spark2", "0")
	l.sees("spark2", "the swapped cables", func(f fabric) bool {
		return f.cables() == "spark1/0-spark2/1 spark1/1-spark2/0" && (f.finds("cable-swapped", "spark1", "0") || f.finds("cable-swapped", "spark2", "0"))
	})
	for _, h := range other(2) {
		for _, nic := range []string{"enp1s0f0np0", "enP2p1s0f0np0", "enp1s0f1np1", "enP2p1s0f1np1"} {
			l.on(h, "ip", "-4", "addr", "flush", "dev", nic).must(t)
		}
		l.do("sync", h)
	}
	l.do("cable", "spark1", "0", "spark2", "0")
	l.do("cable", "spark1", "1", "spark2", "1")
	l.sees("spark2", "two cables without addresses", shaped("pair", "spark1/0-spark2/0 spark1/1-spark2/1"))
	l.do("unplug", "spark2", "1")
	l.sees("spark1", "one cable without addresses", shaped("pair", "spark1/0-spark2/0"))
}

// A pair whose other ports are on a LAN; and what a report of it shows on a
// machine that is no Spark.
func TestFabricMixedAndItsReport(t *testing.T) {
	l := up(t, 2, "--topology", "mixed", "--no-addresses")
	l.sees("spark2", "the pair beside the LAN", func(f fabric) bool {
		if !shaped("mixed", "spark1/0-spark2/0")(f) {
			return false
		}
		for _, n := range f.Topology.Nodes {
			for _, p := range n.Ports {
				if want := map[string]string{"0": "fabric", "1": "lan"}[p.Slot[len(p.Slot)-1:]]; p.Role != want {
					return false
				}
			}
		}
		return len(f.Topology.Nodes) == 2
	})
	l.on("spark2", "sparkrun", "report", "-o", "/tmp/report.tar.gz").must(t)
	report := filepath.Join("/var/tmp/sparkrun-lab", l.name, "hosts/spark2/tmp/report.tar.gz")
	for _, form := range [][]string{{"--ibdev2netdev"}, {"--gids"}, {"--gids", "--node", "spark1,spark2"}, {"--map"}} {
		live := l.on("spark2", append([]string{"sparkrun", "fabric"}, form...)...).must(t).out
		replayed, err := exec.Command(binary, append([]string{"fabric", "--from", report}, form...)...).Output()
		if err != nil {
			t.Fatalf("fabric --from %v: %v", form, err)
		}
		if live != string(replayed) {
			t.Errorf("%v on spark2:\n%s\nfrom its report:\n%s", form, live, replayed)
		}
	}
}
