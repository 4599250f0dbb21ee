// Package apart runs a test in namespaces of its own, where links may be made and
// disks mounted that the machine does not see. Only tests import it.
package apart

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const inside = "SPARKRUN_TEST_APART"

// Inside tells whether this is the copy of the test program that Run has started.
func Inside() bool { return os.Getenv(inside) != "" }

// Run has a copy of this test program run one test in new namespaces: unix.CLONE_NEWNET,
// unix.CLONE_NEWNS. It needs root, or that users may make namespaces, and fails without.
func Run(t *testing.T, test string, namespaces uintptr) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("in namespaces of its own (needs root or unprivileged user namespaces): %v\n%s", err, out)
	}
	if !strings.Contains(string(out), "PASS: "+test) {
		t.Fatalf("the test did not run:\n%s", out)
	}
	t.Log(string(out))
}
