package agent

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
)

func TestRefusalsNameTheThingAndTheRemedy(t *testing.T) {
	stage := func(f func(*launcher.Stage)) func(*launcher.Assignment) {
		return func(a *launcher.Assignment) { f(&a.Spec.Stages[0]) }
	}
	tests := map[string]struct {
		change func(*launcher.Assignment)
		want   []string
	}{
		"no such program": {stage(func(s *launcher.Stage) { s.Argv = launcher.Lits("pyhton3") }),
			[]string{`program "pyhton3"`, "not found in PATH (/usr/local/sbin:", "install it"}},
		"no such path": {stage(func(s *launcher.Stage) { s.Argv = launcher.Lits("/opt/x/python") }),
			[]string{`program "/opt/x/python": not found`, "install it"}},
		"program is a folder": {stage(func(s *launcher.Stage) { s.Argv = launcher.Lits("./folder") }),
			[]string{`program "./folder": is a directory`, "name the file"}},
		"not executable": {stage(func(s *launcher.Stage) { s.Argv = launcher.Lits("./plain") }),
			[]string{`program "./plain": not executable`, "chmod +x"}},
		"not executable, PATH": {stage(func(s *launcher.Stage) { s.Argv = launcher.Lits("plain"); addPath(s) }),
			[]string{`program "plain": /`, "/plain: not executable", "chmod +x"}},
		"no such script": {stage(func(s *launcher.Stage) { s.Files = []string{"train.py"} }),
			[]string{"file /", "/train.py: not found", "have launch --stage bring it"}},
		"script is a folder": {stage(func(s *launcher.Stage) { s.Files = []string{"folder"} }),
			[]string{"/folder: is a directory", "name the file"}},
		"no such workdir": {stage(func(s *launcher.Stage) { s.Workdir = "/no/such/place" }),
			[]string{"working directory /no/such/place: not found", "--workdir"}},
		"workdir is a file": {stage(func(s *launcher.Stage) { s.Workdir = "/etc/passwd" }),
			[]string{"working directory /etc/passwd: not a directory", "--workdir"}},
		"workdir below a file": {stage(func(s *launcher.Stage) { s.Workdir = "/etc/passwd/x" }),
			[]string{"working directory /etc/passwd/x: not a directory"}},
		"no such user": {func(a *launcher.Assignment) { a.Spec.User = "nobodyatall" },
			[]string{`user "nobodyatall"`, "not known on this node", "create"}},
		"user by number": {func(a *launcher.Assignment) { a.Spec.User = "0" }, []string{`user "0"`, "not known"}},
		"user with a colon": {func(a *launcher.Assignment) { a.Spec.User = "root:x" },
			[]string{`user "root:x"`, "not known"}},
		"another boot":         {func(a *launcher.Assignment) { a.Boot = "yesterday" }, []string{"earlier boot"}},
		"id with a path":       {func(a *launcher.Assignment) { a.Job = "../../etc" }, []string{"job id", "invalid"}},
		"id with a slash":      {func(a *launcher.Assignment) { a.Job = "ab/cd" }, []string{"job id", "invalid"}},
		"no generation":        {func(a *launcher.Assignment) { a.Generation = 0 }, []string{"generation 0"}},
		"ranks below zero":     {func(a *launcher.Assignment) { a.Ranks = -1 }, []string{"-1 ranks"}},
		"ranks without number": {func(a *launcher.Assignment) { a.Ranks = 0 }, []string{"0 ranks"}},
		"ranks beyond reason": {func(a *launcher.Assignment) { a.World = 1 << 40; a.Ranks = 1 << 40 },
			[]string{"ranks from 0"}},
		"ranks out of world": {func(a *launcher.Assignment) { a.FirstRank = 1 }, []string{"world of 1"}},
		"no stage":           {func(a *launcher.Assignment) { a.Spec.Stages = nil }, []string{"0 main stages"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			must(t, os.Mkdir(filepath.Join(n.base, "folder"), 0o755))
			must(t, os.WriteFile(filepath.Join(n.base, "plain"), nil, 0o644))
			as := n.as("witness")
			tt.change(&as)
			as.Spec.ID = as.Job
			for range 2 { // asked again it says it again
				n.prepare(as)
				text := n.hear(launcher.Refused).Text
				for _, want := range tt.want {
					if !strings.Contains(text, want) {
						t.Errorf("%q lacks %q", text, want)
					}
				}
			}
			if _, _, err := n.a.Explain(n.ctx, as, ""); err == nil && !strings.Contains(name, "boot") {
				t.Error("a dry run lets it pass")
			}
			if len(n.shimPIDs()) > 0 {
				t.Error("a shim was left for it")
			}
			if logs, _ := os.ReadDir(n.cfg.LogDir); len(logs) > 0 {
				t.Error("a folder for output was left for it")
			}
			n.start(as.Key, 0)
			n.end(as.Key, 0)
			n.hear(launcher.Ended)
			if n.heard(launcher.Prepared)+n.heard(launcher.Started) > 0 || n.witness() != nil {
				t.Error("it was started all the same")
			}
		})
	}
}

