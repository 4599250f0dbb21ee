package e2e

import (
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var failoverRounds = flag.Int("failover-rounds", 0, "how often each loss of TestFailOver happens")

// failover is a lab in which one thing after another goes and comes back, and
// what was measured of it.
type failover struct {
	*lab
	carrier *carrier
	took    map[string]times
}

type loss struct {
	name    string
	figures []string
	round   func(*failover, string) // brings back what it took
}

// losses are what TestFailOver measures.
var losses = []loss{
	{"node", []string{"node down", "launch ended"}, func(f *failover, leader string) {
		victim := f.pick(leader)
		off := f.powerOff(victim)
		// It is refused while the lost one is still among those that may be chosen.
		f.launched(leader, off, map[string]string{"launch ended": "until sparkrun launch exec --nodes 2 -- true; do :; done"})
		f.figure("node down", off, f.told("node down", leader, victim, off))
		f.do("start", victim)
	}},
	{"agent", []string{"node down", "node back"}, func(f *failover, leader string) {
		victim := f.pick(leader)
		killed := f.killAgent(victim)
		f.figure("node down", killed, f.told("node down", leader, victim, killed))
		started := time.Now()
		f.do("start", victim, "--agent")
		f.on(leader, "sparkrun", "status", "--wait-nodes", "3", "--timeout", "90s").must(f.t)
		f.figure("node back", started, time.Now())
	}},
	{"cable", []string{"cable out", "cable in"}, func(f *failover, leader string) {
		victim := f.pick(leader)
		watch := f.lines(leader, "sparkrun", "fabric", "--watch")
		until(f.t, watch, "") // the state of now comes first
		for _, change := range []struct{ do, figure, tells string }{
			{"cut " + victim + " port0", "cable out", "lost its (link|carrier)"},
			{"heal " + victim, "cable in", "has a (link|carrier)"},
		} {
			since := time.Now()
			f.do(strings.Fields(change.do)...)
			shown := f.watched(watch, victim+".*"+change.tells, since)
			f.figure(change.figure, f.carrier.changed(f.t, victim+".p0", since), shown)
		}
	}},
	{"leader", []string{"leader's node", "launch taken", "launch ended"}, func(f *failover, leader string) {
		f.succession(leader, func() time.Time { return f.powerOff(leader) }, "leader's node")
		f.do("start", leader)
	}},
	{"leaders-agent", []string{"leader's agent", "launch taken", "launch ended"}, func(f *failover, leader string) {
		f.succession(leader, func() time.Time { return f.killAgent(leader) }, "leader's agent")
		f.do("start", leader, "--agent")
	}},
}

// How long it takes until a loss is known and made good: a node loses its power,
// an agent is killed, a cable is pulled, the leader loses its power, the leader's
// agent is killed.
func TestFailOver(t *testing.T) {
	if *failoverRounds == 0 {
		t.Skip("takes an hour: ./scripts/soak_failover")
	}
	for _, loss := range losses {
		t.Run(loss.name, func(t *testing.T) {
			before := machineLoad()
			took := loss.measured(t, *failoverRounds)
			fmt.Printf("%-32s%s  load %s to %s\n", loss.name, timesHead, before, machineLoad())
			for _, name := range loss.figures {
				fmt.Printf("  %-30s%s\n", name, took[name])
			}
		})
	}
}

// measured is how long it took, in a lab of its own.
func (l loss) measured(t *testing.T, rounds int) map[string]times {
	f := &failover{lab: up(t, 3), took: map[string]times{}}
	f.carrier = f.watchCarrier()
	for round := range rounds {
		ok := t.Run(fmt.Sprint(round), func(t *testing.T) {
			was := f.t
			f.t = t
			defer func() { f.t = was }()
			f.on("spark1", "sparkrun", "status", "--wait-nodes", "3", "--timeout", "90s").must(t)
			l.round(f, f.leader("spark1"))
		})
		if !ok {
			break
		}
	}
	return f.took
}

// pick is a host that does not lead; both take turns.
func (f *failover) pick(leader string) string {
	rest := other(3, leader)
	return rest[len(f.took["node down"])%2]
}

func (f *failover) figure(name string, from, to time.Time) {
	f.t.Helper()
	d := to.Sub(from)
	if d < 0 {
		f.t.Errorf("%s: %s before it happened", name, -d)
	}
	f.took[name] = append(f.took[name], d)
}

// powerOff gives the moment at which the host's last word can have left it.
func (f *failover) powerOff(host string) time.Time {
	f.t.Helper()
	since := time.Now()
	f.do("kill", host)
	return f.carrier.changed(f.t, host+".mgmt", since)
}

func (f *failover) killAgent(host string) time.Time {
	f.t.Helper()
	pids := f.find(host, "sparkrun agent", "")
	if len(pids) == 0 {
		f.t.Fatalf("%s has no agent", host)
	}
	now := time.Now()
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may be a child that goes with its parent
	}
	return now
}

