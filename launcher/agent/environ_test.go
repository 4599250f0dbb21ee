package agent

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/login"
	"github.com/sparkrun/sparkrun/launcher/logs"
)

// environment is what a rank really got.
func (n *node) environment(as launcher.Assignment) map[string][]string {
	n.t.Helper()
	as.Spec.Stages[0].Argv = launcher.Lits("/usr/bin/env", "-0")
	n.launch(as)
	n.hear(launcher.Ended)
	got := map[string][]string{}
	for line := range strings.SplitSeq(strings.TrimSuffix(n.output(as.FirstRank), "\x00"), "\x00") {
		name, value, _ := strings.Cut(line, "=")
		got[name] = append(got[name], value)
	}
	return got
}

func TestTheLaterSettingWins(t *testing.T) {
	t.Setenv("AGENTS_OWN", "secret")
	n := newNode(t, func(c *Config) {
		c.Fabric = func(launcher.Assignment) ([]launcher.Setting, error) {
			return []launcher.Setting{
				{Name: "NCCL_IB_HCA", Value: "=rocep1s0f0", Source: "fabric"},
				{Name: "NCCL_DEBUG", Value: "WARN", Source: "fabric"},
				{Name: "SHELL", Value: "/bin/of-the-fabric", Source: "fabric"},
			}, nil
		}
	})
	as := n.as("", ranks(5, 1))
	as.Spec.Stages[0].Env = append(as.Spec.Stages[0].Env,
		launcher.Var{Name: "MASTER", Value: launcher.Value{{Ref: launcher.Head}, {Lit: ":"}, {Ref: launcher.Port}},
			Source: "torchrun"},
		launcher.Var{Name: "NCCL_DEBUG", Value: launcher.Lit("INFO"), Source: "torchrun"},
		launcher.Var{Name: "PATH", Value: launcher.Lit("/opt/bin:/usr/bin:/bin"), Source: "caller"},
		launcher.Var{Name: "NCCL_DEBUG", Value: launcher.Lit("TRACE"), Source: "--env"},
		launcher.Var{Name: "EMPTY", Value: launcher.Lit(""), Source: "--env"},
	)
	plans, _, err := n.a.Explain(n.ctx, as, "")
	must(t, err)
	got := n.environment(as)
	me := login.Self()
	want := map[string]string{
		"HOME": me.Home, "USER": me.Name, "LOGNAME": me.Name, // login
		"SHELL": "/bin/of-the-fabric", "NCCL_IB_HCA": "=rocep1s0f0", // login < fabric
		"NCCL_DEBUG": "TRACE", "PATH": "/opt/bin:/usr/bin:/bin", // fabric < spec, and in it the last
		"EMPTY": "", "MASTER": "127.0.0.1:0", "RANK": "5", "TORCHELASTIC_ERROR_FILE": errorPath(as, 5),
		"GATE": filepath.Join(n.base, "gate"), "WITNESS": filepath.Join(n.base, "witness"),
		"TEST_ID": strings.TrimPrefix(n.mark, "TEST_ID="),
	}
	if len(got["SPARKRUN_GANG"]) != 1 {
		t.Error("the shim's own mark is missing")
	}
	delete(got, "SPARKRUN_GANG")
	single := map[string]string{}
	for name, values := range got {
		single[name] = values[0]
		if len(values) > 1 {
			t.Errorf("%s is set %d times", name, len(values))
		}
	}
	if d := cmp.Diff(want, single); d != "" {
		t.Error(d)
	}
	// The dry run told the same, with the sources.
	sources := map[string]string{}
	for _, s := range plans[0].Env {
		sources[s.Name] = s.Source
		if s.Value != single[s.Name] {
			t.Errorf("dry run: %s=%s, the rank got %s", s.Name, s.Value, single[s.Name])
		}
	}
	if sources["NCCL_DEBUG"] != "--env" || sources["SHELL"] != "fabric" || sources["HOME"] != "login of "+me.Name ||
		len(plans[0].Env) != len(single) {
		t.Errorf("sources %v", sources)
	}
}

