package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// nccl-tests' way from its sources to a verdict and to a launch that requires one, in a
// cluster without a GPU: stand-ins (testdata/standin-*) are nvcc, NCCL's header, and the
// program, which prints what a real one printed. Real are the build, make, MPI, staging,
// the start by Open MPI's mpirun and by PMI, parsing, judging.
func TestNCCLTests(t *testing.T) {
	dir, l := mpiPrograms(t), up(t, 2, "--topology", "pair")
	testdata, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	source, cuda := filepath.Join(testdata, "standin-nccl-tests"), filepath.Join(testdata, "standin-cuda")
	// Each host has a home of its own; here the machine's is theirs, too, otherwise.
	const home = "/tmp/home"
	for _, host := range []string{"spark1", "spark2"} {
		l.on(host, "sh", "-c", "mkdir "+home+" && sed -i '/^root:/s,:/root:,:"+home+":,' /etc/passwd").must(t)
	}
	run := func(env string, args ...string) result {
		t.Helper()
		words := append([]string{"env", "HOME=" + home, "CUDA_HOME=" + cuda, "NCCL_HOME=" + cuda}, strings.Fields(env)...)
		return l.on("spark1", append(append(words, "sparkrun"), args...)...)
	}
	says := func(what string, r result, code int, words ...string) {
		t.Helper()
		for _, w := range words {
			if r.code != code || !strings.Contains(r.out+r.err, w) {
				t.Errorf("%s: want exit %d and %q: %s", what, code, w, r)
			}
		}
	}
	test := func(bus string, args ...string) result {
		t.Helper()
		return run("", append([]string{"launch", "nccl-test", "--workdir", "/", "--min", "8M", "--max", "64M", "--env", "STANDIN_BUS=" + bus}, args...)...)
	}
	says("nowhere", test("1", "--via", "nccl-tests"), 125, "--via nccl-tests: nowhere to be started", "`sparkrun nccl-test build SRC` puts one build on all machines")
	says("no sources", run("", "nccl-test", "build", dir), 1, "no sources of nccl-tests: there is no src/common.cu")
	r := run("", "nccl-test", "build", "--mpi-home", "/nowhere", source)
	says("no MPI", r, 1, "on spark1 there is no", "mpi.h and libmpi.so: apt-get install libopenmpi-dev", "rank 0 on spark1: exit 3")
	if strings.Contains(r.out+r.err, "nvcc") {
		t.Errorf("what is there is called missing: %s", r)
	}

	openmpi := filepath.Join(dir, "openmpi", "bin")
	path, err := exec.LookPath("mpicc.openmpi")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(openmpi, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, filepath.Join(openmpi, "mpicc")); err != nil {
		t.Fatal(err)
	}
	r = run("", "nccl-test", "build", "--mpi-home", filepath.Dir(openmpi), source)
	says("build", r, 0, "nccl-tests: 2.19.6\n", "nccl: 2.30.7, this machine's own\n", "cuda: 13.0, sm_121\n", "built on: spark1\n", "from: "+source, "on spark1, spark2\n")
	if r := l.on("spark2", "cat", home+"/.local/share/sparkrun/nccl-tests/BUILT"); !strings.Contains(r.out, "nccl-tests: 2.19.6") {
		t.Errorf("spark2 has not got it: %s", r)
	}
	run("", "nccl-test", "build", "--mpi-home", filepath.Dir(openmpi), source).must(t) // in place of the first

	l.sees("spark1", "the cable", func(f fabric) bool { return f.cables() == "spark1/0-spark2/0" })
	r = test("12", "--gate", "0.9")
	says("a slow link", r, 1, "verdict: low: all_gather reached 12.00 GB/s", "--gate 0.9: 0.")
	r = test("22.9", "--gate", "0.9")
	says("a good link", r, 0, "all_gather by nccl-tests 2.19.6 ("+home+"/.local/share/sparkrun/nccl-tests/all_gather_perf), NCCL 2.30.7, on spark1, spark2", "verdict: good: all_gather reached 22.90 GB/s with 64 MiB messages")
	says("then", run("", "status"), 0, "your last nccl-test, ", "all_gather 22.90 GB/s")
	history, err := os.ReadFile("/var/tmp/sparkrun-lab/" + l.name + "/hosts/spark1/tmp/home/.local/state/sparkrun/nccl-test.jsonl")
	if lines := strings.Split(strings.TrimSpace(string(history)), "\n"); err != nil || len(lines) != 2 || !strings.Contains(lines[1], `"tool":"nccl-tests","version":"2.19.6","program":"`+home) {
		t.Errorf("the history: %v %s", err, history)
	}

	// The MPICH family, of whose ranks sparkrun is the process manager.
	mpich := filepath.Join(dir, "mpich", "build")
	if err := os.MkdirAll(mpich, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("../mpis", "--compile", "mpich5", filepath.Join(mpich, "all_gather_perf"), filepath.Join(source, "src", "common.cu")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r = test("22.9", "--nccl-tests", filepath.Dir(mpich), "--json")
	var rep struct {
		Program string `json:"program"`
		Verdict struct {
			Grade string `json:"grade"`
		} `json:"verdict"`
	}
	if err := json.Unmarshal([]byte(r.out), &rep); err != nil || rep.Verdict.Grade != "good" || rep.Program != filepath.Join(mpich, "all_gather_perf") {
		t.Errorf("by MPICH: %v %s", err, r)
	}

	// One machine is without: auto says so, and takes torch.
	l.on("spark2", "rm", "-r", home).must(t)
	says("a difference", test("1", "--dry-run"), 0, "nccl-tests/all_gather_perf is on spark1, and not on all: spark2: ", "torch measures", "python3 -u -c")
	says("asked for", test("1", "--via", "nccl-tests", "--dry-run"), 125, "is on spark1, and not on all: spark2: ")

	l.assertNothingLeft("spark1", "spark2")
}
