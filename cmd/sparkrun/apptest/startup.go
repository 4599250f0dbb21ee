package apptest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// Startup builds the program in the test's folder, runs it, and fails the test if its packages allocate more than most
// bytes before main: work at each start. Bytes are counted, for no clock tells the same twice.
func Startup(t *testing.T, most int, args ...string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	start := exec.Command(program, args...)
	start.Env = []string{"GODEBUG=inittrace=1"}
	out, err := start.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	packages, bytes := 0, 0
	for _, m := range regexp.MustCompile(`(?m)^init (\S+) .* (\d+) bytes`).FindAllStringSubmatch(string(out), -1) {
		n, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		packages, bytes = packages+1, bytes+n
	}
	if packages < 10 || bytes > most {
		t.Errorf("%d packages allocate %d bytes before main, want at most %d:\n%s", packages, bytes, most, out)
	}
}
