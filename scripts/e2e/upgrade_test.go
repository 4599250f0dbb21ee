package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// streamed is a rank that writes bytes of all kinds to both streams for about
// 3 s, in pieces that no line ends, and keeps a copy of its own beside them. It
// ends by a code that nobody else would give.
const streamed = `
import os, random, sys, time
r = random.Random(int(os.environ["RANK"]))
with open(sys.argv[1] + "." + os.environ["RANK"], "wb") as copy:
    for i in range(300):
        piece = r.randbytes(r.randrange(1, 20000))
        os.write(2, b"%d\n" % i)
        for at in range(0, len(piece), 7000):
            sys.stdout.buffer.write(piece[at:at + 7000])
            sys.stdout.buffer.flush()
        copy.write(piece)
        copy.flush()
        time.sleep(0.01)
    while os.environ["RANK"] == "1" and not os.path.exists(sys.argv[1] + ".go"):
        time.sleep(0.05)
sys.exit(40 + int(os.environ["RANK"]))
`

// The agent of a rank's machine is killed under readers of its output, and
// started again: the same build, another one in its place, and one that comes
// only after the rank's end. Shim and rank stay the processes they were, every
// byte of their output reaches the readers once and in order, and the exit code
// is the rank's.
func TestAgentReplacedUnderReaders(t *testing.T) {
	dir := scratch(t)
	script := filepath.Join(dir, "streamed.py")
	if err := os.WriteFile(script, []byte(streamed), 0o644); err != nil {
		t.Fatal(err)
	}
	next := filepath.Join(dir, "sparkrun")
	// As somebody builds it by hand: its shims are the program itself, those before it are not.
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-X main.version=upgraded", "-o", next, "../../cmd/sparkrun")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build sparkrun: %v\n%s", err, out)
	}
	l := up(t, 2, "--topology", "pair")
	for _, tt := range []struct {
		name    string
		upgrade bool
		late    bool // the agent comes back when the rank has ended
	}{
		{name: "killed"}, {name: "upgraded", upgrade: true}, {name: "late", late: true},
	} {
		copied := filepath.Join(dir, tt.name)
		// Rank 0 is over before the agent of rank 1's machine comes back, or after.
		run := l.start("spark1", "sparkrun", "launch", "exec", "--on", "spark1,spark2", "--name", tt.name, "--on-failure", "continue", "--output", "files="+copied+".launch", "--",
			python, script, copied)
		eventually(t, 30*time.Second, "output", func() bool { return size(copied+".1") > 1000 })
		reader := l.start("spark1", "sparkrun", "logs", "-f", tt.name, "--rank", "1", "--output", "files="+copied+".logs")
		eventually(t, 30*time.Second, "output at the reader", func() bool { return size(copied+".logs/rank-1.out") > 1000 })
		before := l.ranksOn("spark2", "streamed.py")
		program := l.on("spark2", "sh", "-c", "readlink /proc/$(pgrep -of 'sparkrun shim')/exe").must(t).out
		if inMemory := strings.HasPrefix(program, "/memfd:sparkrun-shim"); inMemory == tt.late {
			t.Errorf("%s: the shim runs %s", tt.name, program)
		}

		l.do("kill", "spark2", "--agent")
		if tt.upgrade {
			replace(t, next, "/var/tmp/sparkrun-lab/"+l.name+"/bin/sparkrun")
		}
		written := size(copied + ".1")
		eventually(t, 30*time.Second, "the rank writes without an agent", func() bool { return size(copied+".1") > written || tt.late })
		during := l.ranksOn("spark2", "streamed.py")
		if tt.late {
			touch(t, copied+".go")
			eventually(t, time.Minute, "the rank's end", func() bool { return !strings.Contains(l.processes("spark2"), "streamed.py") })
		}
		began := time.Now()
		l.do("start", "spark2", "--agent")
		if !tt.late {
			eventually(t, 30*time.Second, "the agent has its shim again", func() bool {
				return l.on("spark1", "sparkrun", "status", "--wait-nodes", "2").code == 0 && l.jobs("spark1")[tt.name].State == "running"
			})
			t.Logf("%s: attached again %s after its start began", tt.name, time.Since(began).Round(10*time.Millisecond))
			if after := l.ranksOn("spark2", "streamed.py"); len(before) != 2 || !slices.Equal(before, during) || !slices.Equal(before, after) {
				t.Errorf("%s: shim and rank were %v, %v without an agent, and %v with the new one", tt.name, before, during, after)
			}
			touch(t, copied+".go")
		}
		r := run.wait()
		for rank, host := range []string{"spark1", "spark2"} {
			if want := fmt.Sprintf("rank %d on %s: exit %d", rank, host, 40+rank); !strings.Contains(r.err, want) {
				t.Errorf("%s: want %q, got %s", tt.name, want, r)
			}
		}
		if r.code != 40 && r.code != 41 {
			t.Errorf("%s: want 40 or 41, whichever came first: %s", tt.name, r)
		}
		reader.wait().must(t)
		for _, read := range []string{".launch/rank-0", ".launch/rank-1", ".logs/rank-1"} {
			_, rank, _ := strings.Cut(read, "-")
			sameBytes(t, copied+read+".out", copied+"."+rank)
			want := ""
			for i := range 300 {
				want += fmt.Sprintf("%d\n", i)
			}
			if got, _ := os.ReadFile(copied + read + ".err"); string(got) != want {
				t.Errorf("%s: stderr has %d bytes, want %d: 0 to 299, a line each", read, len(got), len(want))
			}
		}
		l.assertNothingLeft("spark1", "spark2")
	}
	var st struct {
		Nodes []struct{ Host, Version string }
	}
	if err := json.Unmarshal([]byte(l.on("spark1", "sparkrun", "status", "--json").must(t).out), &st); err != nil {
		t.Fatal(err)
	}
	for _, n := range st.Nodes {
		if (n.Version == "upgraded") != (n.Host == "spark2") {
			t.Errorf("the agent of %s is %q", n.Host, n.Version)
		}
	}
	r := l.on("spark1", "sparkrun", "version", "--cluster").must(t)
	if !strings.Contains(r.err, "versions differ:") || !strings.Contains(r.err, "upgraded on spark2") || !strings.Contains(r.out, "upgraded") {
		t.Errorf("the cluster runs two versions, and this is all that is said: %s", r)
	}
}

