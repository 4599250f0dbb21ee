package checkup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/load"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == load.Command {
		os.Exit(load.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// machine is one whose GPU and jobs are the test's, in a cluster without a leader.
type machine struct {
	mu     sync.Mutex
	ledger []launcher.LedgerEntry
	now    usage.Machine
	reads  int // how often now was asked for
}

func (m *machine) runs(e ...launcher.LedgerEntry) { m.mu.Lock(); defer m.mu.Unlock(); m.ledger = e }

// shows sets what its GPU does, and gives how often it has been read.
func (m *machine) shows(g usage.GPU) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.GPUs = []usage.GPU{g}
	return m.reads
}

func (m *machine) checkup() *Checkup {
	return New(Config{
		Self: "a", Host: "spark1", Logger: slog.New(slog.DiscardHandler),
		Status: func(context.Context, wire.Caller, wire.StatusRequest) (wire.Status, error) {
			return wire.Status{Nodes: []wire.NodeStatus{{ID: "a", Host: "spark1", State: "unknown"},
				{ID: "b", Host: "spark2", State: "away"}, {ID: "c", Host: "pi", State: "ready", Witness: true}}}, nil
		},
		Usage: func(context.Context) (usage.Machine, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.reads++
			return m.now, nil
		},
		Ledger: func() []launcher.LedgerEntry {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.ledger
		},
		Allow: func(_ context.Context, user string) error {
			if user == "eve" {
				return errors.New("the policy lets eve run nothing here")
			}
			return nil
		},
	})
}

// me is the user of this test.
func me(t *testing.T) wire.Caller {
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	return wire.Caller{User: &wire.User{Name: u.Username, UID: uint32(os.Getuid())}}
}

