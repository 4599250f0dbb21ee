package e2e

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var mpiAll = flag.Bool("mpi-all", false, "run MPI programs on 1, 3 and 8 hosts, of 64 ranks too, all their ways to end, and 1,000 PMI clients")

// mpiPrograms builds testdata/mpi.c for each MPI, in a folder that all hosts see.
func mpiPrograms(t testing.TB) string {
	t.Helper()
	dir := scratch(t)
	if out, err := exec.Command("../mpis", dir).CombinedOutput(); err != nil {
		t.Fatalf("scripts/mpis: %v\n%s", err, out)
	}
	return dir
}

func (l *lab) mpi(args ...string) result {
	l.t.Helper()
	return l.on("spark1", append([]string{"sparkrun", "launch", "mpi", "--timeout", "100s", "--output", "raw"}, args...)...)
}

// bigMPI is mpi for what two processors take minutes for.
func (l *lab) bigMPI(args ...string) result {
	l.t.Helper()
	return l.start("spark1", append([]string{"sparkrun", "launch", "mpi", "--start-timeout", "10m", "--timeout", "10m", "--output", "raw"}, args...)...).within(11 * time.Minute)
}

// everyRankIsRight: all have the right sums, and are where they should be.
func everyRankIsRight(t *testing.T, r result, hosts, perHost int) {
	t.Helper()
	r.must(t)
	for rank := range hosts * perHost {
		if want := fmt.Sprintf("rank %d of %d on spark%d: right", rank, hosts*perHost, rank/perHost+1); !strings.Contains(r.out, want) {
			t.Errorf("want %q: %s", want, r)
		}
	}
}

// sshless fails where something listens as sshd would.
func (l *lab) sshless(hosts ...string) {
	l.t.Helper()
	for _, h := range hosts {
		if r := l.on(h, "ss", "-Hltn", "sport = :22"); strings.TrimSpace(r.out) != "" {
			l.t.Fatalf("something listens on %s where sshd would: %s", h, r)
		}
	}
}

