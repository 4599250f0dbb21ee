package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// rayWait is patience: Ray's processes import a lot of Python, on three hosts that share
// this machine's processors.
const rayWait = 8 * time.Minute

// A real Ray cluster comes up in stages on the fabric's addresses, with a token that nobody
// sees, runs a task on each host, and loses one: that is told, and the command goes on.
func TestRay(t *testing.T) {
	program, err := filepath.Abs("../../.build/ray/bin/ray")
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		t.Fatalf("%v: ./scripts/ray puts Ray there", err)
	}
	script, err := filepath.Abs("testdata/onray.py")
	if err != nil {
		t.Fatal(err)
	}
	l := up(t, 3)
	folder := scratch(t)
	said := func() string {
		b, _ := os.ReadFile(filepath.Join(folder, "said"))
		return string(b)
	}
	r := l.start("spark2", "sh", "-c", `exec "$@" 2>"$0"`, filepath.Join(folder, "said"), "sparkrun", "launch", "ray", "--on", "spark1,spark2,spark3", "--ray", program, "--ray-arg=--num-cpus=1", "--name", "cluster", "--",
		filepath.Join(filepath.Dir(program), "python3"), script, folder)
	defer r.cmd.Process.Kill()
	token := ""
	eventually(t, rayWait, "a task on each host", func() bool {
		b, _ := os.ReadFile(filepath.Join(folder, "token"))
		token = string(b)
		return len(token) == 64 || strings.Contains(said(), "was ended")
	})
	if len(token) != 64 {
		t.Fatalf("token of %d letters: %s", len(token), said())
	}
	for _, host := range []string{"spark1", "spark2", "spark3"} {
		if args := l.on(host, "ps", "-eo", "args").must(t).out; strings.Contains(args, token) || !strings.Contains(args, "ray start") {
			t.Errorf("the arguments on %s have the token, or no Ray:\n%s", host, args)
		}
	}
	if out := l.on("spark3", "sparkrun", "ps", "cluster").must(t).out; !strings.Contains(out, "spark1: rank 0 (ray-head), rank 1 (command)") || !strings.Contains(out, "spark3: rank 3 (ray-workers)") {
		t.Errorf("ps names no stages:\n%s", out)
	}
	l.do("kill", "spark3")
	lost := "stage ray-workers, spark3 does not answer; the job goes on without it"
	eventually(t, 2*time.Minute, "told: "+lost, func() bool { return strings.Contains(said(), lost) })
	if err := os.WriteFile(filepath.Join(folder, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	end := r.wait()
	if end.code != 7 {
		t.Errorf("want the command's code 7: %s", end)
	}
	_, line, _ := strings.Cut(end.out, "{")
	var got struct {
		Seen                map[string]string
		Address, Mode, Rank string
	}
	if err := json.Unmarshal([]byte("{"+line), &got); err != nil {
		t.Fatalf("%v: %s", err, end)
	}
	if d := cmp.Diff(map[string]string{"192.168.100.11": "spark1", "192.168.100.12": "spark2", "192.168.100.13": "spark3"}, got.Seen); d != "" {
		t.Error(d)
	}
	if !strings.HasPrefix(got.Address, "192.168.100.11:2") || got.Mode != "token" || got.Rank != "" {
		t.Errorf("the command's variables: %+v", got)
	}
	for _, want := range []string{"stage ray-head is ready", "stage ray-workers is ready", "stage command, rank 1 on spark1: exit 7"} {
		if !strings.Contains(said(), want) {
			t.Errorf("not told %q: %s", want, said())
		}
	}
	l.assertNothingLeft("spark1", "spark2")
	for _, host := range []string{"spark1", "spark2"} {
		for line := range strings.Lines(l.on(host, "ss", "-Hltnp").must(t).out) {
			if !strings.Contains(line, "sparkrun") {
				t.Errorf("%s still listens: %s", host, line)
			}
		}
		if out := l.on(host, "ls", "/dev/shm").must(t).out; strings.Contains(out, "plasma") {
			t.Errorf("shared memory left on %s: %s", host, out)
		}
	}
}
