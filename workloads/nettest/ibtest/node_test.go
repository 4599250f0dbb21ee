package ibtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/workloads/nettest"
)

// fakePerftest puts a program into PATH that stands in for perftest's (testdata/fakeperftest).
func fakePerftest(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "ib_write_bw"), "./testdata/fakeperftest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the fake: %v: %s", err, out)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// fakeSpace is the key-value space of ranks in one process.
type fakeSpace struct {
	mu            sync.Mutex
	turn          *sync.Cond
	size, in, now int
	pairs         map[string]string
}

func newFakeSpace(size int) *fakeSpace {
	s := &fakeSpace{size: size, pairs: map[string]string{}}
	s.turn = sync.NewCond(&s.mu)
	return s
}

func (s *fakeSpace) Put(key, value string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pairs[key] = value
	return nil
}

func (s *fakeSpace) Get(key string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.pairs[key]
	if !ok {
		return "", fmt.Errorf("get %s: nobody has put it", key)
	}
	return v, nil
}

func (s *fakeSpace) Barrier() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := s.now
	if s.in++; s.in == s.size {
		s.in, s.now = 0, s.now+1
		s.turn.Broadcast()
	}
	for mine == s.now {
		s.turn.Wait()
	}
	return nil
}

// ibPair is a test of two ranks on this machine's loopback, with sysfs's GID rows.
type ibPair struct {
	plan  Plan
	ranks [2]*nodeRank
	out   [2]*bytes.Buffer
	reads [2]int // of the hardware
}

func newIBPair(t *testing.T) *ibPair {
	t.Helper()
	if _, err := exec.LookPath("ib_write_bw"); err != nil {
		t.Fatal("call fakePerftest first: ", err)
	}
	p := &ibPair{plan: Plan{Version: 1, Seconds: 1, Bytes: 65536, Iters: 1000, QPs: 1,
		Cables: []Cable{{A: 0, B: 1, Lanes: [][2]int{{0, 0}, {1, 1}}}}}}
	for i, back := range []bool{false, true} {
		p.plan.Steps = append(p.plan.Steps, Step{Test: "write_bw", Runs: []Run{{Back: back}, {Lane: 1, Back: back}}})
		n := Node{Host: fmt.Sprintf("spark%d", i+1)}
		for lane, dev := range []string{"rocep1s0f0", "roceP2p1s0f0"} {
			n.Ways = append(n.Ways, Way{Device: dev, Addr: netip.AddrFrom4([4]byte{127, 0, byte(10 + lane), byte(11 + i)})})
		}
		p.plan.Nodes = append(p.plan.Nodes, n)
	}
	space := newFakeSpace(2)
	for i := range p.ranks {
		p.out[i] = &bytes.Buffer{}
		r := &nodeRank{plan: p.plan, me: i, port: freePorts(t), space: space, out: json.NewEncoder(p.out[i]),
			sysfs: t.TempDir(), dir: t.TempDir(),
			proc: "/proc/net/tcp", linger: 100 * time.Millisecond}
		for _, w := range p.plan.Nodes[i].Ways {
			putGID(t, r.sysfs, w, 3)
		}
		r.survey = func(context.Context) (envgen.Inventory, error) {
			p.reads[i]++
			return readGIDs(t, r.sysfs, p.plan.Nodes[i]), nil
		}
		p.ranks[i] = r
	}
	return p
}

// freePorts gives the first of two.
func freePorts(t *testing.T) int {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp4", ":0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		m, err := net.Listen("tcp4", fmt.Sprintf(":%d", port+1))
		l.Close()
		if err == nil {
			m.Close()
			return port
		}
	}
	t.Fatal("no two ports in a row are free")
	return 0
}

func rowOf(sysfs string, w Way, index int) (value, kind string) {
	port := filepath.Join(sysfs, "class/infiniband", w.Device, "ports/1")
	return filepath.Join(port, "gids", strconv.Itoa(index)), filepath.Join(port, "gid_attrs/types", strconv.Itoa(index))
}

