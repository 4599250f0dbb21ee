package usage

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

// process is one of a made-up machine.
type process struct {
	pid, parent int
	state       string
	spent       int // clock ticks
	mib         int
	env         string // NUL after each
	mounts      string
}

func table(t *testing.T, dir string, all ...process) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for _, p := range append(all, process{state: "S"}) {
		at := filepath.Join(dir, strconv.Itoa(p.pid))
		if p.pid == 0 {
			at = filepath.Join(dir, "self")
		}
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(at, "ns"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("mnt:["+p.mounts+"]", filepath.Join(at, "ns/mnt")); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"stat": fmt.Sprintf("%d (p) %s %d 1 1 0 -1 0 0 0 0 0 %d 0 0 0 20 0 1 0 %d 0 0", p.pid, p.state, p.parent,
				p.spent, 100+p.pid),
			"status":  fmt.Sprintf("RssAnon:\t%d kB\nRssFile:\t9 kB\nRssShmem:\t0 kB\n", p.mib<<10),
			"environ": p.env,
		} {
			if err := os.WriteFile(filepath.Join(at, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Two ranks of one job on the host, each with what is below it, one of another in a container, which is no child of the
// process that stands for it; and processes that are nobody's.
func TestRanks(t *testing.T) {
	dir := t.TempDir()
	host, box := launcher.Key{Job: "host", Generation: 3}, launcher.Key{Job: "boxd", Generation: 1}
	ledger := []launcher.LedgerEntry{
		{Key: host, Phase: launcher.PhaseStarted, Ranks: []launcher.RankStatus{
			{Rank: 4, State: launcher.RankRunning, PID: 10}, {Rank: 5, State: launcher.RankRunning, PID: 20},
			{Rank: 6, State: launcher.RankEnded, PID: 99}}},
		{Key: box, Phase: launcher.PhaseStarted, Ranks: []launcher.RankStatus{
			{Rank: 0, State: launcher.RankRunning, PID: 30}}},
		{Key: launcher.Key{Job: "over"}, Phase: launcher.PhaseEnded},
	}
	before := []process{
		{1, 0, "S", 1, 1, "", ""}, {9, 1, "S", 5, 5, "", ""},
		{10, 9, "S", 100, 10, "SPARKRUN_GANG=host.3/aa\x00RANK=4\x00", ""},
		{11, 10, "R", 50, 20, "", ""},                                          // without the mark, below
		{20, 9, "D", 7, 1, "SPARKRUN_GANG=host.3/aa\x00RANK=5\x00", ""},        // and its daemon:
		{21, 1, "R", 1, 2, "RANK=5\x00SPARKRUN_GANG=host.3/aa\x00", ""},        //
		{30, 9, "S", 1, 1, "SPARKRUN_GANG=boxd.1/bb\x00", ""},                  // stands for the container's
		{40, 1, "R", 10, 300, "PATH=/bin\x00SPARKRUN_GANG=boxd.1/bb\x00", "2"}, // first there
		{41, 40, "S", 10, 3, "A=b\x00", ""},
		{50, 1, "R", 1, 9, "SPARKRUN_GANG=gone.1/bb\x00RANK=0\x00", ""},
		{60, 1, "S", 0, 9, "A=b\x00", "2"}, // is about to be another program
	}
	held := map[int]int64{40: 1 << 30, 11: 5, 1: 77}
	r := ranks{fs: proc.FS(dir)}
	table(t, dir, before...)
	got := r.now(ledger, 0, held)
	of := func(k launcher.Key, rank, pids, ticks, mib int, gpu int64, state string, cpu *float64) Rank {
		return Rank{Job: k.Job, Generation: k.Generation, Rank: rank, PIDs: pids, CPUTime: time.Duration(ticks) * 10 * time.Millisecond,
			Memory: int64(mib) << 20, GPUMemory: &gpu, State: state, CPU: cpu}
	}
	want := []Rank{of(box, 0, 3, 21, 304, 1<<30, "R", nil), of(host, 4, 2, 150, 30, 5, "S", nil), of(host, 5, 2, 8, 3, 0, "D", nil)}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	// Two seconds later: rank 4 has worked on one core, its child has ended and another has come.
	after := append([]process{}, before...)
	after[2].spent += 150
	after[3] = process{12, 10, "R", 50, 20, "", ""}
	after[len(after)-1].env = "SPARKRUN_GANG=boxd.1/bb\x00"
	table(t, dir, after...)
	got = r.now(ledger, 2*time.Second, nil)
	rank4 := of(host, 4, 2, 350, 30, 0, "S", new(1.))
	rank4.GPUMemory = nil
	if d := cmp.Diff(rank4, got[1]); d != "" {
		t.Error(d)
	}
	if got[0].PIDs != 4 {
		t.Errorf("the container has %d processes: one was looked at before its exec", got[0].PIDs)
	}
	// An agent that is started now has not seen the child, which its parent has waited for.
	stat := filepath.Join(dir, "10", "stat")
	b, err := os.ReadFile(stat)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stat, []byte(strings.Replace(string(b), " 250 0 0 0 ", " 250 0 40 10 ", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if again := (&ranks{fs: proc.FS(dir)}).now(ledger, 0, nil)[1]; again.CPUTime != rank4.CPUTime {
		t.Errorf("after the agent's restart it has used %v", again.CPUTime)
	}
	// A shell's children come and go between two looks, and one that was seen has ended meanwhile.
	shell := func(reaped int, child ...process) *float64 {
		table(t, dir, append(child, process{10, 1, "S", 1, 1, "", ""})...)
		text := fmt.Sprintf("10 (sh) S 1 1 1 0 -1 0 0 0 0 0 1 0 %d 0 20 0 1 0 110 0 0", reaped)
		if err := os.WriteFile(stat, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return r.now(ledger[:1], time.Second, nil)[0].CPU
	}
	shell(0, process{11, 10, "R", 30, 1, "", ""})
	if cpu := shell(80); *cpu != 0.5 {
		t.Errorf("children that have ended used %v cores", *cpu)
	}
	if got := *got[2].CPU; got != 0 {
		t.Errorf("rank 5 did nothing and used %v cores", got)
	}
	if r.now(nil, time.Second, nil) != nil || r.seen != nil {
		t.Error("there are no ranks any more")
	}
}

// Who holds much of a GPU's memory and is no rank's is told of.
func TestOthers(t *testing.T) {
	r := ranks{fs: proc.Here, of: map[int]rankKey{1: {}}}
	all := r.others(map[int]int64{os.Getpid(): 2 << 30, os.Getppid(): 1 << 20, 1: 4 << 30})
	if len(all) != 1 || all[0].PID != os.Getpid() || all[0].GPUMemory != 2<<30 || all[0].Name == "" || all[0].User == "" {
		t.Errorf("%+v", all)
	}
}

// This machine is read, and what is told of it is what can be.
func TestReadHere(t *testing.T) {
	say := standin(t)
	say("proc=" + strconv.Itoa(os.Getpid()) + ":1\n")
	s := running(t)
	r := NewReader(proc.Here, "/sys", s, t.TempDir(), "/", "/no/such/folder")
	first := r.Read(nil)
	if first.Over != 0 || first.CPU == nil || first.CPU.Used != nil || first.Memory == nil || first.GPUs != nil ||
		first.Ranks != nil || len(first.Disks) == 0 || first.Disks[0].Total <= 0 || first.Disks[0].Read != nil {
		t.Errorf("%+v", first)
	}
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); { // two ticks of the processor's
	}
	second := r.Read(nil)
	if second.Over <= 0 || second.CPU.Used == nil || *second.CPU.Used < 0 || *second.CPU.Used > float64(second.CPU.Cores) {
		t.Errorf("%+v", second)
	}
}

func BenchmarkRead(b *testing.B) {
	r := NewReader(proc.Here, "/sys", OpenSMI(nil), "/")
	for b.Loop() {
		r.Read(nil)
	}
}

// A folder's file system is told of each time that it is asked for, one that is not there never.
func TestDisks(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		if all := Disks(dir, dir+"/none"); len(all) != 1 || all[0].Total <= 0 || all[0].Mount == "" {
			t.Errorf("%+v", all)
		}
	}
}