// counts is a rank that counts until it is told to end, and says how far it came.
const counts = `
import os, sys, time
n = 0
while not os.path.exists(sys.argv[1]):
    n += 1
    print(n, flush=True)
    time.sleep(0.05)
print("last", n)
sys.exit(7)
`

// The cluster goes from this protocol to the next, machine by machine, under a job, while one voter is
// dead. The job's processes stay the same; the dead one hinders nobody, but entries of the new kind as long as the
// record knows it as an old one; and once it has been seen with the new release, it may be dead again.
func TestUpgradeWithADeadVoter(t *testing.T) {
	t.Parallel()
	now, next := nextRelease(t)
	dir := scratch(t)
	script, enough := filepath.Join(dir, "counts.py"), filepath.Join(dir, "enough")
	check(t, os.WriteFile(script, []byte(counts), 0o644))
	l := up(t, 3)
	l.on("spark1", "sparkrun", "launch", "-d", "--name", "long", "exec", "--on", "spark1,spark2", "--on-failure", "continue", "--",
		python, script, enough).must(t)
	eventually(t, time.Minute, "both ranks count", func() bool {
		return strings.Count(l.on("spark1", "sparkrun", "logs", "long").out, " 5\n") == 2
	})
	processes := func() (all []string) {
		for _, host := range []string{"spark1", "spark2"} {
			all = append(append(all, host), l.ranksOn(host, "counts.py")...)
		}
		return all
	}
	before := processes()
	if len(before) != 6 {
		t.Fatalf("want a shim and a rank on each of two machines: %v", before)
	}
	goesOn := func(when string) {
		t.Helper()
		if now := processes(); !slices.Equal(before, now) {
			t.Errorf("%s: the job's processes were %v, and are %v", when, before, now)
		}
		eventually(t, time.Minute, when+": a launch", func() bool {
			return l.on("spark1", "sparkrun", "launch", "exec", "--nodes", "2", "--", "true").code == 0
		})
	}
	protocols := func() map[string]int {
		var st struct {
			Nodes []struct {
				Host     string
				Protocol int
			}
		}
		_ = json.Unmarshal([]byte(l.on("spark1", "sparkrun", "status", "--json").out), &st) // then there is none
		by := map[string]int{}
		for _, n := range st.Nodes {
			by[n.Host] = n.Protocol
		}
		return by
	}
	newKind := func() result { return l.on("spark1", "sparkrun", "token", "create") }

	l.do("kill", "spark3")
	replace(t, next, "/var/tmp/sparkrun-lab/"+l.name+"/bin/sparkrun")
	for _, host := range []string{"spark1", "spark2"} {
		l.do("kill", host, "--agent")
		l.do("start", host, "--agent")
		eventually(t, time.Minute, host+" is upgraded", func() bool { return protocols()[host] == now+1 })
		goesOn(host + " is upgraded")
	}
	old := fmt.Sprintf("spark3 runs a release of protocol %d, and an entry of protocol %d", now, now+1)
	if r := newKind(); r.code == 0 || !strings.Contains(r.err, old) || !strings.Contains(r.err, "sparkrun node remove spark3") {
		t.Errorf("an entry of a kind that spark3 may not know; want %q: %s", old, r)
	}
	l.do("start", "spark3")
	eventually(t, time.Minute, "an entry of the new kind, once spark3 is back with the new release", func() bool { return newKind().code == 0 })
	l.do("kill", "spark3")
	eventually(t, time.Minute, "the others go on without spark3", func() bool { return l.on("spark1", "sparkrun", "token", "create").code == 0 })
	// Nor does a leader that has never heard of it need it.
	leader := ""
	eventually(t, time.Minute, "a leader", func() bool { leader = l.leader("spark1"); return leader != "" })
	l.do("kill", leader, "--agent")
	l.do("start", leader, "--agent")
	eventually(t, time.Minute, "an entry of the new kind, while spark3 is dead", func() bool { return newKind().code == 0 })
	goesOn("spark3 is dead again")

	touch(t, enough)
	eventually(t, time.Minute, "the job ends with its own exit code", func() bool {
		j := l.jobs("spark1")["long"]
		return j.ExitCode != nil && *j.ExitCode == 7
	})
	for _, rank := range []string{"0", "1"} {
		lines := strings.Fields(l.on("spark1", "sparkrun", "logs", "long", "--rank", rank, "--output", "raw").must(t).out)
		for i, line := range lines {
			if last := i >= len(lines)-2; !last && line != fmt.Sprint(i+1) || last && i == len(lines)-1 && line != fmt.Sprint(len(lines)-2) {
				t.Fatalf("rank %s: line %d of %d is %q", rank, i+1, len(lines), line)
			}
		}
	}
}

