package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// One lab of three for all that leaves the hosts as they were.
func TestThreeHosts(t *testing.T) {
	l := up(t, 3)
	for name, test := range map[string]func(*testing.T, *lab){
		"TorchAllReduce":      testTorchAllReduce,
		"FailingRank":         testFailingRank,
		"NeitherLaunchedNor":  testNeitherLaunchedNorRan,
		"Interrupt":           testInterrupt,
		"HangUpDetaches":      testHangUpDetaches,
		"BadInput":            testBadInput,
		"CallingUser":         testCallingUser,
		"Leftovers":           testLeftovers,
		"ExitCodesAndStreams": testExitCodesAndStreams,
		"OutputAfterwards":    testOutputAfterwards,
		"Staged":              testStaged,
		"Terminal":            testTerminal,
		"Window":              testWindow,
		"Exec":                testExec,
		"Stdin":               testStdin,
		"RealTorchrun":        testRealTorchrun,
		"DetachedTerminal":    testDetachedTerminal,
	} {
		t.Run(name, func(t *testing.T) {
			on := &lab{t: t, name: l.name}
			test(t, on)
			on.assertNothingLeft("spark1", "spark2", "spark3")
		})
	}
}

func testTorchAllReduce(t *testing.T, l *lab) {
	script, err := filepath.Abs("testdata/allreduce.py")
	if err != nil {
		t.Fatal(err)
	}
	r := l.on("spark2", "sparkrun", "launch", "torchrun", "--nodes", "3", "--nproc-per-node", "2", "--python", python, "--", script).must(t)
	type report struct {
		Rank int
		Sum  float64
		Env  map[string]string
	}
	seen := map[int]bool{}
	ports := map[string]bool{}
	for line := range strings.Lines(r.out) {
		tag, text, _ := strings.Cut(line, " ")
		var got report
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		if tag != fmt.Sprintf("[%d]", got.Rank) || seen[got.Rank] {
			t.Errorf("rank %d reports under %s (again: %v)", got.Rank, tag, seen[got.Rank])
		}
		seen[got.Rank] = true
		if got.Sum != 21 {
			t.Errorf("rank %d: sum %v, want 21", got.Rank, got.Sum)
		}
		node := got.Rank / 2
		want := map[string]string{
			"RANK": fmt.Sprint(got.Rank), "LOCAL_RANK": fmt.Sprint(got.Rank % 2), "GROUP_RANK": fmt.Sprint(node),
			"ROLE_RANK": fmt.Sprint(got.Rank), "ROLE_NAME": "default", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "6",
			"GROUP_WORLD_SIZE": "3", "ROLE_WORLD_SIZE": "6", "MASTER_ADDR": "192.168.100.11",
			"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_USE_AGENT_STORE": "False",
			"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "OMP_NUM_THREADS": "1",
			"NCCL_NET": "IB", "NCCL_NET_PLUGIN": "none", "NCCL_IB_HCA": "=rocep1s0f0,roceP2p1s0f0",
			"NCCL_IB_ROCE_VERSION_NUM": "2", "NCCL_IB_ADDR_FAMILY": "AF_INET", "NCCL_SOCKET_IFNAME": "=enp1s0f0np0",
			"GLOO_SOCKET_IFNAME": "enp1s0f0np0", "UCX_NET_DEVICES": "enp1s0f0np0", "OMPI_MCA_btl_tcp_if_include": "enp1s0f0np0",
			"SPARKRUN_HOST": fmt.Sprintf("spark%d", node+1), "SPARKRUN_NODE_RANK": fmt.Sprint(node),
		}
		for name, value := range want {
			if got.Env[name] != value {
				t.Errorf("rank %d: %s=%q, want %q", got.Rank, name, got.Env[name], value)
			}
		}
		if got.Env["TORCHELASTIC_RUN_ID"] == "" || got.Env["TORCHELASTIC_RUN_ID"] != got.Env["SPARKRUN_JOB"] {
			t.Errorf("rank %d: run id %q, job %q", got.Rank, got.Env["TORCHELASTIC_RUN_ID"], got.Env["SPARKRUN_JOB"])
		}
		for _, never := range []string{"NCCL_IB_GID_INDEX", "NCCL_TIMEOUT", "PMI_SIZE"} {
			if v, set := got.Env[never]; set {
				t.Errorf("rank %d: %s=%q, want it unset", got.Rank, never, v)
			}
		}
		ports[got.Env["MASTER_PORT"]] = true
	}
	if len(seen) != 6 {
		t.Errorf("%d ranks reported, want 6:\n%s", len(seen), r)
	}
	if len(ports) != 1 {
		t.Errorf("MASTER_PORT differs among ranks: %v", ports)
	}
	for p := range ports {
		if p < "29500" || p > "29999" {
			t.Errorf("MASTER_PORT %s is outside 29500-29999", p)
		}
	}
}

