package e2e

import (
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

var mpi64 = flag.Bool("mpi64", false, "run MPI programs of 64 ranks on 8 hosts too")

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

// Real MPI programs run on simulated hosts that no ssh reaches.
func TestMPI(t *testing.T) {
	dir, l := mpiPrograms(t), up(t, 3)
	if r := l.on("spark2", "ss", "-Hltn", "sport = :22"); strings.TrimSpace(r.out) != "" {
		t.Fatalf("something listens where sshd would: %s", r)
	}
	program := func(name string) string { return filepath.Join(dir, name) }
	t.Run("answers", func(t *testing.T) {
		for _, c := range []struct {
			program string
			hosts   int
		}{
			// Not mpich4 on three: it hangs in its own MPI_Finalize (launcher/mpi/DESIGN.md).
			{"mpich4", 1}, {"mpich5", 1}, {"mpich5", 3}, {"openmpi4", 1}, {"openmpi4", 3}, {"openmpi5", 3},
		} {
			r := l.mpi("--nodes", fmt.Sprint(c.hosts), "--nproc-per-node", "2", "--env", "OWN=mine", "--", program(c.program), "all")
			everyRankIsRight(t, r, c.hosts, 2)
			if n := strings.Count(r.out, "mine"); n != 2*c.hosts {
				t.Errorf("%s: %d ranks have the user's variable: %s", c.program, n, r)
			}
		}
		l.mpi("--nodes", "3", "--", program("mpich4")).must(t)
	})
	t.Run("ends", func(t *testing.T) {
		for _, c := range []struct {
			program, how, code string
			want               int
			says               string
		}{
			{"mpich4", "abort", "7", 7, "rank 4 on spark3: MPI_Abort with code 7"},
			{"mpich4", "exit", "9", 9, "rank 4 on spark3: exit 9"},
			{"mpich4", "leave", "0", 1, "rank 4 on spark3: it exited with 0 before MPI_Finalize"},
			{"openmpi4", "abort", "7", 7, "MPI_ABORT was invoked on rank 4"},
			{"openmpi4", "exit", "9", 9, "exit 9"},
			{"openmpi5", "abort", "7", 7, "rank 4"},
		} {
			r := l.mpi("--nodes", "3", "--nproc-per-node", "2", "--grace", "5s", "--", program(c.program), c.how, "4", c.code)
			if r.code != c.want || !strings.Contains(r.out+r.err, c.says) {
				t.Errorf("%s %s %s: want exit %d and %q: %s", c.program, c.how, c.code, c.want, c.says, r)
			}
		}
		l.assertNothingLeft("spark1", "spark2", "spark3")
	})
	t.Run("families", func(t *testing.T) {
		script := filepath.Join(dir, "solve.sh")
		if err := os.WriteFile(script, []byte("#!/bin/sh\nexec "+program("mpich4")+"\n"), 0o755); err != nil {
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
		if !regexp.MustCompile(`\$ \S*sparkrun mpi-node -nproc 1 `).MatchString(r.out) || strings.Contains(r.out, " RANK=") {
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

// 64 ranks on 8 hosts: with -mpi64, as 64 programs that wait by spinning take two
// processors a while.
func TestMPI64(t *testing.T) {
	if !*mpi64 {
		t.Skip("asked for with -mpi64")
	}
	dir, l := mpiPrograms(t), up(t, 8)
	for _, program := range []string{"mpich5", "openmpi4"} {
		everyRankIsRight(t, l.mpi("--nodes", "8", "--nproc-per-node", "8", "--", filepath.Join(dir, program), "all"), 8, 8)
	}
}
