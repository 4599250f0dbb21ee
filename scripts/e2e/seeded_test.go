package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/scripts/e2e/witness"
)

var seededAll = flag.Bool("seeded-all", false, "TestWitnessCatches: every seeded bug, not only those that take little time")

// edit replaces a text of the product that has to be there once.
type edit struct{ file, old, new string }

// seeded is sparkrun with a bug, and what brings it to light.
type seeded struct {
	name, property string
	always         bool // not only with -seeded-all
	edits          []edit
	acts           []act
}

// The bugs. Where two guards stand behind each other, both are taken away.
var bugs = []seeded{
	{
		name: "ps is answered without asking the others whether this node still leads", property: "P1",
		edits: []edit{{"cmd/node/jobs/leader.go", "\tif err := l.cfg.Failover.Raft().Verify(ctx); err != nil {\n\t\treturn wire.JobsResponse{}, err\n\t}\n", ""}},
		acts:  []act{{"launch", 1, false, launchesOften}, {"halt the leader's agent", 1, true, haltsLeader}},
	},
	{
		name: "what no majority has in time is recorded all the same", property: "P1",
		edits: []edit{{"rendezvous/consensus/raft.go", "\t\tif err := f.Error(); err != nil {\n\t\t\treturn err\n\t\t}\n\t\tres = f.Response()\n\t\treturn nil\n", `
		done := make(chan error, 1)
		go func() { done <- f.Error() }()
		select {
		case err := <-done:
			if err == nil {
				res = f.Response()
			}
			return err
		case <-time.After(200 * time.Millisecond):
			return nil
		}
`}},
		acts: []act{{"launch on a leader that is cut off", 1, true, launchesCutOff}},
	},
	{
		name: "a start whose answer is late starts again", property: "P2", always: true,
		edits: []edit{
			{"launcher/agent/start.go", "return client.Start(ctx, ranks)", "_ = client.Start(ctx, ranks)\n\treturn client.Start(ctx, ranks)"},
			{"launcher/shim/attempt.go", "case a.ranks != nil && a.pending == 0:\n\t\tanswer(nil)\n\t\treturn\n", ""},
			{"launcher/shim/attempt.go", "if a.ranks != nil {\n\t\ta.starters = append(a.starters, answer)\n\t\treturn\n\t}\n\ta.begin", "a.begin"},
		},
		acts: []act{{"launch", 1, false, launchesOften}},
	},
	{
		name: "silence proves that a rank is gone", property: "P3",
		edits: []edit{{"rendezvous/lead/run.go", `p.lost != "" && !r.mustProve()`, `p.lost != ""`}},
		acts:  []act{{"launch, and cut a host of it", 1, true, cutsOff}},
	},
	{
		name: "a new leader takes every job for new", property: "P4",
		edits: []edit{{"rendezvous/lead/run.go", "state: rendezvous.StatePlanned", "state: rendezvous.StateStarts"}},
		acts:  []act{{"launch", 1, false, launchesForLong}, {"kill the leader's agent", 1, true, killsLeader}},
	},
	{
		name: "an attempt has ended when its ranks have", property: "P6",
		edits: []edit{
			{"launcher/shim/attempt.go", "gone := allTold && childless && !a.cg.populated() && a.emptied()", "gone := allTold"},
		},
		acts: []act{{"launch", 1, false, launchesForks}},
	},
	{
		name: "what does not fit into a part is dropped", property: "P7",
		edits: []edit{{"launcher/shim/logfile.go", "n, b = n+w, b[w:]", "_ = w\n\t\tn, b = n+len(b), nil"}},
		acts:  []act{{"launch", 1, false, launchesTalkers}},
	},
	{
		name: "who is prepared starts", property: "P9", always: true,
		edits: []edit{{"rendezvous/lead/run.go", "if prepared < len(r.placements) && !r.ordered {\n\t\treturn\n\t}\n", "_ = prepared\n"}},
		acts:  []act{{"launch what a host refuses", 1, false, refused}},
	},
	{
		name: "there is no start time-out, and a node loses its orders to start", property: "P9",
		edits: []edit{
			{"launcher/shim/attempt.go", "if a.due(a.startBy) {", "if false {"},
			{"rendezvous/lead/evaluate.go", `case now.After(r.deadline) && !r.awaits && r.notStarted() != "":`, "case false:"},
			{"launcher/agent/start.go", "if t.entry.Phase != launcher.PhasePrepared && !more {", `if t.entry.Phase != launcher.PhasePrepared && !more || t.assignment.Host == "spark3" {`},
		},
		acts: []act{{"launch", 1, false, launchesForLong}},
	},
	{
		name: "a stop does not wait for who is away", property: "P6",
		edits: []edit{{"rendezvous/lead/run.go", `p.lost != "" && !r.mustProve()`, `(p.lost != "" || r.noMore) && !r.mustProve()`}},
		acts:  []act{{"launch, and stop it while an agent is away", 1, true, stopsWithoutOne}},
	},
	{
		name: "an exit is told when no other rank is left", property: "P10",
		edits: []edit{{"launcher/shim/attempt.go", "case r.open == 0 && r.mpi.heard():", "case r.open == 0 && childless && r.mpi.heard():"}},
		acts:  []act{{"launch what fails", 1, false, launchesFailing}},
	},
	{
		name: "who was prepared when its agent died is not listened to", property: "P10",
		edits: []edit{{"launcher/agent/attempt.go", "if t.kept && t.entry.Phase != launcher.PhaseEnded {", "if t.kept && t.entry.Phase == launcher.PhaseStarted {"}},
		acts:  []act{{"kill an agent that has prepared", 1, true, func(p *player) { killsPrepared(p); p.about(30 * time.Second) }}},
	},
	{
		name: "a job that a rank failed is told to have completed", property: "P11",
		edits: []edit{{"rendezvous/lead/evaluate.go", "\t\tr.losses(&out)\n\t\tout.ExitCode = cmp.Or(out.ExitCode, launcher.ExitOwnFailure)\n", `
		r.losses(&out)
		out.ExitCode = cmp.Or(out.ExitCode, launcher.ExitOwnFailure)
		if r.culprit() != nil {
			out.End, out.ExitCode = rendezvous.Completed, 0
		}
`}},
		acts: []act{{"launch", 1, false, launches}},
	},
}