func testFailingRank(t *testing.T, l *lab) {
	r := l.on("spark2", "sparkrun", "launch", "exec", "--nodes", "3", "--", "sh", "-c", "test $RANK != 1 || exit 7; sleep 60")
	if r.code != 7 || r.took > 10*time.Second {
		t.Errorf("want exit 7 within 2 s, got %s", r)
	}
	if !strings.Contains(r.err, "rank 1 on spark2: exit 7") {
		t.Errorf("want rank 1 and its host named, got %s", r)
	}
}

// ps, logs and stop from a host that neither launched nor runs the job.
func testNeitherLaunchedNorRan(t *testing.T, l *lab) {
	id := strings.TrimSpace(l.on("spark1", "sparkrun", "launch", "exec", "-d", "--on", "spark2", "--name", "elsewhere", "--",
		"sh", "-c", "echo started; sleep 300").must(t).out)
	eventually(t, 30*time.Second, "the job's output", func() bool {
		return strings.Contains(l.on("spark3", "sparkrun", "logs", "elsewhere").out, "[0] started")
	})
	if j := l.jobs("spark3")["elsewhere"]; j.ID != id || j.State != "running" || j.ExitCode != nil {
		t.Errorf("ps on spark3: %+v, want job %s running", j, id)
	}
	l.on("spark3", "sparkrun", "stop", id).must(t)
	if j := l.jobs("spark3")["elsewhere"]; j.State != "stopped" || j.ExitCode == nil || *j.ExitCode != 143 {
		t.Errorf("after stop: %+v, want stopped with 143", j)
	}
	if out := l.on("spark3", "sparkrun", "logs", id).must(t).out; !strings.Contains(out, "[0] started") {
		t.Errorf("logs of an ended job: %q", out)
	}
}

// signalled starts a job whose ranks answer signals as the line says, and gives
// the launcher's process once all ranks run.
func signalled(t *testing.T, l *lab, name, line string) *running {
	t.Helper()
	run := l.start("spark3", "sparkrun", "launch", "exec", "--nodes", "3", "--name", name, "--grace", "5s", "--", "sh", "-c", line)
	eventually(t, 30*time.Second, name+" runs", func() bool { return l.jobs("spark1")[name].State == "running" })
	eventually(t, 30*time.Second, name+" is ready", func() bool {
		return strings.Count(l.on("spark1", "sparkrun", "logs", name).out, "ready") == 3
	})
	return run
}

func testInterrupt(t *testing.T, l *lab) {
	// What Python saves on KeyboardInterrupt is saved, and what minds TERM alone gets it within the grace.
	run := signalled(t, l, "ctrl-c", `[ $RANK != 2 ] || { trap "" INT; trap "echo bye; exit 0" TERM
echo ready; while :; do sleep 0.1; done; }
exec python3 -uc "
import time
print('ready')
try:
    time.sleep(100)
except KeyboardInterrupt:
    print('bye')
"`)
	run.cmd.Process.Signal(syscall.SIGINT)
	r := run.wait()
	if r.code != 130 || strings.Count(r.out, "bye") != 3 || strings.Contains(r.err, "Python") {
		t.Errorf("Ctrl-C: want 130 and a last word of each rank, got %s", r)
	}

	run = signalled(t, l, "twice", `trap "" INT TERM; echo ready; while :; do sleep 0.1; done`)
	run.cmd.Process.Signal(syscall.SIGINT)
	time.Sleep(300 * time.Millisecond) // a person needs longer
	pressed := time.Now()
	run.cmd.Process.Signal(syscall.SIGINT)
	r = run.wait()
	if took := time.Since(pressed); r.code != 130 || took > 4*time.Second {
		t.Errorf("Ctrl-C twice: want 130 at once (grace is 5 s), got it after %s: %s", took, r)
	}
}

