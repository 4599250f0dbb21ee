package e2e

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// gatewayProgram is gatewaytest, linked statically so that it runs in any image too, in a folder of its own that all
// hosts see.
func gatewayProgram(t testing.TB) string {
	t.Helper()
	path := filepath.Join(scratch(t), "gatewaytest")
	build := exec.Command("go", "build", "-o", path, "../../cmd/node/gateway/gatewaytest")
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build gatewaytest: %v: %s", err, out)
	}
	return path
}

// outcome is what became of one request of a load.
type outcome struct {
	ID     string    `json:"id"`
	Began  time.Time `json:"began"`
	Ended  time.Time `json:"ended"`
	Via    string    `json:"via"`
	Engine string    `json:"engine"`
	Stream bool      `json:"stream"`
	Error  string    `json:"error"`
}

// load has clients ask for a model from outside all hosts, until the function that it gives ends them: that
// gives what became of each request. The flags are gatewaytest's. The first has its answer by then.
func (l *lab) load(program, model string, urls []string, flags ...string) (end func() []outcome) {
	l.t.Helper()
	args := append(append([]string{program, "load"}, flags...), append([]string{model}, urls...)...)
	r := l.start("switch", args...)
	eventually(l.t, 30*time.Second, "an answer", func() bool { return r.out.String() != "" })
	return func() []outcome {
		l.t.Helper()
		_ = r.cmd.Process.Signal(os.Interrupt)
		return l.results(r)
	}
}

// results waits for a load's end.
func (l *lab) results(r *running) (all []outcome) {
	l.t.Helper()
	got := r.wait().must(l.t)
	for lines := bufio.NewScanner(strings.NewReader(got.out)); lines.Scan(); {
		var a outcome
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			l.t.Fatalf("load: %v: %s", err, lines.Text())
		}
		all = append(all, a)
	}
	return all
}