// nextRelease is a build of the next protocol, in which tokens are of a kind that came with it, and which protocol is now's.
func nextRelease(t testing.TB) (now int, program string) {
	t.Helper()
	var v struct{ Protocol int }
	out, err := exec.Command(binary, "version", "--json").Output()
	check(t, err)
	check(t, json.Unmarshal(out, &v))
	return v.Protocol, build(t, seeded{edits: []edit{
		{"rendezvous/protocol.go", fmt.Sprintf("const Protocol = %d\n", v.Protocol), fmt.Sprintf("const Protocol = %d\n", v.Protocol+1)},
		{"rendezvous/protocol.go", "var since = map[Kind]int{", "var since = map[Kind]int{KindToken: Protocol"},
	}}.lay(t))
}

// ranksOn are the PIDs of shims, and of ranks that run a script, on a host.
func (l *lab) ranksOn(host, script string) []string {
	l.t.Helper()
	var pids []string
	for line := range strings.Lines(l.processes(host)) {
		if strings.Contains(line, "sparkrun shim") || strings.Contains(line, script) && !strings.Contains(line, "sparkrun launch") {
			pids = append(pids, strings.Fields(line)[0])
		}
	}
	return pids
}

// replace puts a program in another's place, as a package manager does.
func replace(t testing.TB, from, to string) {
	t.Helper()
	was, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(was, b) {
		t.Fatal("the other build is the same")
	}
	if err := os.WriteFile(to+".new", b, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(to+".new", to); err != nil {
		t.Fatal(err)
	}
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		t.Fatal(err)
	}
}

func size(path string) int64 {
	fi, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return fi.Size()
}

func sameBytes(t *testing.T, got, want string) {
	t.Helper()
	a, err := os.ReadFile(got)
	if err != nil {
		t.Error(err)
	}
	b, err := os.ReadFile(want)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		at := 0
		for at < min(len(a), len(b)) && a[at] == b[at] {
			at++
		}
		t.Errorf("%s has %d bytes, the rank wrote %d; they differ from byte %d on", filepath.Base(got), len(a), len(b), at)
	}
}