func testHangUpDetaches(t *testing.T, l *lab) {
	run := signalled(t, l, "laptop", `echo ready; sleep 300`)
	run.cmd.Process.Signal(syscall.SIGHUP)
	run.wait()
	if j := l.jobs("spark2")["laptop"]; j.State != "running" {
		t.Errorf("after a hang-up: %+v, want running", j)
	}
	l.on("spark2", "sparkrun", "stop", "--kill", "laptop").must(t)

	// Ctrl-Z, and the terminal closes: HUP and CONT, from the kernel or the shell.
	run = signalled(t, l, "closed", `echo ready; while :; do echo on; sleep 0.1; done`)
	said := func() int { return strings.Count(l.on("spark2", "sparkrun", "logs", "closed").must(t).out, "on\n") }
	send := func(sig string) { l.on("spark3", "pkill", sig, "-f", "^sparkrun launch").must(t) } // to itself: the lab passes no TSTP on
	send("-TSTP")
	eventually(t, time.Minute, "the ranks are suspended", func() bool {
		before := said()
		time.Sleep(time.Second) // that nothing comes is told by nothing
		return said() == before
	})
	eventually(t, time.Minute, "ps says so", func() bool {
		return strings.Contains(l.on("spark1", "sparkrun", "ps", "closed").must(t).out, "suspended on spark1,spark2,spark3")
	})
	send("-HUP")
	send("-CONT")
	if r := run.wait(); r.code != 129 {
		t.Errorf("a hang-up while suspended: want 129, got %s", r)
	}
	before := said()
	eventually(t, time.Minute, "the ranks go on", func() bool { return said() > before })
	eventually(t, time.Minute, "ps says so", func() bool {
		return !strings.Contains(l.on("spark1", "sparkrun", "ps", "closed").must(t).out, "suspended")
	})
	l.on("spark2", "sparkrun", "stop", "--kill", "closed").must(t)
}

func testBadInput(t *testing.T, l *lab) {
	l.on("spark2", "mkdir", "-p", "/tmp/only-on-spark2").must(t)
	l.on("spark2", "sh", "-c", "cp /bin/true /tmp/only-on-spark2/prog; touch /tmp/only-on-spark2/train.py").must(t)
	l.on("spark1", "useradd", "-M", "-G", "sparkrun", "alice").must(t)
	for _, c := range []struct {
		name string
		args string
		says []string
	}{
		{"more nodes than there are", "launch exec --nodes 4 -- true", []string{"4 nodes", "spark1", "spark2", "spark3"}},
		{"unknown host", "launch exec --on spark9 -- true", []string{"spark9", "spark1"}},
		{"unknown workload", "launch torchrn -- x.py", []string{"torchrn", "torchrun"}},
		{"program missing on one node", "launch exec --nodes 3 --workdir / -- /tmp/only-on-spark2/prog", []string{"spark1", "/tmp/only-on-spark2/prog", "not found"}},
		{"program missing everywhere", "launch exec --nodes 3 -- pyhton3", []string{"pyhton3", "not found"}},
		{"script missing on one node", "launch torchrun --nodes 3 --workdir /tmp --python /usr/bin/python3 -- /tmp/only-on-spark2/train.py", []string{"train.py", "not found"}},
		{"working directory missing", "launch exec --nodes 3 --workdir /tmp/only-on-spark2 -- true", []string{"/tmp/only-on-spark2", "not found"}},
		{"no command", "launch exec", []string{"command"}},
		{"zero ranks", "launch exec --nproc-per-node 0 -- true", []string{"nproc-per-node"}},
		{"job that is not there", "logs nosuchjob", []string{"nosuchjob"}},
		{"stop of nothing", "stop nosuchjob", []string{"nosuchjob"}},
		{"a second init", "init", []string{"in a cluster already"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := l.on("spark2", append([]string{"sparkrun"}, strings.Fields(c.args)...)...)
			if r.code == 0 || r.out != "" {
				t.Errorf("want a failure and no output, got %s", r)
			}
			for _, want := range c.says {
				if !strings.Contains(r.err, want) {
					t.Errorf("error does not name %q: %s", want, r.err)
				}
			}
		})
	}
	t.Run("joining a second cluster", func(t *testing.T) {
		r := l.start("spark2", "sh", "-c", "sparkrun token create 2>/dev/null | sparkrun join 172.30.0.11 --token-file -").wait()
		if r.code == 0 || !strings.Contains(r.err, "in a cluster already") {
			t.Errorf("got %s", r)
		}
	})
	t.Run("user missing on the other nodes", func(t *testing.T) {
		r := l.on("spark1", "su", "alice", "-c", "sparkrun launch exec --nodes 3 --workdir / -- true")
		if r.code == 0 || !strings.Contains(r.err, `"alice"`) || !strings.Contains(r.err, "spark2") && !strings.Contains(r.err, "spark3") {
			t.Errorf("got %s", r)
		}
	})
}