func TestRanksGetTheirOwnValues(t *testing.T) {
	n := newNode(t)
	as := n.as("", ranks(6, 3))
	st := &as.Spec.Stages[0]
	st.Env = []launcher.Var{{Name: "RANK", Value: launcher.Of(launcher.Rank)},
		{Name: "HOME", Value: launcher.Of(launcher.Rank)}} // over what all share
	plans, _, err := n.a.Explain(n.ctx, as, "")
	must(t, err)
	for i, p := range plans {
		for _, name := range []string{"RANK", "HOME"} {
			at := slices.IndexFunc(p.Env, func(s launcher.Setting) bool { return s.Name == name })
			if p.Rank != 6+i || p.Env[at].Value != strconv.Itoa(6+i) {
				t.Errorf("plan %d: rank %d, %+v", i, p.Rank, p.Env[at])
			}
		}
	}
}

// The fabric is read once a launch: netlink and sysfs take longer than all
// else that a node does.
func TestTheFabricIsReadOnce(t *testing.T) {
	reads := 0
	n := newNode(t, func(c *Config) {
		c.Fabric = func(launcher.Assignment) ([]launcher.Setting, error) { reads++; return nil, nil }
	})
	n.launch(n.as("true", ranks(0, 4)))
	n.hear(launcher.Ended)
	if reads != 1 {
		t.Errorf("read %d times", reads)
	}
}

// The program is looked for where the rank's own PATH says, and a relative one
// from the rank's working directory: prepare and exec must agree.
func TestWhereProgramsAreFound(t *testing.T) {
	n := newNode(t)
	program := func(parts ...string) {
		path := filepath.Join(append([]string{n.base}, parts...)...)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte("#!/bin/sh\necho "+strings.Join(parts, "/")+"\n"), 0o755))
	}
	program("a", "tool")
	program("b", "tool")
	program("here")
	must(t, os.MkdirAll(filepath.Join(n.base, "dir", "tool"), 0o755))
	must(t, os.MkdirAll(filepath.Join(n.base, "noexec"), 0o755))
	must(t, os.WriteFile(filepath.Join(n.base, "noexec", "tool"), nil, 0o644))
	in := func(dirs ...string) string {
		for i := range dirs {
			dirs[i] = filepath.Join(n.base, dirs[i])
		}
		return strings.Join(dirs, ":")
	}
	tests := map[string]struct{ argv0, path, want string }{
		"first in PATH":              {"tool", in("a", "b"), "a/tool"},
		"second":                     {"tool", in("none", "b", "a"), "b/tool"},
		"a folder of the name":       {"tool", in("dir", "b"), "b/tool"},
		"not executable":             {"tool", in("noexec", "b"), "b/tool"},
		"a relative folder in PATH":  {"tool", "none:b", "b/tool"},
		"relative to workdir":        {"./here", "", "here"},
		"relative, deeper":           {"a/tool", "", "a/tool"},
		"absolute":                   {filepath.Join(n.base, "b", "tool"), "", "b/tool"},
		"PATH is not for the agents": {"here", "/usr/bin:" + in(""), "here"},
	}
	i := 0
	for name, tt := range tests {
		i++
		as := n.as("", named(launcher.JobID(fmt.Sprintf("find%d", i))))
		st := &as.Spec.Stages[0]
		st.Argv = launcher.Lits(tt.argv0)
		st.Env = append(st.Env, launcher.Var{Name: "PATH", Value: launcher.Lit(tt.path)})
		n.launch(as)
		n.hear(launcher.Ended)
		b, err := os.ReadFile(filepath.Join(n.cfg.LogDir, string(as.Job), "1", "rank-0.out"))
		must(t, err)
		if got := strings.TrimSpace(string(b)); got != tt.want {
			t.Errorf("%s: ran %q, want %q", name, got, tt.want)
		}
	}
}

