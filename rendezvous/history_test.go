package rendezvous

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
)

func TestPruneKeepsWhatRuns(t *testing.T) {
	l := founded(t)
	id := func(n int) launcher.JobID { return launcher.JobID(fmt.Sprintf("job%04d", n)) }
	l.must(t, planOf(plannedJob(id(0), 1, t0))) // the oldest, and never ends
	for n := 1; n <= MaxHistory+10; n++ {
		l.must(t, planOf(plannedJob(id(n), 1, t0.Add(time.Duration(n)*time.Second))), endOf(id(n), 1))
	}
	jobs := l.Jobs()
	if len(jobs) != MaxHistory {
		t.Fatalf("%d jobs are kept, want %d", len(jobs), MaxHistory)
	}
	if jobs[0].Spec.ID != id(0) {
		t.Errorf("the job that runs was pruned; the oldest is %s", jobs[0].Spec.ID)
	}
	if jobs[1].Spec.ID != id(12) {
		t.Errorf("the oldest ended job is %s, want %s", jobs[1].Spec.ID, id(12))
	}
}

// One user's many jobs push out their own, not another's last ones; jobs that run take not all the room.
func TestPruneIsFair(t *testing.T) {
	l := founded(t)
	of := func(user string, n int) Job {
		j := plannedJob(launcher.JobID(fmt.Sprintf("%s%04d", user, n)), 1, t0.Add(time.Duration(n)*time.Second))
		j.Spec.User = user
		return j
	}
	put := func(j Job, ends bool) {
		l.must(t, planOf(j))
		if ends {
			l.must(t, endOf(j.Spec.ID, 1))
		}
	}
	left := func(user string, ended bool) (n int) {
		for _, j := range l.Jobs() {
			if j.Spec.User == user && (j.Outcome != nil) == ended {
				n++
			}
		}
		return n
	}
	for n := range 3 {
		put(of("ben", n), true)
	}
	for n := range MaxHistory + 20 {
		put(of("ann", n), true)
	}
	if ann, ben := left("ann", true), left("ben", true); ann != MaxHistory-3 || ben != 3 {
		t.Errorf("%d of ann's and %d of ben's jobs are kept", ann, ben)
	}
	for n := range MaxHistory {
		put(of("eve", n), false)
	}
	put(of("ann", MaxHistory+20), true)
	if ann, ben, eve := left("ann", true), left("ben", true), left("eve", false); ann != MinEnded-3 || ben != 3 ||
		eve != MaxHistory {
		t.Errorf("%d of ann's, %d of ben's, %d of eve's jobs are kept", ann, ben, eve)
	}
}

// The latest ended jobs are remembered whole; of older ones all is there but what only a start needs. A job that runs
// keeps it, however old it is, and so does who has read a job before.
func TestOldJobsAreSlim(t *testing.T) {
	l := founded(t)
	id := func(n int) launcher.JobID { return launcher.JobID(fmt.Sprintf("job%04d", n)) }
	whole := func(n int) Job {
		j := plannedJob(id(n), 1, t0.Add(time.Duration(n)*time.Second))
		j.Spec.Stages[0].Env = []launcher.Var{{Name: "A", Value: launcher.Lit("b"), Source: "test"}}
		j.Plan.Network = string(envgen.NetworkFabric)
		j.Plan.Nodes[0].Entry.Paths = []envgen.Path{{HCA: "mlx5_0"}}
		return j
	}
	l.must(t, planOf(whole(0)))
	var early Job
	for n := 1; n <= MaxWhole+2; n++ {
		l.must(t, planOf(whole(n)))
		if n == 1 {
			early, _ = l.Job(id(1))
		}
		l.must(t, endOf(id(n), 1))
	}
	has := func(j Job) [2]bool {
		return [2]bool{j.Spec.Stages[0].Env != nil, j.Plan.Nodes[0].Entry.Paths != nil}
	}
	for n, want := range map[int]bool{0: true, 1: false, 2: false, 3: true, MaxWhole + 2: true} {
		got, _ := l.Job(id(n))
		if has(got) != [2]bool{want, want} {
			t.Errorf("job %d has its environment and paths: %v, want %v", n, has(got), want)
		}
		whole := whole(n)
		whole.Outcome, whole.Touched = got.Outcome, got.Touched
		if !want {
			whole.Spec.Stages[0].Env, whole.Plan.Nodes[0].Entry.Paths = nil, nil
		}
		if d := cmp.Diff(whole, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})); d != "" {
			t.Errorf("job %d (-want +got):\n%s", n, d)
		}
	}
	if has(early) != [2]bool{true, true} {
		t.Error("a job was changed in the hands of who had read it")
	}
}