// told is when an agent logged something of a host.
func (f *failover) told(msg, agent, of string, since time.Time) (at time.Time) {
	f.t.Helper()
	about := regexp.MustCompile(`node=` + of + `\b`)
	eventually(f.t, patience, fmt.Sprintf("%s logs %q of %s", agent, msg, of), func() bool {
		words := f.words(msg, since)
		i := slices.IndexFunc(words, func(w word) bool { return w.host == agent && about.MatchString(w.line) })
		if i >= 0 {
			at = words[i].at
		}
		return i >= 0
	})
	return at
}

// watched is the time at the head of the first line after that which says so.
func (f *failover) watched(lines <-chan string, says string, since time.Time) time.Time {
	f.t.Helper()
	is := regexp.MustCompile(says)
	deadline := time.After(patience)
	for {
		select {
		case line := <-lines:
			if !is.MatchString(line) {
				continue
			}
			shown, err := time.Parse(time.RFC3339, strings.Fields(line)[0])
			if err != nil {
				f.t.Fatal(err)
			}
			if shown.After(since) {
				return shown
			}
		case <-deadline:
			f.t.Fatalf("no line says %q", says)
		}
	}
}

// launched has a host's shell do things at once, and notes when each is done after what has gone.
func (f *failover) launched(host string, gone time.Time, commands map[string]string) {
	f.t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	for name, command := range commands {
		run := f.start(host, "sh", "-c", command)
		all.Go(func() {
			r := run.wait()
			if r.code != 0 {
				f.t.Errorf("%s: %s", name, r)
			}
			mu.Lock()
			defer mu.Unlock()
			f.took[name] = append(f.took[name], run.began.Add(r.took).Sub(gone))
		})
	}
	all.Wait()
}

// succession has the leader go while two others are asked to launch: one comes
// back when its job is recorded, one when it has ended.
func (f *failover) succession(leader string, goes func() time.Time, figure string) {
	f.t.Helper()
	rest := other(3, leader)
	gone := goes()
	on := "sparkrun launch exec --nodes 2 --on " + strings.Join(rest, ",")
	f.launched(rest[0], gone, map[string]string{"launch taken": on + " -d -- true", "launch ended": on + " -- true"})
	leads := slices.DeleteFunc(f.words("lead", gone), func(w word) bool { return w.host == leader })
	if len(leads) == 0 {
		f.t.Fatal("a launch was taken and nobody leads")
	}
	f.figure(figure, gone, leads[0].at)
}

// carrier hears from the switch's kernel when links go and come.
type carrier struct {
	mu     sync.Mutex
	events []struct {
		link string
		at   time.Time
	}
}

var linkLine = regexp.MustCompile(`^\[(\S+)\] (?:Deleted )?\d+: ([^@: ]+)`)

func (f *failover) watchCarrier() *carrier {
	f.t.Helper()
	c := &carrier{}
	lines := f.lines("switch", "ip", "-ts", "-o", "monitor", "link")
	go func() { // ends with the test: the lines then do
		for line := range lines {
			m := linkLine.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			at, err := time.ParseInLocation("2006-01-02T15:04:05.999999", m[1], time.Local)
			if err != nil {
				continue
			}
			c.mu.Lock()
			c.events = append(c.events, struct {
				link string
				at   time.Time
			}{m[2], at})
			c.mu.Unlock()
		}
	}()
	return c
}

// changed is when a link first changed after that.
func (c *carrier) changed(t testing.TB, link string, since time.Time) (at time.Time) {
	t.Helper()
	eventually(t, patience, link+" changes", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, e := range c.events {
			if e.link == link && e.at.After(since) {
				at = e.at
				return true
			}
		}
		return false
	})
	return at
}