func launchesOften(p *player) {
	p.launch(p.host(), []string{"--nodes", "2"}, []string{"--life", "1s"})
	p.about(time.Second)
}

// launchesCutOff launches on a leader that has not noticed yet that it is alone.
func launchesCutOff(p *player) {
	l := p.leader("spark1")
	if l == "" {
		return
	}
	p.broken(witness.Network, []string{l}, "cables are pulled", func() {
		p.do("cut", l, "all")
		p.launch(l, []string{"--on", l}, []string{"--life", "1s"})
		p.about(6 * time.Second)
		p.do("heal", l)
	})
	p.about(2 * time.Second)
}

// haltsLeader has the leader's agent stand still until the others have long elected another: it wakes up with what it
// knew.
func haltsLeader(p *player) {
	l := p.leader(p.host())
	if l == "" {
		return
	}
	p.broken(witness.Agent, []string{l}, "its agent is stopped", func() {
		p.signal(l, syscall.SIGSTOP)
		p.about(8 * time.Second)
		p.signal(l, syscall.SIGCONT)
	})
	p.about(time.Second)
}

func launchesForLong(p *player) {
	p.launch(p.host(), []string{"--on", "spark1,spark2,spark3"}, nil)
	p.about(10 * time.Second)
}

func launchesFailing(p *player) {
	p.launch(p.host(), []string{"--nodes", "1", "--nproc-per-node", "2"}, []string{"--life", "1s", "--code", "3", "--only", "0"})
	p.about(5 * time.Second)
}

// stopsWithoutOne stops a job whose ranks take their time while one of their agents is down.
func stopsWithoutOne(p *player) {
	p.launch("spark1", []string{"--on", "spark1,spark2,spark3"}, []string{"--deaf"})
	p.about(3 * time.Second)
	host := p.pick(other(p.nodes, p.leader("spark1"))...)
	p.broken(witness.Agent, []string{host}, "its agent is killed", func() {
		p.killAgent(host)
		p.stop(p.pick(other(p.nodes, host)...), p.names[len(p.names)-1])
		p.about(3 * time.Second)
		p.do("start", host, "--agent")
	})
	p.about(2 * time.Second)
}

func launchesForks(p *player) {
	p.launch(p.host(), []string{"--nodes", "2"}, []string{"--forks", "--life", "1s"})
	p.about(5 * time.Second)
}

func launchesTalkers(p *player) {
	p.launch(p.host(), []string{"--nodes", "2", "--max-output", "512KiB"}, []string{"--pace", "1ms", "--life", "2s"})
	p.about(4 * time.Second)
}

// lay gives the sources that the edits change, as they are with the bug.
func (b seeded) lay(t testing.TB) map[string]string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]string{}
	for _, e := range b.edits {
		path := filepath.Join(root, e.file)
		if sources[path] == "" {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			sources[path] = string(text)
		}
		if n := strings.Count(sources[path], e.old); n != 1 {
			t.Fatalf("%s: the text to change is there %d times, want once:\n%s", e.file, n, e.old)
		}
		sources[path] = strings.Replace(sources[path], e.old, e.new, 1)
	}
	return sources
}

// build gives sparkrun with such sources laid over its own.
func build(t testing.TB, sources map[string]string) string {
	t.Helper()
	dir, replace := t.TempDir(), map[string]string{}
	for path, text := range sources {
		to := filepath.Join(dir, fmt.Sprintf("%d.go", len(replace)))
		if err := os.WriteFile(to, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		replace[path] = to
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "sparkrun")
	cmd := exec.Command("go", "build", "-trimpath", "-overlay", filepath.Join(dir, "overlay.json"), "-o", path, "../../cmd/sparkrun")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build with other sources: %v\n%s", err, out)
	}
	return path
}

// Each property, broken by a bug that is seeded for it, is seen to be broken.
func TestWitnessCatches(t *testing.T) {
	buildWitness(t)
	for _, b := range bugs {
		t.Run(b.property+" "+b.name, func(t *testing.T) {
			sources := b.lay(t) // also where it is not run: the edits have to fit
			if !b.always && !*seededAll {
				t.Log("the edits fit; it runs with -seeded-all")
				return
			}
			s := newStorm(t, build(t, sources), 3, witness.Bounds{Kill: 3 * time.Second, Tell: 10 * time.Second, StartTimeout: 3 * time.Second, Settle: time.Second})
			began := time.Now()
			var caught *witness.Violation
			s.rage(1, 90*time.Second, func() bool {
				found := witness.Check(s.history(b.property == "P7"))
				if i := slices.IndexFunc(found, func(v witness.Violation) bool { return v.Property == b.property }); i >= 0 {
					caught = &found[i]
				}
				return caught != nil
			}, b.acts...)
			if took := time.Since(began).Round(100 * time.Millisecond); caught != nil {
				t.Logf("caught after %s: %s", took, caught)
			} else {
				t.Errorf("not caught in %s", took)
			}
		})
	}
}