// python is a PATH with a python3 that does this, then says what a GB10 reached.
func python(t *testing.T, first string) string {
	dir := t.TempDir()
	text := "#!/bin/sh\n" + first + `
echo '{"via":"torch 2.13.0","gpu":"NVIDIA GB10","kind":"bf16","flops":9.1e13,"read_bps":2.3e11,"trouble":""}'
`
	if err := os.WriteFile(filepath.Join(dir, "python3"), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func gb10(busy, mhz float64) usage.GPU {
	return usage.GPU{Name: "NVIDIA GB10", Busy: &busy, MHz: &mhz, MaxMHz: new(3003.0)}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	idle, away := usage.Machine{GPUs: []usage.GPU{gb10(0.02, 208)}}, "it is away"
	job := func(p launcher.Phase) []launcher.LedgerEntry {
		return []launcher.LedgerEntry{{Key: launcher.Key{Job: "k3x"}, Phase: p}}
	}
	eve := wire.Caller{User: &wire.User{Name: "eve", UID: 1000}}
	ask := wire.LoadRequest{For: load.Least, Path: python(t, "")}
	with := func(change func(*wire.LoadRequest)) wire.LoadRequest { r := ask; change(&r); return r }
	tests := map[string]struct {
		c     wire.Caller
		r     wire.LoadRequest
		m     *machine
		fails error             // of the call
		says  map[string]string // of a machine, by host
	}{
		"no time":       {me(t), with(func(r *wire.LoadRequest) { r.For = 0 }), &machine{}, launcher.ErrInvalid, nil},
		"an hour":       {me(t), with(func(r *wire.LoadRequest) { r.For = time.Hour }), &machine{}, launcher.ErrInvalid, nil},
		"unknown node":  {me(t), with(func(r *wire.LoadRequest) { r.Node = "spark9" }), &machine{}, rendezvous.ErrNoNode, nil},
		"a member asks": {wire.Caller{Node: "b"}, ask, &machine{}, wire.ErrDenied, nil},
		"a job runs": {me(t), ask, &machine{now: idle, ledger: job(launcher.PhaseStarted)}, nil,
			map[string]string{"spark1": "job k3x has ranks there", "spark2": away}},
		"a job comes": {me(t), ask, &machine{now: idle, ledger: job(launcher.PhasePrepared)}, nil,
			map[string]string{"spark1": "job k3x has ranks there", "spark2": away}},
		"its GPU works": {me(t), ask, &machine{now: usage.Machine{GPUs: []usage.GPU{gb10(0.97, 2400)}}}, nil,
			map[string]string{"spark1": "97 % busy", "spark2": away}},
		"little memory": {me(t), ask, &machine{now: usage.Machine{Memory: &usage.Memory{Available: 1 << 30}}}, nil,
			map[string]string{"spark1": "1024 MiB of memory left", "spark2": away}},
		"the policy": {eve, ask, &machine{now: idle}, nil, map[string]string{"spark1": "lets eve run nothing", "spark2": away}},
		"a job has ended": {me(t), with(func(r *wire.LoadRequest) { r.Node = "spark1" }),
			&machine{now: idle, ledger: job(launcher.PhaseEnded)}, nil, map[string]string{"spark1": ""}},
	}
	for name, tc := range tests {
		res, err := tc.m.checkup().Load(t.Context(), tc.c, tc.r)
		if !errors.Is(err, tc.fails) || err != nil && tc.fails == nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(res.Nodes) != len(tc.says) {
			t.Errorf("%s: %+v", name, res.Nodes)
		}
		for _, n := range res.Nodes {
			if want := tc.says[n.Host]; !strings.Contains(n.Error, want) || want == "" && n.Error != "" {
				t.Errorf("%s: %s says %q", name, n.Host, n.Error)
			}
		}
	}
}

// A load reads the GPU meanwhile, is alone on its machine, and gives way to a job with all its processes.
func TestLoadIsAGuest(t *testing.T) {
	t.Parallel()
	m := &machine{now: usage.Machine{GPUs: []usage.GPU{gb10(0.02, 208)}}}
	u, mark := m.checkup(), filepath.Join(t.TempDir(), "pid")
	ask := wire.LoadRequest{For: load.Least, Node: "spark1", Path: python(t, "/bin/sleep 60 >/dev/null 2>&1 & echo $! >"+mark+".left; echo $$ >"+mark+".new; /bin/mv "+mark+".new "+mark+"; while [ -e "+mark+" ]; do /bin/sleep 0.05; done")}
	type answer struct {
		l   doctor.Load
		err error
	}
	begin := func() (pid int, done chan answer) {
		done = make(chan answer, 1)
		go func() {
			l, err := u.NodeLoad(t.Context(), me(t), ask)
			done <- answer{l, err}
		}()
		for pid == 0 {
			select {
			case a := <-done:
				t.Fatalf("%+v", a)
			case <-time.After(10 * time.Millisecond):
			}
			text, _ := os.ReadFile(mark)
			pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return pid, done
	}

	pid, done := begin()
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	adj, _ := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
	if f := strings.Fields(string(stat)); len(f) < 19 || f[18] != "10" || string(adj) != "1000\n" {
		t.Errorf("no guest: %s, %s", stat, adj)
	}
	first := m.shows(gb10(0.97, 2400))
	if _, err := u.NodeLoad(t.Context(), me(t), ask); err == nil || !strings.Contains(err.Error(), "another load") {
		t.Errorf("a second one: %v", err)
	}
	for m.shows(gb10(0.97, 2400)) == first {
		time.Sleep(10 * time.Millisecond)
	}
	m.shows(gb10(0.02, 208))
	os.Remove(mark)
	want := doctor.Load{For: load.Least, Via: "torch 2.13.0", Kind: "bf16", Flops: 9.1e13, Read: 2.3e11,
		GPU: &doctor.GPU{Name: "NVIDIA GB10", Busy: new(0.97), MHz: new(2400.0), MaxMHz: new(3003.0)}}
	if a := <-done; a.err != nil || cmp.Diff(want, a.l) != "" {
		t.Errorf("%v: -want +got:\n%s", a.err, cmp.Diff(want, a.l))
	}

	text, _ := os.ReadFile(mark + ".left")
	if left, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || !ends(left) {
		t.Errorf("%q goes on after the load", text)
	}

	pid, done = begin()
	m.runs(launcher.LedgerEntry{Key: launcher.Key{Job: "k3x"}, Phase: launcher.PhasePrepared})
	if a := <-done; a.err == nil || !strings.Contains(a.err.Error(), "job k3x has come") {
		t.Errorf("a job came: %+v", a)
	}
	if !ends(pid) {
		t.Fatal("python3 goes on")
	}
}

// ends waits until a process is gone, or a zombie that nobody reaps.
func ends(pid int) bool {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err != nil || strings.Contains(string(stat), ") Z") {
			return true
		}
	}
	return false
}

// A clock that was low, or a reason that held, only for a moment is nothing.
func TestGPUsAreLookedAtAgain(t *testing.T) {
	t.Parallel()
	slow, throttled, fine := gb10(0.97, 799), gb10(0.97, 2300), gb10(0.97, 2300)
	throttled.Throttle = []string{"hw_slowdown", "sw_power_cap"}
	for name, tc := range map[string]struct {
		first, second usage.GPU
		mhz           float64
		throttle      []string
	}{
		"it stays slow":       {slow, slow, 799, nil},
		"between two kernels": {slow, fine, 2300, nil},
		"a moment's slowdown": {throttled, fine, 2300, nil},
		"it slows itself":     {throttled, throttled, 2300, []string{"hw_slowdown", "sw_power_cap"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := []usage.GPU{tc.first, tc.second}
			u := New(Config{Usage: func(context.Context) (m usage.Machine, err error) {
				m.GPUs, all = all[:1], all[1:]
				return m, nil
			}})
			if got, _ := u.gpus(t.Context()); len(got) != 1 || *got[0].MHz != tc.mhz || cmp.Diff(tc.throttle, got[0].Throttle) != "" && len(got[0].Throttle)+len(tc.throttle) > 0 {
				t.Errorf("%+v", got)
			}
		})
	}
}
