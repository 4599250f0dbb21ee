package e2e

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The fault matrix: each row breaks something in one lab of three hosts, round
// after round, and holds what became of it against the row's mark. Machines that
// run tests may be loaded: there marks of time are stretched, and rounds few.
// scripts/soak runs the rows to the letter.
var (
	letter     = flag.Bool("letter", false, "hold the fault matrix to its marks as they stand, with as many rounds as they ask for")
	soakRounds = flag.Int("soak-rounds", 0, "rounds of each row of the fault matrix (default: the row's own)")
)

// stretch is what a mark of time is multiplied with where others run beside us.
const stretch = 10

func mark(d time.Duration) time.Duration {
	if *letter {
		return d
	}
	return stretch * d
}

// row is one of the matrix. A round gets its number from 0.
type row struct {
	name      string
	what      string
	few, full int // rounds, beside others and to the letter
	round     func(*testing.T, *field, int)
	// around, if there is one, makes what all rounds need, and gives what takes it away.
	around func(*testing.T, *field) func()
}

var rows = []row{
	{"row01", "rank exits: peers gone <= grace + 2 s, the root cause named", 4, 100, rankExits, nil},
	{"row01torch", "the same with PyTorch's gloo", 0, 20, torchRankExits, nil},
	{"row02", "rank dies before rendezvous: FAILED <= 5 s", 1, 20, diesBeforeRendezvous, nil},
	{"row03", "rank is stopped: cancel <= 10 s", 1, 20, stoppedRank, nil},
	{"row04", "setsid and double fork: 0 survivors", 2, 20, daemonsLeft, nil},
	{"row05", "rank ignores SIGTERM: SIGKILL at grace +- 1 s", 1, 10, deafRank, nil},
	{"row11", "launch is killed: the job goes on, output by offset", 1, 10, launchKilled, nil},
	{"row12", "leader kill -9: another leads <= 3 s, no acknowledged write lost", 2, 50, leaderKilled, nil},
	{"row14", "leader stands still for 30 s at starts: no stale command", 1, 10, leaderStopped, nil},
	{"row15", "follower wiped: caught up <= 30 s", 1, 20, followerWiped, nil},
	{"row18", "log folder full: ranks block < 1 s, drops counted", 2, 6, logFolderFull, nil},
	{"row21", "worker partitioned: generations never overlap", 1, 10, workerPartitioned, nil},
	{"row22", "one-way partition: the same, <= 1 flap a minute", 1, 6, oneWay, nil},
	{"row23", "a pair split: no new generation", 1, 6, pairSplit, nil},
	{"row24", "isolated leader: no stale linearizable read", 1, 20, isolatedLeaderRead, nil},
	{"row30", "all agents restart: converged <= 60 s", 1, 20, allRestart, nil},
	{"row32", "port held or in TIME_WAIT: every start succeeds", 2, 100, portsHeld, holdPorts},
	{"row33", "reader is stopped: ranks slowed < 5 %, agent <= 64 MiB", 1, 3, readerStopped, nil},
	{"row34", "cancel races start or death: terminal stays, 0 survivors", 8, 100, cancelRaces, nil},
}

// These have bad disks under their agents, and a lab of their own for that.
var diskRows = []row{
	{"row16", "leader's disk hangs at submit: another leads <= 13 s", 1, 10, diskHangs, onBadDisks},
	{"row17", "raft folder full at submit: clear error, recovers", 1, 10, raftFolderFull, onBadDisks},
	{"row19", "un-fsynced loss + kill -9: no acknowledged write lost", 2, 50, unsyncedLost, onBadDisks},
}

// field is where a row takes place.
type field struct {
	*lab
	dir   string // what ranks bear witness in, seen by all hosts
	worst string // of the figures, in words
	ratio float64
	disks map[string]*badDisk // of hosts that have one, for all rows
}

func TestMatrix(t *testing.T)           { matrix(t, rows) }
func TestMatrixOnBadDisks(t *testing.T) { matrix(t, diskRows) }

func matrix(t *testing.T, rows []row) {
	if !*letter {
		t.Parallel()
	}
	l, disks := up(t, 3), map[string]*badDisk{}
	tell := func(line string, args ...any) {
		if *letter { // a row may take minutes: each is told when it is over
			fmt.Printf(line, args...)
		}
	}
	heading := sync.OnceFunc(func() { tell("%-12s%-8s%-8s%-32s%s\n", "ROW", "ROUNDS", "PASSED", "WORST FIGURE", "MARK") })
	for _, r := range rows {
		rounds := r.few
		if *letter {
			rounds = r.full
			if *soakRounds > 0 {
				rounds = *soakRounds
			}
		}
		if rounds == 0 {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			heading()
			f := &field{lab: &lab{t: t, name: l.name}, dir: scratch(t), disks: disks}
			if r.around != nil {
				defer r.around(t, f)()
			}
			passed := 0
			for i := range rounds {
				if t.Run(strconv.Itoa(i), func(t *testing.T) { f.round(t, r, i) }) {
					passed++
				}
			}
			tell("%-12s%-8d%-8d%-32s%s\n", r.name, rounds, passed, f.worst, r.what)
		})
	}
}