// A job runs as the user who launched it, by name, and not as root.
func testCallingUser(t *testing.T, l *lab) {
	for _, h := range []string{"spark1", "spark2", "spark3"} {
		l.on(h, "sh", "-c", "groupadd -f helpers; useradd -M -G sparkrun,helpers bob").must(t)
	}
	r := l.on("spark2", "su", "bob", "-c", "sparkrun launch exec --nodes 3 --workdir / -- sh -c 'id -un; id -Gn; echo $HOME'").must(t)
	for rank := range 3 {
		for _, want := range []string{"bob", "bob sparkrun helpers", "/home/bob"} {
			if !strings.Contains(r.out, fmt.Sprintf("[%d] %s\n", rank, want)) {
				t.Errorf("rank %d: want %q in %s", rank, want, r)
			}
		}
	}
	l.on("spark2", "sparkrun", "launch", "exec", "-d", "--name", "roots", "--", "sleep", "300").must(t)
	if r := l.on("spark2", "su", "bob", "-c", "sparkrun stop roots"); r.code == 0 || !strings.Contains(r.err, "not allowed") {
		t.Errorf("bob stops root's job: %s", r)
	}
	l.on("spark2", "sparkrun", "stop", "roots").must(t)
}

// What a rank leaves behind in other sessions goes with its attempt.
func testLeftovers(t *testing.T, l *lab) {
	r := l.on("spark1", "sparkrun", "launch", "exec", "--nodes", "3", "--grace", "1s", "--", "sh", "-c",
		`setsid sh -c 'trap "" TERM; sleep 600 & while :; do sleep 1; done' >/dev/null 2>&1 & test $RANK != 2 || exit 3; sleep 600`)
	if r.code != 3 || r.took > 20*time.Second {
		t.Errorf("want 3, got %s", r)
	}
}

func testExitCodesAndStreams(t *testing.T, l *lab) {
	r := l.on("spark1", "sparkrun", "launch", "exec", "--nodes", "2", "--", "sh", "-c", "kill -SEGV $$")
	if r.code != 139 || !regexp.MustCompile(`rank [01] on spark[12]: killed by SIGSEGV`).MatchString(r.err) {
		t.Errorf("want 139 and SIGSEGV, got %s", r)
	}
	r = l.on("spark1", "sparkrun", "launch", "exec", "--nodes", "2", "--", "sh", "-c", "echo to-out; echo to-err >&2").must(t)
	if strings.Contains(r.out, "to-err") || strings.Count(r.out, "to-out") != 2 || strings.Count(r.err, "to-err") != 2 {
		t.Errorf("the streams are mixed: %s", r)
	}
	// Ten thousand lines from each rank arrive whole and in order.
	r = l.on("spark3", "sparkrun", "launch", "exec", "--nodes", "3", "--", "seq", "10000").must(t)
	for rank := range 3 {
		n := 0
		for line := range strings.Lines(r.out) {
			if text, ok := strings.CutPrefix(line, fmt.Sprintf("[%d] ", rank)); ok {
				if n++; text != fmt.Sprintf("%d\n", n) {
					t.Fatalf("rank %d line %d is %q", rank, n, text)
				}
			}
		}
		if n != 10000 {
			t.Errorf("rank %d: %d lines, want 10000", rank, n)
		}
	}
}