// someUser is a login in /etc/passwd that every Linux has and that is not us.
func someUser(t *testing.T) login.User {
	t.Helper()
	u, err := login.Find(t.Context(), "nobody")
	must(t, err)
	return u
}

// As root the ranks become the user; as anybody else the agent says that it
// cannot. Both are tested, by whoever we are.
func TestRanksOfAnotherUser(t *testing.T) {
	n := newNode(t)
	u := someUser(t)
	as := n.as(`witness; id -u; id -g; id -G; echo "$HOME $USER $LOGNAME"; exec ls -l /proc/self/exe >/dev/null`)
	as.Spec.User = u.Name
	must(t, os.WriteFile(filepath.Join(n.base, "witness"), nil, 0o666))
	must(t, os.Chmod(filepath.Join(n.base, "witness"), 0o666))
	if os.Geteuid() != 0 {
		as.Spec.User = "root"
		n.prepare(as)
		if text := n.hear(launcher.Refused).Text; !strings.Contains(text, "run it as root") {
			t.Error(text)
		}
		return
	}
	n.launch(as)
	if ev := n.hear(launcher.Exited); ev.Exit.Failed() {
		t.Fatalf("%+v", ev.Exit)
	}
	n.hear(launcher.Ended)
	var groups []string
	for _, g := range u.Groups {
		groups = append(groups, fmt.Sprint(g))
	}
	want := fmt.Sprintf("%d\n%d\n%s\n%s nobody nobody\n", u.UID, u.GID, strings.Join(groups, " "), u.Home)
	var got strings.Builder // the shim's files are root's, and followers read them
	must(t, n.a.Logs(n.ctx, logs.Request{Key: key, Ranks: []int{0}, Follow: true}, func(c launcher.Chunk) error {
		got.Write(c.Data)
		return nil
	}))
	if d := cmp.Diff(want, got.String()); d != "" {
		t.Error(d)
	}
	fi, err := os.Stat(filepath.Join(n.cfg.LogDir, string(job), "1", "rank-0.out"))
	must(t, err)
	if fi.Mode().Perm()&0o077 != 0 {
		t.Errorf("the output has mode %s: everybody reads it", fi.Mode())
	}
}

// What the user may not reach is found in prepare, with his eyes: root's would
// let an attempt start and break at exec.
func TestPrepareLooksWithTheUsersEyes(t *testing.T) {
	if os.Geteuid() != 0 {
		u := login.Self()
		if err := u.Do(func() error { return u.May("/proc/1/environ", unix.R_OK) }); err == nil {
			t.Error("reads what is root's")
		}
		return
	}
	n := newNode(t)
	closed := filepath.Join(n.base, "closed")
	must(t, os.Mkdir(closed, 0o700))
	must(t, os.WriteFile(filepath.Join(closed, "prog"), []byte("#!/bin/sh\n"), 0o755))
	must(t, os.WriteFile(filepath.Join(n.base, "mine.py"), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(n.base, "mine"), []byte("#!/bin/sh\n"), 0o700))
	tests := map[string]func(*launcher.Stage){
		"working directory " + closed + ": permission denied for user nobody":             func(s *launcher.Stage) { s.Workdir = closed },
		"file " + n.base + "/mine.py: permission denied for user nobody":                  func(s *launcher.Stage) { s.Files = []string{"mine.py"} },
		`program "` + closed + `/prog": permission denied for user nobody`:                func(s *launcher.Stage) { s.Argv = launcher.Lits(closed + "/prog") },
		`program "./mine": permission denied for user nobody: give them access`:           func(s *launcher.Stage) { s.Argv = launcher.Lits("./mine") },
		`program "mine": ` + n.base + "/mine: permission denied for user nobody: give th": func(s *launcher.Stage) { s.Argv = launcher.Lits("mine"); addPath(s) },
	}
	for want, change := range tests {
		for user, refused := range map[string]bool{"nobody": true, "": false} {
			as := n.as("true")
			as.Spec.User = user
			change(&as.Spec.Stages[0])
			_, _, err := n.a.Explain(n.ctx, as, "")
			switch {
			case refused && (err == nil || !strings.Contains(err.Error(), want)):
				t.Errorf("got %v, want %q", err, want)
			case !refused && err != nil:
				t.Errorf("root is refused: %v", err)
			}
		}
	}
	// By his groups, and by these alone.
	must(t, os.Chmod(filepath.Join(n.base, "mine.py"), 0o640))
	for group, want := range map[int]bool{4242: true, 4343: false, 0: false} {
		must(t, os.Chown(filepath.Join(n.base, "mine.py"), 0, group))
		u := login.User{Name: "ada", UID: 65533, GID: 65533, Groups: []uint32{65533, 4242}, Switches: true}
		if err := u.Do(func() error { return u.May(filepath.Join(n.base, "mine.py"), unix.R_OK) }); (err == nil) != want {
			t.Errorf("group %d: %v", group, err)
		}
	}
	// No thread has kept the user's rights.
	for range 100 {
		if f, err := os.Open(filepath.Join(n.base, "mine.py")); err != nil {
			t.Fatal(err)
		} else {
			f.Close()
		}
	}
}