// One program on the same nodes, again and again, is kept once of what is slim; another is not touched.
func TestOldJobsShareWhatIsTheSame(t *testing.T) {
	l := founded(t)
	const jobs = MaxWhole + 6
	program := func(n int) string {
		if n == 3 {
			return "other"
		}
		return "same"
	}
	job := func(n int) Job {
		j := plannedJob(launcher.JobID(fmt.Sprintf("job%04d", n)), 1, t0.Add(time.Duration(n)*time.Second))
		j.Spec.Stages[0].Argv = launcher.Lits(program(n))
		j.Spec.Stages[0].Env = []launcher.Var{{Name: "A", Value: launcher.Lit("b"), Source: "test"}}
		return j
	}
	for n := range jobs {
		l.must(t, planOf(job(n)), endOf(job(n).Spec.ID, 1))
	}
	stages, nodes := map[*launcher.Stage]bool{}, map[*Place]bool{}
	for n := range jobs - MaxWhole {
		got, _ := l.Job(job(n).Spec.ID)
		if argv := got.Spec.Stages[0].Argv[0].String(); argv != program(n) {
			t.Errorf("job %d runs %s, want %s", n, argv, program(n))
		}
		stages[&got.Spec.Stages[0]], nodes[&got.Plan.Nodes[0]] = true, true
	}
	if len(nodes) != 1 || len(stages) > 3 {
		t.Errorf("%d slim jobs have %d lists of nodes, want 1, and %d of stages, want at most 3", jobs-MaxWhole,
			len(nodes), len(stages))
	}
}

// 500 jobs name the same hosts and boots: they are in memory once, also after a restore, and the record is the same.
func TestJobsShareTheirWords(t *testing.T) {
	r := founded(t)
	for i := range 3 {
		j := plannedJob(launcher.JobID(fmt.Sprintf("jjj%d", i)), 1, t0)
		j.Plan.Nodes = []Place{{Node: "n1", Host: "spark1", Boot: "b1"}}
		r.must(t, planOf(j))
	}
	snap, err := r.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	restored := NewRecord()
	if err := restored.Restore(snap); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*Record{r.Record, restored} {
		boots := map[*byte]bool{}
		for _, j := range r.Jobs() {
			boots[unsafe.StringData(j.Plan.Nodes[0].Boot)] = true
		}
		if len(boots) != 1 {
			t.Errorf("%d copies of a boot's name", len(boots))
		}
	}
	if again, err := restored.Snapshot(); err != nil || !bytes.Equal(snap, again) {
		t.Errorf("restored: %v\n%s\nwas\n%s", err, again, snap)
	}
}

// What the end of a job costs each member with a full history.
func BenchmarkEndOfJob(b *testing.B) {
	s := state{Jobs: map[launcher.JobID]Job{}}
	put := func(n int) {
		j := plannedJob(launcher.JobID(fmt.Sprintf("job%06d", n)), 1, t0.Add(time.Duration(n)*time.Second))
		j.Plan.Nodes = make([]Place, 8)
		j.Spec.Stages[0].Env = []launcher.Var{{Name: "A"}}
		j.Outcome = &Outcome{At: t0.Add(time.Duration(n) * time.Second)}
		s.Jobs[j.Spec.ID] = j
	}
	for n := range MaxHistory {
		put(n)
		s.prune()
	}
	n := MaxHistory
	for b.Loop() {
		put(n)
		s.prune()
		n++
	}
}