// What ranks wrote can be had later, from a host that ran none of them, whole or in
// part, and byte for byte.
func testOutputAfterwards(t *testing.T, l *lab) {
	const bytes = "a\x00\xffb"
	id := strings.TrimSpace(l.on("spark3", "sparkrun", "launch", "exec", "-d", "--on", "spark1,spark2", "--name", "words", "--", "sh", "-c",
		`seq 1000; printf 'a\000\377b'; echo of $RANK >&2`).must(t).out)
	eventually(t, 30*time.Second, "its end", func() bool { return l.jobs("spark3")["words"].State == "completed" })
	seq := ""
	for i := range 1000 {
		seq += fmt.Sprintln(i + 1)
	}
	logs := func(args ...string) result {
		t.Helper()
		return l.on("spark3", append([]string{"sparkrun", "logs", id}, args...)...).must(t)
	}
	if r := logs("--rank", "1", "--output", "raw"); r.out != seq+bytes || r.err != "of 1\n" {
		t.Errorf("raw: %d bytes, want %d; %q", len(r.out), len(seq)+len(bytes), r.err)
	}
	// What a rank wrote to both of its streams within a moment has no order.
	last := "[0] 1000\n[0] " + bytes + "\n"
	if r := logs("--node", "spark1", "--tail", "3"); (r.out != last || r.err != "[0] of 0\n") &&
		(r.out != "[0] 999\n"+last || r.err != "") {
		t.Errorf("the last lines: %s", r)
	}
	if r := logs("--rank", "0", "--grep", "^99"); strings.Count(r.out, "\n") != 11 || r.err != "" {
		t.Errorf("what matches: %s", r)
	}
	if r := logs("--since", "1h"); strings.Count(r.out, "\n") != 2*1001 {
		t.Errorf("of the last hour: %d lines", strings.Count(r.out, "\n"))
	}
	for line := range strings.Lines(logs("--output", "json", "--tail", "3").out) {
		var o struct {
			Job  string
			Time time.Time
		}
		if err := json.Unmarshal([]byte(line), &o); err != nil || o.Job != id || time.Since(o.Time) > time.Hour {
			t.Errorf("object %s: %v", line, err)
		}
	}
	got := l.on("spark3", "sh", "-c", "d=$(mktemp -d); sparkrun logs "+id+" --output files=$d/new; cd $d/new; cat rank-1.out; cat rank-*.err; ls; rm -r $d").must(t).out
	if got != seq+bytes+"of 0\nof 1\nrank-0.err\nrank-0.out\nrank-1.err\nrank-1.out\n" {
		t.Errorf("files: %d bytes, ending with %.99q", len(got), got[max(0, len(got)-99):])
	}
}

// A terminal that was left is found again from another host, by who may.
func testTerminal(t *testing.T, l *lab) {
	at := func(host, typed, command string) result {
		t.Helper()
		// script(1) gives a terminal; what is typed waits for the program's own words.
		return l.on(host, "sh", "-c", `(`+typed+`) | script -qefc "`+command+`" /dev/null`)
	}
	said := func(word string) string {
		return `until sparkrun logs --output raw shell 2>/dev/null | grep -q '` + word + `'; do sleep 0.1; done; `
	}
	r := at("spark1", said("size 24 80")+`printf 'hello\n'; `+said("got hello")+`printf '\020\021'`,
		"stty rows 24 cols 80; sparkrun launch -t --name shell exec --on spark2 -- sh -c 'echo size \\$(stty size); while read x; do echo got \\$x; test \\$x != 7 || exit 7; done'")
	if r.code != 0 || !strings.Contains(r.out, "got hello") || !strings.Contains(r.out, "sparkrun attach") {
		t.Errorf("detached: %s", r)
	}
	if j := l.jobs("spark3")["shell"]; j.State != "running" {
		t.Errorf("after detaching: %+v, want running", j)
	}
	if r := l.on("spark3", "sparkrun", "attach", "shell"); r.code != 125 || !strings.Contains(r.err, "the input device is not a TTY") {
		t.Errorf("attach without a terminal: %s", r)
	}
	l.on("spark3", "sh", "-c", "id dora 2>/dev/null || useradd -M -G sparkrun dora").must(t)
	if r := l.on("spark3", "su", "dora", "-c", "sparkrun attach shell"); r.code != 125 || !strings.Contains(r.err, "not allowed") {
		t.Errorf("attach to root's job: %s", r)
	}
	r = at("spark3", `printf 'again\n'; `+said("got again")+`printf '7\n'`, "sparkrun attach shell")
	if r.code != 7 || !strings.Contains(r.out, "got again") || !strings.Contains(r.out, "got 7") {
		t.Errorf("attached: %s", r)
	}
}