func FuzzParseKey(f *testing.F) {
	f.Add("abcd234567.1")
	f.Add("a.b.c")
	f.Add("abcd.18446744073709551616")
	f.Fuzz(func(t *testing.T, name string) {
		k, err := parseKey(name)
		if err == nil && (k.String() != name || strings.ContainsAny(name, "/\x00") || k.Generation == 0) {
			t.Errorf("%q: %+v", name, k)
		}
	})
}

// heldBySomebody listens on one address only.
func heldBySomebody(t *testing.T, network string, port int) {
	t.Helper()
	host := map[string]string{"tcp4": "127.0.0.1", "tcp6": "[::1]"}[network]
	l, err := net.Listen(network, fmt.Sprintf("%s:%d", host, port))
	must(t, err)
	t.Cleanup(func() { l.Close() })
}

func TestAPortThatIsFreeOnEveryAddress(t *testing.T) {
	n := newNode(t)
	// Three ports in a row that nobody holds, below those of connections.
	first := 0
	for first = 20000; first < 29000; first += 3 {
		free := 0
		for i := range 3 {
			if l, err := bindTo(first + i); err == nil {
				free++
				l.Close()
			}
		}
		if free == 3 {
			break
		}
	}
	heldBySomebody(t, "tcp4", first)
	held := []int{first + 1, first + 2}
	if _, err := os.Stat("/proc/net/if_inet6"); err == nil {
		heldBySomebody(t, "tcp6", first+2)
		held = held[:1]
	}
	for range 5 {
		l, port, err := n.a.holdPort(key, first, first+2)
		must(t, err)
		if !slices.Contains(held, port) {
			t.Errorf("port %d, want one of %v", port, held)
		}
		l.Close()
	}
	heldBySomebody(t, "tcp4", first+1)
	if len(held) == 2 {
		heldBySomebody(t, "tcp4", first+2)
	}
	if _, _, err := n.a.holdPort(key, first, first+2); err == nil || !strings.Contains(err.Error(), "ss -ltnp") {
		t.Errorf("error %v", err)
	}
}