// round runs one, and leaves nothing of it to the next.
func (f *field) round(t *testing.T, r row, i int) {
	was := f.t
	f.t = t
	defer func() { f.t = was }()
	defer func() {
		if t.Failed() {
			for name, j := range f.jobs("spark1") {
				if j.ExitCode == nil {
					t.Logf("job %s is still there: it is stopped", name)
					f.on("spark1", "sparkrun", "stop", j.ID, "--kill")
				}
			}
		}
	}()
	f.allAgents()
	r.round(t, f, i)
	f.gone(mark(5 * time.Second))
}

// allAgents starts an agent that has ended, as the unit would: one whose disk stands
// still for 5 s ends itself, and on a busy machine disks do.
func (f *field) allAgents() {
	f.t.Helper()
	for _, h := range hosts {
		if len(f.find(h, "sparkrun agent", "")) == 0 {
			f.t.Logf("the agent of %s has ended: it is started again", h)
			f.do("start", h, "--agent")
			f.on(h, "sparkrun", "status", "--wait-nodes", "3", "--timeout", "60s").must(f.t)
		}
	}
}

var hosts = []string{"spark1", "spark2", "spark3"}

// measured holds a time against its mark, and keeps the worst of a row.
func (f *field) measured(what string, took, most time.Duration) {
	f.t.Helper()
	if ratio := float64(took) / float64(most); f.worst == "" || ratio > f.ratio {
		f.worst, f.ratio = fmt.Sprintf("%s %s", what, took.Round(time.Millisecond)), ratio
	}
	if took > mark(most) {
		f.t.Errorf("%s took %s, want %s at most", what, took.Round(time.Millisecond), mark(most))
	}
}

// found is for rows that have no figure: how it went, if it went wrong once.
func (f *field) found(well, badly string) {
	switch {
	case f.t.Failed():
		f.worst = badly
	case f.worst == "":
		f.worst = well
	}
}

// testimony is what ranks of one round wrote.
type testimony struct{ path string }

func (f *field) testimony(i int) testimony { return testimony{filepath.Join(f.dir, strconv.Itoa(i))} }

// said is a word of a rank: when it came, and the value with it.
type said struct {
	rank  int
	word  string
	at    time.Time
	value int64
}

func (w testimony) words(t testing.TB) (all []said) {
	t.Helper()
	paths, _ := filepath.Glob(w.path + ".*")
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		rank, _ := strconv.Atoi(strings.TrimPrefix(filepath.Ext(p), "."))
		for line := range strings.Lines(string(b)) {
			s := said{rank: rank}
			var ns int64
			if _, err := fmt.Sscan(line, &s.word, &ns, &s.value); err == nil { // else it is being written
				s.at = time.Unix(0, ns)
				all = append(all, s)
			}
		}
	}
	return all
}

// hear gives a word of each rank that has said it.
func (w testimony) hear(t testing.TB, word string) []said {
	t.Helper()
	return slices.DeleteFunc(w.words(t), func(s said) bool { return s.word != word })
}

// await waits until n ranks have said a word.
func (w testimony) await(t testing.TB, word string, n int) (heard []said) {
	t.Helper()
	eventually(t, time.Minute, fmt.Sprintf("%d ranks say %q", n, word), func() bool {
		heard = w.hear(t, word)
		return len(heard) >= n
	})
	return heard
}

// ranks is the command line of testdata/matrix.py.
func (w testimony) ranks(mode string, args ...any) []string {
	script, err := filepath.Abs("testdata/matrix.py")
	if err != nil {
		panic(err)
	}
	cmd := []string{"--", python, "-I", "-S", script, w.path, mode}
	for _, a := range args {
		cmd = append(cmd, fmt.Sprint(a))
	}
	return cmd
}

// launch starts a job of these ranks on a host, and does not wait for it.
func (f *field) launch(host, flags string, ranks []string) *running {
	f.t.Helper()
	return f.start(host, slices.Concat([]string{"sparkrun", "launch", "exec"}, strings.Fields(flags), ranks)...)
}
