package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// standinTRTLLM puts the stand-in for TensorRT-LLM where all hosts have it, with a Python beside it
// that has mpi4py, as an environment of its own would.
func standinTRTLLM(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(scratch(t), "trtllm")
	if err := os.CopyFS(dir, os.DirFS("testdata/standin-trtllm")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(python, filepath.Join(dir, "python3")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// oddWords stand after --, and are the stand-in's as they are.
const oddWords = `{"video":  {"num_frames": 4}} *`

// asksTRTLLM holds what the stand-in says of itself against what it should be on two hosts: the
// server knows nothing of MPI, its ranks nothing of sparkrun's process manager.
func (l *lab) asksTRTLLM(t *testing.T, url string) {
	t.Helper()
	type rank struct {
		Rank, Size, TP, Sum int
		Host                string
		PMI                 []string
	}
	type told struct {
		Ranks        []rank
		Media, World string
		MPI          []string
	}
	want := told{[]rank{{0, 2, 2, 3, "spark1", []string{}}, {1, 2, 2, 3, "spark2", []string{}}}, oddWords, "2", []string{}}
	var got told
	l.on("spark2", "curl", "-sf", url+"/health").must(t)
	if err := json.Unmarshal([]byte(l.on("spark2", "curl", "-sf", url+"/v1/models").must(t).out), &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TensorRT-LLM's place is taken by a stand-in, under real MPI ranks: Open MPI's mpirun, mpi4py. What
// is tested is who is started where with what, that what stands after -- comes through as it is, and
// that a rank's end and the server's, which the launch script does not look at, end it all, are told
// and have the service come back.
func TestServeTRTLLM(t *testing.T) {
	t.Parallel()
	dir, l := standinTRTLLM(t), up(t, 2)
	l.sshless("spark1", "spark2")
	// Each has a folder of its own for Open MPI: of two daemons that begin at once, 4.1 ends the one that
	// finds /tmp/ompi.HOST.UID made by the other (orte/util/session_dir.c), and all tests have a spark2.
	temp, begun := scratch(t), 0
	args := func(more ...string) []string {
		begun++
		more = append([]string{"--env", fmt.Sprintf("OMPI_MCA_orte_tmpdir_base=%s/%d", temp, begun)}, more...)
		return append([]string{"trtllm", "--trtllm-serve", filepath.Join(dir, "trtllm-serve"), "--env", "PYTHONPATH=" + dir, "--env", "PYTHONDONTWRITEBYTECODE=1", "--on", "spark1,spark2"}, more...)
	}
	r := l.on("spark1", append([]string{"sparkrun", "launch", "--dry-run"}, args("--runtime", "host", "org/model")...)...).must(t)
	if want := "Open MPI's mpirun on spark1 starts " + filepath.Join(dir, "trtllm-llmapi-launch") + " on each machine, and that the server on spark1"; !strings.Contains(r.out, want) {
		t.Errorf("a dry run, want %q: %s", want, r)
	}
	s := l.serveWith("spark2", args("--name", "served", "org/model", "--", "--media_io_kwargs", oddWords)...)
	// Beside it those that never come up: each with its cause.
	lost, wrong := l.serveWith("spark1", args("--share", "--port", "8356", "dies/early")...), l.serveWith("spark2", args("--share", "--port", "8357", "missing/weights")...)
	for _, c := range []struct {
		serving
		wants []string
	}{
		{lost, []string{"stage serve, mpirun on spark1: exit 9: MPI rank 1 on spark2: exit 9", "worker lost its GPU"}},
		{wrong, []string{"stage serve, mpirun on spark1: exit 1", "missing/weights is not a local folder and is not a valid model identifier"}},
	} {
		said := c.ended(t)
		for _, want := range c.wants {
			if !strings.Contains(said, want) {
				t.Errorf("not told %q:\n%s", want, said)
			}
		}
	}
	url := s.url(t, serveWait)
	if r := s.wait(); r.code != 0 || !strings.HasSuffix(url, ".0.11:8355") {
		t.Errorf("it serves at %s; launch leaves it: %s: %s", url, r, s.said())
	}
	l.asksTRTLLM(t, url)
	if r := l.on("spark1", "curl", "-s", "-m", "2", "http://192.168.100.11:8355/health"); r.code == 0 {
		t.Error("it answers on the fabric, too, where nobody asked for that")
	}

	// A rank, then the server: all of it ends, is told, and comes back.
	l.on("spark2", "pkill", "-KILL", "-f", "mgmn_worker_node").must(t)
	l.serves("spark2", "served", 2)
	if out := l.on("spark1", "sparkrun", "ps", "served").must(t).out; !strings.Contains(out, "MPI rank 1 on spark2: exit 137") {
		t.Errorf("the rank that was killed is not named:\n%s", out)
	}
	l.on("spark1", "pkill", "-KILL", "-f", "^python3 .*/trtllm-serve").must(t)
	l.serves("spark2", "served", 3)
	if out := l.on("spark1", "sparkrun", "ps", "served").must(t).out; !strings.Contains(out, "mpirun on spark1: exit 137: trtllm-serve was killed by signal 9") {
		t.Errorf("the server that was killed is not told:\n%s", out)
	}
	l.on("spark2", "sparkrun", "stop", "served").must(t)
	l.assertNothingLeft("spark1", "spark2")
}

// The same in containers of an image that has nothing: this machine's Open MPI and Python are mounted.
func testTRTLLMInContainers(t *testing.T, l *lab) {
	dir := standinTRTLLM(t)
	launch := l.start("spark1", "sparkrun", "launch", "trtllm", "--image", "lab/bare", "--name", "boxed", "--on", "spark1,spark2", "--restart", "no",
		"--mount", "/usr:/usr:ro", "--mount", "/etc/openmpi:/etc/openmpi:ro", "--mount", dir+":"+dir+":ro",
		"--env", "PATH="+dir+":/usr/bin", "--env", "PYTHONPATH="+dir, "--env", "PYTHONDONTWRITEBYTECODE=1", "org/model", "--", "--media_io_kwargs", oddWords)
	if r := launch.wait(); r.code != 0 {
		t.Fatalf("launch: %s", r)
	}
	l.asksTRTLLM(t, l.serves("spark3", "boxed", 1).Service.URL)
	l.on("spark2", "pkill", "-KILL", "-f", "mgmn_worker_node").must(t)
	eventually(t, serveWait, "the rank that was killed is named", func() bool {
		return strings.Contains(l.on("spark3", "sparkrun", "ps", "boxed").out, "MPI rank 1 on spark2: exit 137")
	})
}