// A port is free when it can be bound to without SO_REUSEADDR, and whoever
// connects before the start is refused, not dropped.
func TestAPortIsHeldStrictly(t *testing.T) {
	n := newNode(t)
	ear, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	waits := ear.Addr().(*net.TCPAddr).Port
	client, err := net.Dial("tcp4", ear.Addr().String())
	must(t, err)
	server, err := ear.Accept()
	must(t, err)
	for _, c := range []io.Closer{server, client, ear} { // the server first: its end stays in TIME_WAIT
		must(t, c.Close())
	}
	if held, port, err := n.a.holdPort(key, waits, waits); err == nil {
		held.Close()
		t.Errorf("port %d has a connection in TIME_WAIT, and is taken for free", port)
	}

	held, port, err := n.a.holdPort(key, firstPort, lastPort)
	must(t, err)
	defer held.Close()
	if c, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", port)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("who connects to a port that is held is not refused: %v, %v", c, err)
	}
}

func usesPort(a *launcher.Assignment) { a.Spec.Stages[0].UsesPort = true }

func taken(port int) bool {
	l, err := bindTo(port)
	if err == nil {
		l.Close()
	}
	return err != nil
}

func TestThePortOfAJob(t *testing.T) {
	n := newNode(t)
	one, two := n.as("gate", usesPort), n.as("gate", usesPort, named("efgh"))
	n.prepare(one)
	n.prepare(two)
	ports := []int{n.hear(launcher.Prepared).Port, n.hear(launcher.Prepared).Port}
	if ports[0] == ports[1] {
		t.Fatalf("two jobs got port %d", ports[0])
	}
	for _, p := range ports {
		if p < firstPort || p > lastPort || !taken(p) {
			t.Errorf("port %d is not held", p)
		}
	}
	p := n.entry(key).Port
	n.drop()
	if taken(p) {
		t.Errorf("port %d is still held", p)
	}
	n.open()
	if n.entry(key).Port != p || !taken(p) {
		t.Errorf("after a restart port %d is not held any more", p)
	}
	n.end(two.Key, 0)
	n.hear(launcher.Ended)
	if taken(ports[0]) && taken(ports[1]) {
		t.Error("the port of an ended job is held")
	}
	n.start(key, p)
	n.hear(launcher.Started)
	if taken(p) {
		t.Error("the port is held when the ranks start")
	}
	n.end(key, 0)
	n.hear(launcher.Ended)
	n.prepare(n.as("gate", usesPort, generation(2)))
	if again := n.hear(launcher.Prepared).Port; again == p {
		t.Errorf("generation 2 got port %d again", again)
	}
}

// The rank binds what the agent held a moment ago, on each of 20 tries in a row.
func TestTheRankBindsItsPort(t *testing.T) {
	n := newNode(t)
	for g := range launcher.Generation(20) {
		as := n.as("", usesPort, generation(g+1))
		as.Spec.Stages[0].Argv = []launcher.Value{launcher.Lit("/proc/self/exe"), launcher.Lit("bind"),
			launcher.Of(launcher.Port)}
		exe, err := os.Executable()
		must(t, err)
		as.Spec.Stages[0].Argv[0] = launcher.Lit(exe)
		n.launch(as)
		if ev := n.hear(launcher.Exited); ev.Exit.Failed() {
			t.Errorf("generation %d: %s: %s", g+1, ev.Exit, n.output(0))
		}
		n.hear(launcher.Ended)
	}
}

func bindMain(port string) int {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0) // without SO_REUSEADDR
	if err == nil {
		n, _ := strconv.Atoi(port)
		err = syscall.Bind(fd, &syscall.SockaddrInet4{Port: n})
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func TestOnlyTheHeadHoldsAPort(t *testing.T) {
	n := newNode(t)
	n.prepare(n.as("true", usesPort, func(a *launcher.Assignment) {
		a.NodeRank, a.NodeCount, a.FirstRank, a.World = 1, 2, 1, 2
	}))
	if p := n.hear(launcher.Prepared).Port; p != 0 {
		t.Errorf("port %d", p)
	}
	n.end(key, 0)
	n.hear(launcher.Ended)
	n.prepare(n.as("true", generation(2)))
	if p := n.hear(launcher.Prepared).Port; p != 0 {
		t.Errorf("nobody asked for port %d", p)
	}
}