func addPath(s *launcher.Stage) {
	s.Env = append(s.Env, launcher.Var{Name: "PATH", Value: launcher.Lit(s.Workdir + ":/usr/bin:/bin")})
}

func TestAFabricThatCannotBeReadIsARefusal(t *testing.T) {
	n := newNode(t, func(c *Config) {
		c.Fabric = func(launcher.Assignment) ([]launcher.Setting, error) { return nil, errors.New("rocep1s0f0: no GID") }
	})
	n.prepare(n.as("true"))
	if text := n.hear(launcher.Refused).Text; !strings.Contains(text, "fabric environment: rocep1s0f0: no GID") {
		t.Error(text)
	}
}

func TestAFolderThatCannotBeMadeIsARefusal(t *testing.T) {
	n := newNode(t)
	must(t, os.WriteFile(n.a.attemptDir(key), nil, 0o600))
	n.prepare(n.as("true", usesPort))
	if text := n.hear(launcher.Refused).Text; !strings.Contains(text, "prepare: ") ||
		!strings.Contains(text, "not a directory") {
		t.Error(text)
	}
	if p := firstPort + int(n.a.ports.Load()%(lastPort-firstPort+1)); taken(p) {
		t.Errorf("port %d is still held", p)
	}
}

func TestBarriers(t *testing.T) {
	n := newNode(t)
	order := func(f launcher.Fence) error {
		as := n.as("true")
		return n.a.Order(launcher.Order{Fence: f, Prepare: &as})
	}
	for _, f := range []launcher.Fence{{}, {Epoch: launcher.Epoch{N: 1}, Term: 2},
		{Epoch: launcher.Epoch{N: 0}, Term: 99}} {
		if err := n.a.Raise(f); !errors.Is(err, launcher.ErrStaleFence) {
			t.Errorf("raise %s: %v", f, err)
		}
		if err := order(f); !errors.Is(err, launcher.ErrStaleFence) {
			t.Errorf("order under %s: %v", f, err)
		}
	}
	must(t, n.a.Raise(fence)) // the same leader comes back
	higher := launcher.Fence{Epoch: launcher.Epoch{N: 1}, Term: 4}
	if err := order(higher); !errors.Is(err, launcher.ErrStaleFence) {
		t.Errorf("obeyed a leader that was never let in: %v", err)
	}
	must(t, n.a.Raise(higher))
	if err := order(fence); !errors.Is(err, launcher.ErrStaleFence) {
		t.Errorf("obeyed the leader of before: %v", err)
	}
	n.rec.stop()
	n.a.Close()
	a, err := Open(n.cfg)
	must(t, err)
	n.a, n.rec = a, record(a)
	if err := a.Raise(fence); !errors.Is(err, launcher.ErrStaleFence) {
		t.Errorf("a restart forgot the fence: %v", err)
	}
	must(t, order(higher))
	n.hear(launcher.Prepared)
}

func TestABrokenFenceKeepsTheAgentFromStarting(t *testing.T) {
	n := newNode(t)
	n.drop()
	path := filepath.Join(n.cfg.RunDir, "fence.json")
	must(t, os.WriteFile(path, []byte("{"), 0o600))
	if _, err := Open(n.cfg); err == nil || !strings.Contains(err.Error(), path) ||
		!strings.Contains(err.Error(), "remove the file") {
		t.Errorf("error %v", err)
	}
	must(t, os.Remove(path))
}

func TestOpenWantsAWholeConfig(t *testing.T) {
	n := newNode(t)
	for name, change := range map[string]func(*Config){
		"relative run folder": func(c *Config) { c.RunDir = "run" },
		"relative log folder": func(c *Config) { c.LogDir = "logs" },
		"no fabric":           func(c *Config) { c.Fabric = nil },
		"no logger":           func(c *Config) { c.Logger = nil },
	} {
		c := n.cfg
		change(&c)
		if _, err := Open(c); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
}

// A node without memory takes no job, and says so before anything runs.
func TestRefusedBelowTheMemoryFloor(t *testing.T) {
	n := newNode(t, func(c *Config) { c.MemoryFloor = math.MaxInt64 })
	n.prepare(n.as("witness"))
	if text := n.hear(launcher.Refused).Text; !strings.Contains(text, "less than its --memory-floor of") {
		t.Errorf("refused with %q", text)
	}
}
