package workloads

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// What a machine lacks is told, all of it, with what to do, and nothing is built. The PATH has
// what the script itself needs, and no compiler.
func TestNCCLBuildTellsWhatIsMissing(t *testing.T) {
	bin := t.TempDir()
	for _, tool := range []string{"tr", "sed", "ln", "mkdir", "head", "readlink", "dirname", "rm"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, bin+"/"+tool); err != nil {
			t.Fatal(err)
		}
	}
	args := NCCLBuildArgs("", "")
	cmd := exec.Command("/bin/sh", args[1:]...)
	cmd.Dir, cmd.Env = t.TempDir(), []string{"PATH=" + bin, "SPARKRUN_HOST=spark1", "HOME=" + bin}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("%v", err)
	}
	want := []string{"on spark1 there is no", "make: apt-get install make", "c++: apt-get install g++"}
	has := func(paths ...string) bool {
		for _, path := range paths {
			if _, err := os.Stat(path); err == nil {
				return true
			}
		}
		return false
	}
	cuda := has("/usr/local/cuda/bin/nvcc")
	if !cuda {
		want = append(want, "nvcc: install the CUDA toolkit")
	}
	if !cuda && !has("/usr/include/nccl.h", "/usr/local/include/nccl.h") {
		want = append(want, "nccl.h: apt-get install libnccl-dev, or bring NCCL's sources with --nccl")
	}
	for _, text := range want {
		if !strings.Contains(string(out), text) {
			t.Errorf("%q is not told:\n%s", text, out)
		}
	}
}