// rankRuns is the rank itself: its launcher's command line ends like it, and stands there before it.
var rankRuns = regexp.MustCompile(`(?m)^\d+ +\d+ +\S+ +sleep 300$`)

func TestStandalone(t *testing.T) {
	dir := scratch(t)
	l := up(t, 1, "--no-agent")
	r := l.on("spark1", "sparkrun", "launch", "exec", "--", "true")
	if r.code != 125 || !strings.Contains(r.err, "--standalone") {
		t.Errorf("without an agent: want 125 and a hint at --standalone, got %s", r)
	}
	script, err := filepath.Abs("testdata/allreduce.py")
	if err != nil {
		t.Fatal(err)
	}
	// Not root: a user that can read the script.
	b, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/allreduce.py", b, 0o644); err != nil {
		t.Fatal(err)
	}
	l.on("spark1", "useradd", "-M", "-d", dir, "carol").must(t)
	r = l.on("spark1", "su", "carol", "-c", "cd "+dir+" && sparkrun launch --standalone torchrun --nproc-per-node 3 --python "+python+" -- allreduce.py").must(t)
	if strings.Count(r.out, `"sum": 6.0`) != 3 {
		t.Errorf("want three sums of 6, got %s", r)
	}
	r = l.on("spark1", "su", "carol", "-c", "cd "+dir+" && sparkrun launch --standalone exec --nproc-per-node 2 -- sh -c 'exit $((RANK*5))'")
	if r.code != 5 {
		t.Errorf("want 5, got %s", r)
	}
	// The ranks end with their launcher, however it goes.
	run := l.start("spark1", "sparkrun", "launch", "--standalone", "exec", "--", "sh", "-c", "echo up; exec sleep 300")
	eventually(t, 30*time.Second, "the rank runs", func() bool { return rankRuns.MatchString(l.processes("spark1")) })
	l.on("spark1", "pkill", "-KILL", "-f", "launch --standalone").must(t)
	run.wait()
	l.assertNothingLeft("spark1")
}

// What lies on one host only, closed to others, runs on all as its user's own.
func testStaged(t *testing.T, l *lab) {
	for _, h := range []string{"spark1", "spark2", "spark3"} {
		l.on(h, "useradd", "-M", "-G", "sparkrun", "carol").must(t)
	}
	dir := fmt.Sprintf("/var/tmp/%s-staged", l.name)
	carol := func(line string) result {
		return l.on("spark2", "su", "carol", "-c", "mkdir -p "+dir+"/lib && cd "+dir+" && "+line)
	}
	defer func() { l.on("spark2", "rm", "-rf", dir).must(t) }()
	r := carol(`echo 'echo $(stat -c %U:%a lib/secret) $(cat link) $PWD' > run.sh && echo word > lib/secret && chmod 600 lib/secret && ln -s lib/secret link &&
		sparkrun launch exec --nodes 3 --stage . -- sh run.sh`).must(t)
	if n := strings.Count(r.out, "carol:600 word /"); n != 3 || strings.Contains(r.out, dir) {
		t.Errorf("want it on three hosts, in the job's folder: %s", r)
	}
	if r := carol("mkfifo lib/pipe && sparkrun launch exec --nodes 3 --stage . -- true"); r.code != 125 || !strings.Contains(r.err, "lib/pipe") {
		t.Errorf("want the pipe refused by its name: %s", r)
	}
	if r := carol("sparkrun launch exec --nodes 3 --stage /etc/shadow -- true"); r.code != 125 || !strings.Contains(r.err, "permission denied") {
		t.Errorf("want what carol may not read refused: %s", r)
	}
}
