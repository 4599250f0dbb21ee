package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// BenchmarkMPIStart times an MPICH program of 8 ranks, which begins MPI and ends it, on 8 hosts,
// from the command line to its exit: by launch, by MPICH's mpiexec.hydra over ssh, and by
// srun in an allocation, in turns. What is told are medians, less what it takes to enter the
// first host.
//
//	go test ./scripts/e2e -run NONE -bench MPIStart -benchtime 10x -timeout 30m
func BenchmarkMPIStart(b *testing.B) {
	const hosts = 8
	dir, l := mpiPrograms(b), up(b, hosts)
	peers := exec.Command("../peers", dir, fmt.Sprint(hosts))
	peers.Env = append(os.Environ(), "LAB="+l.name)
	if out, err := peers.CombinedOutput(); err != nil {
		b.Fatalf("scripts/peers: %v\n%s", err, out)
	}
	program := filepath.Join(dir, "mpich5")
	all, err := filepath.Glob("../../.build/mpis/mpich/*bin/mpiexec.hydra")
	if err != nil || len(all) != 1 {
		b.Fatalf("MPICH's mpiexec.hydra: %v, %v", all, err)
	}
	hydra, err := filepath.Abs(all[0])
	if err != nil {
		b.Fatal(err)
	}
	var addrs []string
	for i := range hosts {
		addrs = append(addrs, fmt.Sprintf("172.30.0.%d", 11+i))
	}
	slurm := []string{"env", "SLURM_CONF=" + filepath.Join(dir, "slurm.conf")}
	eventually(b, 2*time.Minute, "Slurm's nodes", func() bool {
		return l.on("spark1", append(slurm, "sinfo", "-h", "-t", "idle", "-o", "%D")...).out == fmt.Sprintln(hosts)
	})
	job := l.on("spark1", append(slurm, "salloc", "-N", fmt.Sprint(hosts), "--no-shell")...).must(b).err
	job = strings.Fields(job[strings.Index(job, "allocation ")+len("allocation "):])[0]

	mpiexec := func(agent string) []string {
		return []string{hydra, "-launcher", "ssh", "-launcher-exec", agent, "-iface", "enP7s7", "-hosts", strings.Join(addrs, ","), "-ppn", "1", "-n", fmt.Sprint(hosts), program}
	}
	took := map[string][]time.Duration{}
	ways := []struct {
		name string
		run  func() result
	}{
		{"entry", func() result { return l.on("spark1", "true") }},
		{"launch", func() result {
			return l.on("spark1", "sparkrun", "launch", "mpi", "--nodes", fmt.Sprint(hosts), "--", program)
		}},
		{"hydra-ssh", func() result { return l.on("spark1", mpiexec(filepath.Join(dir, "ssh"))...) }},
		{"srun", func() result {
			return l.on("spark1", append(slurm, "srun", "--jobid", job, "--mpi=pmi2", "-N", fmt.Sprint(hosts), "-n", fmt.Sprint(hosts), program)...)
		}},
	}
	round := func() {
		for _, w := range ways {
			took[w.name] = append(took[w.name], w.run().must(b).took)
		}
	}
	round() // connections open, files in the page cache
	clear(took)
	for b.Loop() {
		round()
	}
	median := func(name string) float64 {
		all := slices.Sorted(slices.Values(took[name]))
		return float64(all[len(all)/2].Microseconds()) / 1000
	}
	entry := median("entry")
	for _, w := range ways[1:] {
		ms := median(w.name) - entry
		b.ReportMetric(ms, "ms/"+w.name)
		if w.name != "launch" {
			b.ReportMetric((median("launch")-entry)/ms, "launch/"+w.name)
		}
	}
	b.ReportMetric(entry, "ms/lab-entry")
	b.ReportMetric(0, "ns/op")
}