// Real MPI programs run on simulated hosts that no ssh reaches.
func TestMPI(t *testing.T) {
	dir, l := mpiPrograms(t), up(t, 3)
	l.sshless("spark1", "spark2", "spark3")
	program := func(name string) string { return filepath.Join(dir, name) }
	// Ubuntu 24.04's MPICH: Open MPI's mpirun starts its ranks, and says how they end.
	linked, err := exec.Command("ldd", program("mpich4")).CombinedOutput()
	check(t, err)
	pmix, mpich4Hosts := bytes.Contains(linked, []byte("libpmix.so")), 1
	if pmix {
		mpich4Hosts = 3
	}
	t.Run("answers", func(t *testing.T) {
		for _, c := range []struct {
			program string
			hosts   int
			rare    bool
		}{
			// Not Debian's mpich4 on three: it hangs in its own MPI_Finalize (help mpi).
			{"mpich4", mpich4Hosts, false}, {"mpich5", 3, false}, {"openmpi4", 3, false}, {"openmpi5", 3, false},
			{"mpich5", 1, true}, {"openmpi4", 1, true}, {"openmpi5", 1, true},
		} {
			if c.rare && !*mpiAll {
				continue
			}
			r := l.mpi("--nodes", fmt.Sprint(c.hosts), "--nproc-per-node", "2", "--env", "OWN=mine", "--", program(c.program), "all")
			everyRankIsRight(t, r, c.hosts, 2)
			if n := strings.Count(r.out, "mine"); n != 2*c.hosts {
				t.Errorf("%s: %d ranks have the user's variable: %s", c.program, n, r)
			}
		}
	})
	t.Run("ends", func(t *testing.T) {
		for _, c := range []struct {
			program, how, code string
			want               int
			says               string
			rare               bool // shim.TestMPIRanksEnd has it, too, or another row nearly so
		}{
			{"mpich4", "abort", "7", 7, "rank 4 on spark3: MPI_Abort with code 7", false},
			{"openmpi4", "abort", "7", 7, "MPI_ABORT was invoked on rank 4", false},
			{"mpich4", "exit", "9", 9, "rank 4 on spark3: exit 9", true},
			{"mpich4", "leave", "0", 1, "rank 4 on spark3: it exited with 0 before MPI_Finalize", true},
			{"mpich5", "abort", "7", 7, "rank 4 on spark3: MPI_Abort with code 7", true},
			{"openmpi4", "exit", "9", 9, "exit 9", true},
			{"openmpi5", "abort", "7", 7, "rank 4", true},
		} {
			if c.rare && !*mpiAll {
				continue
			}
			if pmix && c.program == "mpich4" {
				c.says = map[string]string{
					"abort": "MPI_Abort(MPI_COMM_WORLD, 7) - process 4", "exit": c.says, "leave": "process rank 4",
				}[c.how]
			}
			r := l.mpi("--nodes", "3", "--nproc-per-node", "2", "--grace", "5s", "--", program(c.program), c.how, "4", c.code)
			if r.code != c.want || !strings.Contains(r.out+r.err, c.says) {
				t.Errorf("%s %s %s: want exit %d and %q: %s", c.program, c.how, c.code, c.want, c.says, r)
			}
		}
		l.assertNothingLeft("spark1", "spark2", "spark3")
	})
	t.Run("families", func(t *testing.T) {
		script := filepath.Join(dir, "solve.sh")
		if err := os.WriteFile(script, []byte("#!/bin/sh\nexec "+program("mpich5")+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if r := l.mpi("--nodes", "2", "--", script); r.code == 0 || !strings.Contains(r.err, "a script: say --mpi mpich or --mpi openmpi") {
			t.Errorf("a script: %s", r)
		}
		l.mpi("--nodes", "2", "--mpi", "mpich", "--", script).must(t)
		// Nonsense ends that job, and no other.
		r := l.mpi("--mpi", "mpich", "--", "sh", "-c", "echo nonsense >&$PMI_FD; sleep 60")
		if r.code != 1 || !strings.Contains(r.err, "malformed PMI input") {
			t.Errorf("nonsense: %s", r)
		}
		r = l.mpi("--nodes", "2", "--dry-run", "--", program("openmpi4")).must(t)
		if !strings.Contains(r.out, "2 MPI ranks; ") || !strings.Contains(r.out, " is for Open MPI, by what it is linked to: its mpirun on spark1 starts it, 1 on each machine") ||
			!regexp.MustCompile(`\$ \S*sparkrun mpi-node -nproc 1 `).MatchString(r.out) || strings.Contains(r.out, "PMI_SIZE") || strings.Contains(r.out, " RANK=") {
			t.Errorf("a dry run of an Open MPI program: %s", r)
		}
	})
	// Agents that die while ranks run take no fence with them: the last one, in
	// MPI_Finalize, is carried by their successors.
	t.Run("agents", func(t *testing.T) {
		gate := filepath.Join(dir, "go")
		launch := l.start("spark1", "sparkrun", "launch", "mpi", "--nodes", "3", "--timeout", "100s", "--name", "patient", "--", program("mpich5"), "wait", gate)
		eventually(t, time.Minute, "all ranks wait", func() bool {
			return strings.Count(l.on("spark2", "sparkrun", "logs", "patient").out, "waits") == 3
		})
		for _, host := range []string{"spark2", "spark1"} {
			l.do("kill", host, "--agent")
			l.do("start", host, "--agent")
		}
		if err := os.WriteFile(gate, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Minute, "the job has completed", func() bool {
			code := l.jobs("spark3")["patient"].ExitCode
			return code != nil && *code == 0
		})
		launch.wait()
	})
}

// pmiClient is a rank that speaks PMI-1 and does nothing else. It asks for what one on another
// host has put before a barrier.
const pmiClient = `#!/bin/sh
say() { echo "cmd=$*" >&"$PMI_FD"; read -r heard <&"$PMI_FD"; }
say init pmi_version=1 pmi_subversion=1
say get_my_kvsname; kvs=${heard##*=}
say put "kvsname=$kvs key=r$PMI_RANK value=I am $PMI_RANK"
say barrier_in
other=$(((PMI_RANK + PMI_SIZE / 2) % PMI_SIZE))
say get "kvsname=$kvs key=r$other"
[ "$heard" = "cmd=get_result rc=0 msg=success value=I am $other" ] || { echo "rank $PMI_RANK hears $heard" >&2; exit 1; }
say finalize
[ "$PMI_RANK" != 0 ] || echo "all $PMI_SIZE are through"
`

// Eight hosts: as many as two processors bear, and more.
func TestMPIOnEightHosts(t *testing.T) {
	if !*mpiAll {
		t.Skip("asked for with -mpi-all")
	}
	dir, l := mpiPrograms(t), up(t, 8)
	l.sshless("spark1", "spark8")
	for _, c := range []struct {
		program string
		perHost int
	}{{"mpich5", 1}, {"openmpi4", 1}, {"openmpi5", 1}, {"mpich5", 8}, {"openmpi4", 8}} {
		r := l.bigMPI("--nodes", "8", "--nproc-per-node", fmt.Sprint(c.perHost), "--", filepath.Join(dir, c.program), "all")
		everyRankIsRight(t, r, 8, c.perHost)
		t.Logf("%s, 8 hosts, %d ranks: %s", c.program, 8*c.perHost, r.took.Round(time.Millisecond))
	}
	// The peers of an MPICH 5 rank that goes crash, and may be seen to first.
	for _, c := range []struct {
		program       string
		perHost       int
		how, who, say string
	}{
		{"mpich5", 1, "abort", "6", "rank 6 on spark7: MPI_Abort with code 11"}, {"mpich5", 1, "exit", "6", "rank 6 on spark7: exit 11"},
		{"mpich5", 8, "abort", "37", "rank 37 on spark5: MPI_Abort with code 11"}, {"mpich5", 1, "abort", "-1", "MPI_Abort with code 11"},
		{"openmpi5", 1, "abort", "6", ""},
	} {
		r := l.bigMPI("--nodes", "8", "--nproc-per-node", fmt.Sprint(c.perHost), "--", filepath.Join(dir, c.program), c.how, c.who, "11")
		if r.code != 11 || !strings.Contains(r.err, c.say) {
			t.Errorf("%v: want exit 11 and %q: %s", c, c.say, r)
		}
	}
	client := filepath.Join(dir, "client")
	if err := os.WriteFile(client, []byte(pmiClient), 0o755); err != nil {
		t.Fatal(err)
	}
	r := l.bigMPI("--nodes", "8", "--nproc-per-node", "125", "--mpi", "mpich", "--", client).must(t)
	if !strings.Contains(r.out, "all 1000 are through") {
		t.Errorf("1,000 clients: %s", r)
	}
	t.Logf("1,000 clients: %s", r.took.Round(time.Millisecond))
	l.assertNothingLeft("spark1", "spark8")
}

// MPI programs in containers of an image that has nothing: this machine's MPIs are mounted.
func testMPIInContainers(t *testing.T, l *lab) {
	dir := mpiPrograms(t)
	built, err := filepath.Abs("../../.build/mpis")
	if err != nil {
		t.Fatal(err)
	}
	mpi := func(args ...string) result {
		t.Helper()
		mounts := []string{"--image", "lab/bare", "--mount", "/usr:/usr:ro", "--mount", "/etc/openmpi:/etc/openmpi:ro", "--mount", built + ":" + built + ":ro", "--mount", dir + ":" + dir + ":ro"}
		return l.mpi(append(append(mounts, "--nodes", "2", "--nproc-per-node", "2"), args...)...)
	}
	for _, name := range []string{"mpich5", "openmpi4"} {
		everyRankIsRight(t, mpi("--", filepath.Join(dir, name), "all"), 2, 2)
	}
	if r := mpi("--", filepath.Join(dir, "mpich5"), "abort", "3", "7"); r.code != 7 || !strings.Contains(r.err, "rank 3 on spark2: MPI_Abort with code 7") {
		t.Errorf("MPI_Abort: %s", r)
	}
	if r := mpi("--", "true"); r.code == 0 || !strings.Contains(r.err, "--mpi mpich or --mpi openmpi") {
		t.Errorf("a program of the image's, which has no MPI: %s", r)
	}
}
