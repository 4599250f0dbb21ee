package shim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
)

// speaking is a shell script of an MPI rank, which begins, puts its number, and has
// the other's once both are in a barrier.
func speaking(me, other, then string) string {
	return `say() { echo "cmd=$*" >&"$PMI_FD"; read -r heard <&"$PMI_FD"; }
		say init pmi_version=1 pmi_subversion=1; say get_my_kvsname; kvs=${heard##*=}
		say put "kvsname=$kvs key=r` + me + ` value=I am ` + me + `"; say barrier_in; say get "kvsname=$kvs key=r` + other + `"
		echo "${heard##*value=}"; ` + then
}

// mpiRanks are the ranks of one MPI job, each with its script.
func (b *bench) mpiRanks(scripts ...string) []Rank {
	var out []Rank
	for i, s := range scripts {
		r := b.sh(i, s)
		r.PMI = &PMI{Size: len(scripts), Mapping: mpi.Mapping(1, len(scripts))}
		out = append(out, r)
	}
	return out
}

// How an MPI rank ends is not waitpid's to say alone.
func TestMPIRanksEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		then string
		want launcher.Exit
	}{
		"finalize": {`say finalize; echo "$heard"; exit 5`, launcher.Exit{Code: 5}},
		"abort": {`echo cmd=abort exitcode=7 >&"$PMI_FD"; sleep 1000`,
			launcher.Exit{Code: 7, Cause: "MPI_Abort with code 7", Deliberate: true}},
		"leave": {`exit 0`, launcher.Exit{Code: 1, Cause: "it exited with 0 before MPI_Finalize", Deliberate: true}},
		"exit":  {`exit 9`, launcher.Exit{Code: 9, Deliberate: true}},
		"crash": {`kill -SEGV $$`, launcher.Exit{Signal: 11}},
		// A child holds the socket, and no output.
		"child": {`sleep 1000 >/dev/null 2>&1 <&- & exit 9`, launcher.Exit{Code: 9, Deliberate: true}},
		"nonsense": {`echo hello >&"$PMI_FD"; sleep 1000`,
			launcher.Exit{Code: 1, Cause: `malformed PMI input: "hello": want cmd=NAME key=value ...`}},
	} {
		t.Run(name, func(t *testing.T) {
			b := spawn(t)
			b.start(b.mpiRanks(speaking("0", "1", "say finalize"), speaking("1", "0", tt.then))...)
			if d := cmp.Diff(map[int]launcher.Exit{0: {}, 1: tt.want}, exits(b.events())); d != "" {
				t.Errorf("exits (-want +got):\n%s", d)
			}
			if got := b.log(1, "out"); !strings.HasPrefix(got, "I am 0\n") {
				t.Errorf("rank 1 has got %q", got)
			}
			b.noneAlive()
		})
	}
}

// A program that aborts and exits at once, as MPICH does, has aborted: whether its last word is
// read before its end is seen is a matter of luck.
func TestAbortsOfManyRanks(t *testing.T) {
	const n = 64
	b := spawn(t)
	var scripts []string
	want := map[int]launcher.Exit{}
	for i := range n {
		code := i + 1
		scripts = append(scripts, fmt.Sprintf(`echo cmd=abort exitcode=%d >&"$PMI_FD"; exit 3`, code))
		want[i] = launcher.Exit{Code: code, Cause: fmt.Sprint("MPI_Abort with code ", code), Deliberate: true}
	}
	b.start(b.mpiRanks(scripts...)...)
	if d := cmp.Diff(want, exits(b.events())); d != "" {
		t.Errorf("exits (-want +got):\n%s", d)
	}
	b.noneAlive()
}

// What a rank has told before the attempt's end began is how it ended; what it says over that is not.
func TestAbortAroundTheEnd(t *testing.T) {
	end := time.Now()
	abort := &launcher.Exit{Code: 7, Cause: "MPI_Abort with code 7", Deliberate: true}
	ours, its := launcher.Exit{Signal: 9, ByUs: true}, launcher.Exit{Code: 3}
	for name, tt := range map[string]struct {
		told, end time.Time
		exit      launcher.Exit
		want      launcher.Exit
	}{
		"no end":                         {end, time.Time{}, ours, *abort},
		"before":                         {end.Add(-time.Millisecond), end, ours, *abort},
		"afterwards":                     {end.Add(time.Millisecond), end, ours, ours},
		"read afterwards, of a dead one": {end.Add(time.Millisecond), end, its, *abort},
		"the node's own judgement": {end.Add(time.Millisecond), end,
			launcher.Exit{Signal: 9, Cause: "no memory"}, launcher.Exit{Signal: 9, Cause: "no memory"}},
	} {
		m := mpiRank{verdict: abort, told: tt.told}
		if d := cmp.Diff(tt.want, *m.evaluate(&tt.exit, tt.end)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// A rank in a container has the same way to its process manager.
func TestMPIRanksInContainers(t *testing.T) {
	x := spawnContainers(t)
	ranks := []Rank{x.in(0, speaking("0", "1", "say finalize; echo $heard")),
		x.in(1, speaking("1", "0", `echo cmd=abort exitcode=7 >&"$PMI_FD"; sleep 1000`))}
	for i := range ranks {
		ranks[i].PMI = &PMI{Size: 2, Mapping: mpi.Mapping(1, 2)}
	}
	x.start(ranks...)
	if d := cmp.Diff(map[int]launcher.Exit{0: {}, 1: {Code: 7, Cause: "MPI_Abort with code 7", Deliberate: true}},
		exits(x.events())); d != "" {
		t.Errorf("exits (-want +got):\n%s", d)
	}
	if got := x.log(0, "out"); got != "I am 1\ncmd=finalize_ack\n" {
		t.Errorf("rank 0 wrote %q", got)
	}
	x.nothingLeft()
}