func putGID(t *testing.T, sysfs string, w Way, index int) {
	t.Helper()
	b := w.Addr.As4()
	value, kind := rowOf(sysfs, w, index)
	for name, text := range map[string]string{value: fmt.Sprintf("0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x\n",
		b[0], b[1], b[2], b[3]), kind: "RoCE v2\n"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// readGIDs finds the rows that putGID has made.
func readGIDs(t *testing.T, sysfs string, n Node) (inv envgen.Inventory) {
	t.Helper()
	for _, w := range n.Ways {
		h := envgen.HCA{Name: w.Device}
		for i := range 8 {
			if value, _ := rowOf(sysfs, w, i); exists(value) {
				h.GIDs = append(h.GIDs, envgen.GID{Index: i, Type: envgen.GIDTypeRoCEv2, Addr: netip.AddrFrom16(w.Addr.As16())})
			}
		}
		inv.Devices = append(inv.Devices, h)
	}
	return inv
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// run carries the plan out on both, and gives what they told.
func (p *ibPair) run(ctx context.Context, t *testing.T) (all Lines, lines []Line) {
	t.Helper()
	var both sync.WaitGroup
	for i, r := range p.ranks {
		both.Go(func() {
			if err := r.carryOut(ctx); err != nil {
				t.Errorf("rank %d: %v", i, err)
			}
		})
	}
	both.Wait()
	for _, out := range p.out {
		for text := range strings.Lines(out.String()) {
			l, ok := ParseLine(text)
			if !ok {
				t.Errorf("no line of a test: %s", text)
			}
			all.Add(l)
			lines = append(lines, l)
		}
	}
	return all, lines
}

func TestIBRanks(t *testing.T) {
	fakePerftest(t)
	p := newIBPair(t)
	all, lines := p.run(t.Context(), t)
	rep := Evaluate(p.plan, all, Setting{ExpectGbps: 197})
	if rep.Verdict.Grade != nettest.Good || len(rep.Cells) != 2 || *rep.Cells[0].Gbps != 197.5 || len(lines) != 4 {
		t.Errorf("%+v\n%+v", rep.Verdict, lines)
	}
	for _, l := range lines {
		if l.Exit != 0 || l.Server || !strings.Contains(l.File, "BW_average") ||
			!slices.Contains(l.Argv, "--out_json") || !slices.Contains(l.Argv, "3") {
			t.Errorf("%+v", l)
		}
	}
	if p.reads != [2]int{1, 1} {
		t.Errorf("the hardware was read %v times: rows that stay are looked at alone", p.reads)
	}
}

// A GID's row moves while a test is under way: the index is what it is then.
func TestIBGIDMoves(t *testing.T) {
	fakePerftest(t)
	p := newIBPair(t)
	p.plan.Steps = p.plan.Steps[:1]
	for _, r := range p.ranks {
		r.plan = p.plan
		if _, err := r.gidOf(t.Context(), r.plan.Nodes[r.me].Ways[0]); err != nil {
			t.Fatal(err)
		}
		for _, w := range r.plan.Nodes[r.me].Ways {
			value, kind := rowOf(r.sysfs, w, 3)
			for _, name := range []string{value, kind} {
				if err := os.Remove(name); err != nil {
					t.Fatal(err)
				}
			}
			putGID(t, r.sysfs, w, 5)
		}
	}
	_, lines := p.run(t.Context(), t)
	for _, l := range lines {
		if i := slices.Index(l.Argv, "-x"); l.Error != "" || l.Argv[i+1] != "5" {
			t.Errorf("%+v", l)
		}
	}
	if len(lines) != 2 || p.reads != [2]int{2, 2} {
		t.Errorf("%d lines, the hardware was read %v times", len(lines), p.reads)
	}
}

// What goes wrong at one device is told of that lane, with the words of who knows, and the
// other lanes and steps go on.
func TestIBRanksFail(t *testing.T) {
	fakePerftest(t)
	tests := map[string]struct {
		fake   string
		noGID  bool
		cause  string
		says   string
		failed int // of the four runs
	}{
		"no GID": {noGID: true, cause: CauseGID, says: "roceP2p1s0f0 has no RoCE v2 GID of 127.0.11.12", failed: 2},
		"server does not": {fake: "no listener@roceP2p1s0f0", cause: CauseFaulty,
			says: "ended before its client came: Couldn't listen to port", failed: 2},
		"server breaks": {fake: "broken@roceP2p1s0f0", cause: CauseMemlock, says: "Couldn't allocate MR", failed: 2},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("FAKE_PERFTEST", tc.fake)
			p := newIBPair(t)
			if tc.noGID {
				value, _ := rowOf(p.ranks[1].sysfs, p.plan.Nodes[1].Ways[1], 3)
				if err := os.Remove(value); err != nil {
					t.Fatal(err)
				}
			}
			all, lines := p.run(t.Context(), t)
			v := Evaluate(p.plan, all, Setting{ExpectGbps: 197}).Verdict
			if v.Grade != nettest.Failed || v.Cause.Code != tc.cause || !strings.Contains(v.Cause.Evidence, tc.says) {
				t.Errorf("%+v %+v", v, v.Cause)
			}
			failed := 0
			for _, l := range lines {
				if !l.Server && (l.Exit != 0 || l.Error != "") {
					failed++
				}
			}
			if failed != tc.failed {
				t.Errorf("%d runs failed, want %d: %+v", failed, tc.failed, lines)
			}
		})
	}
}

// A client that hangs is ended, and so is its server: nobody waits for ever.
func TestIBRankHangs(t *testing.T) {
	fakePerftest(t)
	started := filepath.Join(t.TempDir(), "started")
	t.Setenv("FAKE_PERFTEST", "hangs@rocep1s0f0")
	t.Setenv("FAKE_STARTED", started)
	p := newIBPair(t)
	p.plan.Steps = p.plan.Steps[:1]
	for _, r := range p.ranks {
		r.plan = p.plan
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // ends with the test at the latest
		for !exists(started) && t.Context().Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
	}()
	_, lines := p.run(ctx, t)
	ended := 0
	for _, l := range lines {
		if strings.Contains(l.Error, "did not end within") {
			ended++
		}
	}
	if ended == 0 {
		t.Errorf("%+v", lines)
	}
}

func TestNodeAlone(t *testing.T) {
	for want, args := range map[string][]string{
		"nothing by itself":   {},
		"read port":           {"x", "{}"},
		"version 0, want 1":   {"20000", "{}"},
		"read plan: unexpect": {"20000", `{"version":`},
	} {
		if err := nodeMain(args, "", nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", args, err)
		}
	}
}
