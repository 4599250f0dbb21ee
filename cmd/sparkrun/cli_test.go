package main

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/cluster"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/remote"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"sparkrun": main})
}

// TestScripts runs the real binary where no agent and no cluster is.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("SPARKRUN_STATE", filepath.Join(e.WorkDir, "state"))
			e.Setenv("SPARKRUN_RUN", filepath.Join(e.WorkDir, "run"))
			e.Setenv("SPARKRUN_SOCKET", filepath.Join(e.WorkDir, "agent.sock"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// exits CODE COMMAND...: run it and want that exit code
			"exits": func(ts *testscript.TestScript, _ bool, args []string) {
				err := ts.Exec(args[1], args[2:]...)
				got := "0"
				var exit interface{ ExitCode() int }
				if errors.As(err, &exit) {
					got = strconv.Itoa(exit.ExitCode())
				}
				if got != args[0] {
					ts.Fatalf("exit code %s, want %s (%v)", got, args[0], err)
				}
			},
		},
		UpdateScripts: *apptest.Update,
	})
}

// parse gives a launch command line's options without doing anything.
func parse(t *testing.T, args ...string) (launch.Options, error) {
	t.Helper()
	var got launch.Options
	root := &cobra.Command{Use: "sparkrun", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(newLaunchCommands(&app.App{},
		func(_ context.Context, _ *app.App, o launch.Options) error { got = o; return nil }))
	root.SetArgs(append([]string{"launch"}, args...))
	root.SetOut(&bytes.Buffer{})
	root.SetErr(&bytes.Buffer{})
	return got, root.ExecuteContext(t.Context())
}

func TestLaunchFlags(t *testing.T) {
	hourly := &launcher.Service{Restarts: 3, Per: time.Hour}
	tests := map[string]launch.Options{
		"exec -- hostname -f": {Workload: "exec", Request: workloads.Request{Args: []string{"hostname", "-f"}}},
		"exec hostname -f":    {Workload: "exec", Request: workloads.Request{Args: []string{"hostname", "-f"}}},
		"--nodes 3 exec --nproc-per-node=2 -- true --nodes 9": {Workload: "exec", Request: workloads.Request{
			Job: launcher.Spec{Nodes: 3}, RanksPerNode: 2, Args: []string{"true", "--nodes", "9"}}},
		"exec --on a,b --on c --exclude d --name n -d -- x": {Workload: "exec", Detach: true, Request: workloads.Request{
			Job: launcher.Spec{On: []string{"a", "b", "c"}, Exclude: []string{"d"}, Name: "n"}, Args: []string{"x"}}},
		"exec -e A=1,2 --env B --workdir w --json --dry-run -- x": {Workload: "exec", JSON: true, DryRun: true,
			Request: workloads.Request{
				Env: []string{"A=1,2", "B"}, Workdir: "w", Args: []string{"x"}}},
		"exec --grace 5 --start-timeout 2m --node-timeout 1h -- x": {Workload: "exec", Request: workloads.Request{
			Job:  launcher.Spec{Grace: 5 * time.Second, StartTimeout: 2 * time.Minute, NodeTimeout: time.Hour},
			Args: []string{"x"}}},
		"torchrun --nnodes 2:3 --max_restarts 4 --spare 1 --before ./prep --after ./merge t.py": {Workload: "torchrun",
			Request: workloads.Request{
				Job: launcher.Spec{MinNodes: 2, Nodes: 3, MaxRestarts: 4, Spare: 1}, Before: "./prep", After: "./merge",
				Args: []string{"t.py"}}},
		"exec --node-timeout 0 --timeout 1h --on-failure continue -- x": {Workload: "exec", Request: workloads.Request{
			Job:  launcher.Spec{NodeTimeout: launcher.Never, Timeout: time.Hour, OnFailure: launcher.ContinueOnFailure},
			Args: []string{"x"}}},
		"exec --grace 0 -- x": {Workload: "exec", Request: workloads.Request{
			Job: launcher.Spec{Grace: time.Millisecond}, Args: []string{"x"}}},
		"torchrun --nnodes 2 --nproc_per_node 4 train.py --lr 1": {Workload: "torchrun", Request: workloads.Request{
			Job: launcher.Spec{Nodes: 2}, RanksPerNode: 4, Args: []string{"train.py", "--lr", "1"}}},
		"torchrun --python /p -- a.py": {Workload: "torchrun", Request: workloads.Request{
			Torchrun: workloads.Torchrun{Python: "/p"}, Args: []string{"a.py"}}},
		"torchrun -m pkg.train -m": {Workload: "torchrun", Request: workloads.Request{
			Torchrun: workloads.Torchrun{Module: true}, Args: []string{"pkg.train", "-m"}}},
		"torchrun --no_python ./x": {Workload: "torchrun", Request: workloads.Request{
			Torchrun: workloads.Torchrun{NoPython: true}, Args: []string{"./x"}}},
		"torchrun --agent torchrun --rdzv_backend c10d -- a.py": {Workload: "torchrun", Request: workloads.Request{
			Torchrun: workloads.Torchrun{Agent: true, Rendezvous: "c10d"}, Args: []string{"a.py"}}},
		"exec --image vllm-node --image-map vllm-node=r:5000/vllm:1 --pull always --mount a:/a:ro --mount /b --docker-arg=--read-only --shm-size 1G -- x": {Workload: "exec",
			Container: launch.ContainerOptions{Image: "vllm-node", ImageMap: []string{"vllm-node=r:5000/vllm:1"},
				Pull: "always", Mounts: []string{"a:/a:ro", "/b"}, Args: []string{"--read-only"}, Shm: 1 << 30},
			Request: workloads.Request{Args: []string{"x"}}},
		"vllm org/m --nodes 2 --tp 2 --backend ray --ray-arg=--num-gpus=1 -- --max-model-len 4096 --host ::": {Workload: "vllm",
			Container: launch.ContainerOptions{Image: "nvcr.io/nvidia/vllm:26.05-py3"},
			Request: workloads.Request{
				Job: launcher.Spec{Nodes: 2, Service: hourly}, Ray: workloads.Ray{Args: []string{"--num-gpus=1"}},
				Serve: workloads.Serve{Model: "org/m", TP: 2, Backend: "ray",
					Args: []string{"--max-model-len", "4096", "--host", "::"}}}},
		"sglang --runtime host --port 30001 --host 0.0.0.0 org/m": {Workload: "sglang",
			Request: workloads.Request{
				Job: launcher.Spec{Service: hourly}, Serve: workloads.Serve{Model: "org/m", Host: "0.0.0.0", Port: 30001}}},
		"trtllm /models/m --image i": {Workload: "trtllm", Container: launch.ContainerOptions{Image: "i"},
			Request: workloads.Request{Job: launcher.Spec{Service: hourly}, Serve: workloads.Serve{Model: "/models/m"}}},
		"trtllm org/m --nodes 2 --runtime host --mpirun /opt/mpirun": {Workload: "trtllm",
			Request: workloads.Request{
				Job: launcher.Spec{Nodes: 2, Service: hourly}, MPI: workloads.MPI{Mpirun: "/opt/mpirun"},
				Serve: workloads.Serve{Model: "org/m"}}},
		"exo --nodes 2 org/m --exo /e -- --offline": {Workload: "exo",
			Request: workloads.Request{
				Job:   launcher.Spec{Nodes: 2, Service: hourly},
				Serve: workloads.Serve{Model: "org/m", Program: "/e", Args: []string{"--offline"}}}},
		"exo --image mine": {Workload: "exo", Container: launch.ContainerOptions{Image: "mine"},
			Request: workloads.Request{Job: launcher.Spec{Service: hourly}}},
		"exo --runtime host": {Workload: "exo",
			Request: workloads.Request{Job: launcher.Spec{Service: hourly}}},
		"--standalone exec -- x": {Workload: "exec", Standalone: true, Request: workloads.Request{Args: []string{"x"}}},
	}
	for line, want := range tests {
		t.Run(line, func(t *testing.T) {
			got, err := parse(t, strings.Fields(line)...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got,
				cmp.AllowUnexported(launch.Options{}, launch.ContainerOptions{}, follow.OutputMode{},
					launch.ServiceOptions{}), cmpopts.EquateEmpty(),
				cmpopts.IgnoreFields(launch.Options{}, "Gather")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestLaunchFlagsRefused(t *testing.T) {
	tests := map[string]string{
		"exec --nodes 0 -- x":                "want 1 or more",
		"exec --nodes two -- x":              "want 1 or more, MIN:MAX such as 2:4, or all",
		"exec --nodes 0:2 -- x":              "want 1 or more",
		"exec --nodes 2: -- x":               "want 1 or more",
		"exec --nproc-per-node -1 -- x":      "want 1 or more",
		"exec --grace fast -- x":             "want a time such as 30s",
		"exec --grace -3s -- x":              "want no less than 0",
		"exec --grace 99999999999999 -- x":   "want a time",
		"exec --start-timeout 0 -- x":        "--start-timeout 0: want more than 0",
		"exec --timeout 0 -- x":              "--timeout 0: want more than 0",
		"exec --on-failure ignore -- x":      "want stop or continue",
		"exec --python p -- x":               "unknown flag: --python",
		"exec --detach --dry-run -- x":       "give one of them",
		"exec --standalone -d -- x":          "ends with its launch",
		"exec --standalone --nodes 2 -- x":   "this machine only",
		"exec --standalone --on spark2 -- x": "this machine only",
		"torchrun --agent mpi -- a.py":       "want sparkrun or torchrun",
		"vllm a b":                           "one model; what is the server's goes after --",
		"vllm a --backend mpi":               "want auto or native or ray",
		"vllm a --runtime host --image i":    "give one of them",
		"vllm a --runtime host --mount /b":   "--mount: this is for containers",
		"sglang a --dp 2":                    "unknown flag: --dp",
		"torchrun --rdzv-backend etcd -- a":  "want static or c10d",
		"exce -- x":                          "did you mean exec?",
		"--nodes 2 torchrn a.py":             "did you mean torchrun?",
	}
	for line, want := range tests {
		if _, err := parse(t, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("launch %s: %v, want %q", line, err, want)
		}
	}
}

// cli runs one command line against fakes.
func cli(t *testing.T, b *wire.Client, line ...string) (code int, out, err string) {
	t.Helper()
	return cliIn(t, b, []string{"PATH=/bin"}, line...)
}

// cliIn does so in an environment.
func cliIn(t *testing.T, b *wire.Client, environ []string, line ...string) (code int, out, err string) {
	t.Helper()
	var o, e apptest.SyncBuffer
	a := &app.App{
		In: strings.NewReader(""), Out: &o, Err: &e, Environ: environ, Version: "1.2.3",
		Getwd: func() (string, error) { return "/home/ada", nil }, Columns: func() int { return 100 },
		Dial: func() *wire.Client { return b }, DialHere: func() *wire.Client { return b },
		Standalone: func() (*wire.Client, func(), error) { return b, func() {}, nil },
		Signals:    func() (<-chan os.Signal, func()) { return nil, func() {} },
	}
	code = execute(t.Context(), a, line)
	return code, o.String(), e.String()
}

func TestLaunchSendsWhatWasAsked(t *testing.T) {
	g := &apptest.FakeRunner{OnLaunch: apptest.Tells(apptest.Planned(1), apptest.Started("a"),
		apptest.Ended(apptest.Completed)), OnLogs: apptest.Prints(apptest.Out(0, 0, "hi\n"))}
	b := apptest.Agent(g, &apptest.FakeCluster{})
	code, o, e := cli(t, b, "launch", "exec", "--nodes", "2", "--workdir", "run", "-e", "A=1", "--", "echo", "hi")
	if code != 0 || o != "[0] hi\n" || e != "" {
		t.Errorf("code %d, stdout %q, stderr %q", code, o, e)
	}
	spec := g.Spec()
	st := spec.MainStage()
	if spec.Epoch != 3 || spec.Nodes != 2 || st.Workdir != "/home/ada/run" || st.Argv[0].String() != "echo" ||
		spec.Grace != launcher.DefaultGrace {
		t.Errorf("sent %+v", spec)
	}
}

func TestExitCodes(t *testing.T) {
	member := t.TempDir()
	t.Setenv("SPARKRUN_STATE", member)
	if err := os.WriteFile(filepath.Join(member, "node.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	tells := func(o rendezvous.Outcome) *apptest.FakeRunner {
		return &apptest.FakeRunner{OnLaunch: apptest.Tells(apptest.Planned(2), apptest.Started("a"), apptest.Runs,
			apptest.Ended(o)), OnWatch: apptest.Tells(apptest.Planned(2), apptest.Ended(apptest.Stopped))}
	}
	first, second := apptest.Out(0, 0, "a\nb"), apptest.Out(0, 3, "c\n")
	first.Time = time.Date(2026, 3, 1, 13, 0, 2, 350_900_000, time.FixedZone("CET", 3600))
	second.Time = first.Time.Add(time.Minute)
	tests := map[string]struct {
		line string
		g    *apptest.FakeRunner
		c    *apptest.FakeCluster
		code int
		out  string // contained
		err  string // contained
	}{
		"a rank's code": {line: "launch exec -- x", g: tells(apptest.Failed7), code: 7,
			err: "sparkrun: rank 1 on spark2: exit 7; the job was ended\n"},
		"nothing to say": {line: "launch exec -- x", g: tells(apptest.Completed)},
		"serve without agent": {line: "launch exec --serve 80 -- x", c: &apptest.FakeCluster{Err: node.ErrNoAgent},
			code: 125, err: "hint: start it with `sudo systemctl start sparkrun` (or `sudo sparkrun agent`), or use another machine's cluster from here: `sparkrun login HOST`\n"},
		"launch without agent": {line: "launch exec -- x", c: &apptest.FakeCluster{Err: node.ErrNoAgent}, code: 125,
			err: "hint: start it with `sudo systemctl start sparkrun` (or `sudo sparkrun agent`), launch on this machine alone with --standalone, or use another machine's cluster from here: `sparkrun login HOST`\n"},
		"launch misspelt":      {line: "launch exex -- x", code: 125, err: `unknown workload "exex": did you mean exec?`},
		"launch with a secret": {line: "launch exec --env HF_TOKEN=x -- x", code: 125, err: "--env HF_TOKEN: invalid"},
		"launch usage": {line: "launch exec --nodes x -- x", code: 125,
			err: "hint: `sparkrun launch exec --help` shows how"},
		"detached": {line: "launch -d exec -- x", g: tells(apptest.Failed7)},
		"status without agent": {line: "status", c: &apptest.FakeCluster{Err: node.ErrNoAgent}, code: 1,
			err: "hint: start it with `sudo systemctl start sparkrun` (or `sudo sparkrun agent`), or use another machine's cluster from here: `sparkrun login HOST`\n"},
		"usage":                   {line: "status --wait-nodes x", code: 2, err: "`sparkrun status --help` shows how"},
		"too many words":          {line: "ps train now", code: 2, err: `unexpected argument "now"`},
		"a word is missing":       {line: "logs", code: 2, err: "the job is missing: `sparkrun ps --all`"},
		"unknown command":         {line: "staus", code: 2, err: "did you mean status?"},
		"who lists machines":      {line: "node list", code: 2, err: "for `node list` there is `sparkrun status`"},
		"who stops a service":     {line: "service stop j", code: 2, err: "there is `sparkrun stop JOB`"},
		"who copies a file":       {line: "cp a spark2:", code: 2, err: "`sparkrun launch --stage FILE` brings it along"},
		"who backs up the record": {line: "raft backup f", code: 2, err: "there is `sudo sparkrun raft snapshot FILE`"},
		"a token for members": {line: "token create", c: &apptest.FakeCluster{Err: wire.ErrDenied}, code: 1,
			err: "--role client"},
		"no member answers": {line: "status", c: &apptest.FakeCluster{Err: remote.ErrNoMember}, code: 1,
			err: "hint: is this machine on a network"},
		"unknown below token": {line: "token make", code: 2, err: `unknown command "make" for sparkrun token`},
		"stopped":             {line: "stop job", g: tells(apptest.Stopped), out: "has ended\n"},
		"stop several":        {line: "stop job trial", g: tells(apptest.Stopped), out: "job trial has ended\n"},
		"stop some": {line: "stop job gone",
			g: &apptest.FakeRunner{OnWatch: apptest.Tells(apptest.Planned(2), apptest.Ended(apptest.Stopped)),
				OnStop: func(_ int, r wire.StopRequest) error {
					if r.Job == "gone" {
						return rendezvous.ErrNoJob
					}
					return nil
				}}, code: 1, out: "job job has ended\n", err: "sparkrun: no such job\n"},
		"stop nothing": {line: "stop", code: 2, err: "the job is missing"},
		"exec with a flag it lacks": {line: "exec -x job -- y", code: 125,
			err: "unknown shorthand flag: 'x' in -x: what belongs to the command comes behind --: sparkrun exec JOB -- COMMAND"},
		"logs at the end": {line: "logs -n 1 job",
			g: &apptest.FakeRunner{OnLogs: apptest.Prints(apptest.Out(0, 0, "x"))}, out: "[0] x\n"},
		"stop in vain": {line: "stop job",
			g: &apptest.FakeRunner{OnWatch: apptest.Tells(apptest.Planned(2),
				rendezvous.Progress{Step: rendezvous.StepStuck,
					Text: "on spark2 rank 1: process 7 (cat) cannot be killed"}, apptest.Ended(apptest.Stopped))},
			code: 1, err: "has ended, but on spark2 rank 1: process 7 (cat) cannot be killed; its machine gets no jobs until it is gone\n"},
		"launch in vain": {line: "launch exec -- x",
			g: &apptest.FakeRunner{OnLaunch: apptest.Tells(apptest.Planned(2), apptest.Started("a"), apptest.Runs,
				rendezvous.Progress{Step: rendezvous.StepStuck, Text: "on spark2 rank 1 cannot be killed"},
				apptest.Ended(apptest.Failed7))},
			code: 7, err: "sparkrun: on spark2 rank 1 cannot be killed\n"},
		"launch of what leaves something behind": {line: "launch exec -- x",
			g: &apptest.FakeRunner{OnLaunch: apptest.Tells(apptest.Planned(2), apptest.Started("a"), apptest.Runs,
				rendezvous.Progress{Step: rendezvous.StepLeft, Text: "rank 1 on spark2 left 1 process behind (x): ended"},
				apptest.Ended(apptest.Failed7))},
			code: 7, err: "sparkrun: rank 1 on spark2 left 1 process behind (x): ended\n"},
		"stop what has ended": {line: "stop job",
			g:   &apptest.FakeRunner{OnStop: func(int, wire.StopRequest) error { return rendezvous.ErrJobEnded }},
			out: "had ended already"},
		"stop what is not": {line: "stop job",
			g: &apptest.FakeRunner{OnStop: func(int, wire.StopRequest) error { return rendezvous.ErrNoJob }}, code: 1,
			err: "no such job"},
		"stop how": {line: "stop job --kill --grace 3", code: 2, err: "give one of them"},
		"logs of what is not": {line: "logs job",
			g: &apptest.FakeRunner{OnLogs: func(context.Context, int, wire.LogsRequest, func(wire.LogChunk) error) error {
				return rendezvous.ErrNoJob
			}}, code: 1, err: "no such job"},
		"logs": {line: "logs job",
			g: &apptest.FakeRunner{OnLogs: apptest.Prints(apptest.Out(3, 0, "x"))}, out: "[3] x\n"},
		"logs of no such rank": {line: "logs job --rank -1", code: 2, err: "want ranks below"},
		"logs since when":      {line: "logs job --since noon", code: 2, err: "--since noon: want a span such as 5m"},
		"logs that match": {line: "logs job --grep b",
			g: &apptest.FakeRunner{OnLogs: apptest.Prints(apptest.Out(0, 0, "ab\nc\nba"))}, out: "[0] ab\n[0] ba\n"},
		"logs match badly": {line: "logs job --grep a(", code: 2, err: "--grep: missing closing )"},
		"logs match bytes": {line: "logs job --grep a --output raw", code: 2, err: "passes bytes on"},
		"logs with times": {line: "logs -t job", g: &apptest.FakeRunner{OnLogs: apptest.Timed(first, second)},
			out: "[0] 2026-03-01T12:00:02.350Z a\n[0] 2026-03-01T12:00:02.350Z bc\n"},
		"logs of objects, timed": {line: "logs job --timestamps --json", code: 2, err: "have the time already"},
		"logs of bytes, timed": {line: "logs job --timestamps --output raw", code: 2,
			err: "--timestamps and --output raw: that passes bytes on"},
		"logs raw": {line: "logs job --output raw",
			g:   &apptest.FakeRunner{OnLogs: apptest.Prints(apptest.Out(0, 0, "a\x00\n\r"), apptest.Out(0, 4, "b"))},
			out: "a\x00\n\rb"},
		"logs in two ways":      {line: "logs job --output raw --json", code: 2, err: "give one of them"},
		"logs in no known way":  {line: "logs job --output xml", code: 2, err: "want prefix, raw, json or files=DIR"},
		"logs files of nowhere": {line: "logs job --output files=", code: 2, err: "want prefix, raw, json or files=DIR"},
		"logs without a machine": {line: "logs job",
			g: &apptest.FakeRunner{OnLogs: apptest.Prints(wire.LogChunk{Host: "spark2", Note: "spark2 does not answer",
				Away: true}, apptest.Out(0, 0, "a\n"))}, code: 1, out: "[0] a\n",
			err: "spark2 does not answer\nsparkrun: the output on spark2 is missing"},
		"logs of a machine back": {line: "logs -f job",
			g: &apptest.FakeRunner{OnLogs: apptest.Prints(wire.LogChunk{Host: "spark1", Note: "spark1 does not answer",
				Away: true}, apptest.Out(0, 0, "a\n"))}, out: "[0] a\n", err: "spark1 does not answer\n"},
		"detached into files":    {line: "launch -d exec --output files=x -- true", code: 125, err: "nobody stays"},
		"leave asks":             {line: "leave", code: 2, err: "give --yes"},
		"leave":                  {line: "leave --yes", out: "in no cluster any more"},
		"join needs a token":     {line: "join 10.0.0.1", code: 2, err: "--token-file"},
		"join with an empty one": {line: "join 10.0.0.1 --token-file -", code: 1, err: "there is none"},
		"version":                {line: "version", out: "sparkrun 1.2.3\n"},
		"version flag":           {line: "--version", out: "sparkrun 1.2.3\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.g == nil {
				tc.g = &apptest.FakeRunner{}
			}
			if tc.c == nil {
				tc.c = &apptest.FakeCluster{}
			}
			code, o, e := cli(t, apptest.Agent(tc.g, tc.c), strings.Fields(tc.line)...)
			if code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			if !strings.Contains(o, tc.out) || !strings.Contains(e, tc.err) || tc.err == "" && e != "" {
				t.Errorf("stdout %q\nstderr %q\nwant %q and %q", o, e, tc.out, tc.err)
			}
		})
	}
}

// An agent that is restarted while status waits is no reason to give up.
// Where no agent runs, what to do depends on whether this machine is a member.
func TestNoAgentNoMember(t *testing.T) {
	t.Setenv("SPARKRUN_STATE", t.TempDir())
	for line, alone := range map[string]bool{"status": false, "launch exec -- x": true} {
		agent := apptest.Agent(&apptest.FakeRunner{}, &apptest.FakeCluster{Err: node.ErrNoAgent})
		_, _, e := cli(t, agent, strings.Fields(line)...)
		if !strings.Contains(e, "this machine is in no cluster: `sudo sparkrun init`") ||
			!strings.Contains(e, "sparkrun login HOST") ||
			strings.Contains(e, "--standalone") != alone || strings.Contains(e, "systemctl") {
			t.Errorf("%s: %s", line, e)
		}
	}
}

func TestStatusWaits(t *testing.T) {
	n := 0
	c := &apptest.FakeCluster{}
	c.OnStatus = func(r wire.StatusRequest) (wire.Status, error) {
		if n++; n < 3 {
			return wire.Status{}, node.ErrNoAgent
		}
		return wire.Status{Cluster: "c", Leader: "spark1"}, nil
	}
	code, o, e := cli(t, apptest.Agent(c), "status", "--wait-nodes", "2", "--timeout", "20")
	if code != 0 || e != "" || !strings.HasPrefix(o, "cluster c, leader spark1\n") {
		t.Errorf("code %d, stdout %q, stderr %q", code, o, e)
	}
	if first := c.Requests[0].(wire.StatusRequest); first.WaitNodes != 2 || first.Timeout != 20*time.Second {
		t.Errorf("asked %+v", first)
	}
}

func TestStatusTable(t *testing.T) {
	pci := func(domain uint32, function uint8) *envgen.PCIAddress {
		return &envgen.PCIAddress{Domain: domain, Bus: 1, Function: function}
	}
	rate := 200_000
	down := 40_000
	inv := envgen.Inventory{NICs: []envgen.NIC{{Name: "enP7s7"}}, Devices: []envgen.HCA{
		{Name: "rocep1s0f0", PCI: pci(0, 0), State: envgen.StateActive, RateMbps: &rate},
		{Name: "roceP2p1s0f0", PCI: pci(2, 0), State: envgen.StateActive, RateMbps: &rate},
		{Name: "rocep1s0f1", PCI: pci(0, 1), State: envgen.StateDown, RateMbps: &down},
		{Name: "roceP2p1s0f1", PCI: pci(2, 1), State: envgen.StateDown, RateMbps: &down},
	}}
	c := &apptest.FakeCluster{OnStatus: func(wire.StatusRequest) (wire.Status, error) {
		return wire.Status{Cluster: "3f2a", Problem: "no leader: start spark2's agent", Nodes: []wire.NodeStatus{
			{Host: "spark1", Addr: netip.MustParseAddr("10.0.0.1"), State: "ready", Role: "leader", Inventory: inv},
			{Host: "spark2", State: "away", Since: time.Now().Add(-5 * time.Minute)},
			{Host: "pi", Addr: netip.MustParseAddr("10.0.0.9"), State: "ready", Role: "voter", Witness: true, Inventory: inv},
			{Host: "spark3", State: "drained", Why: "job k3x: rank 1 cannot be killed", Since: time.Now()},
		}}, nil
	}}
	code, o, e := cli(t, apptest.Agent(c), "status")
	want := `cluster 3f2a, no leader
HOST     ADDRESS    STATE     ROLE             GPU   MEMORY   FABRIC
spark1   10.0.0.1   ready     leader           -     -        1 of 2 ports up, 200 Gb/s
spark2   -          away 5m   -                -     -        -
pi       10.0.0.9   ready     voter, witness   -     -        -
spark3   -          drained   -                -     -        -
`
	if diff := cmp.Diff(want, o); diff != "" || code != 0 ||
		e != "sparkrun: spark3 is drained: job k3x: rank 1 cannot be killed\nsparkrun: no leader: start spark2's agent\n" {
		t.Errorf("code %d, stderr %q, -want +got:\n%s", code, e, diff)
	}
}

// A fallback from the fabric is a warning wherever one looks; where the fabric is as it should be there is none.
func TestStatusWarnsOfFallbacks(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*wire.Status)
		want   string
	}{
		"as it should be": {func(*wire.Status) {}, ""},
		"no cable":        {func(st *wire.Status) { *st = apptest.Pair(false) }, ""}, // the table says it
		"a stranger": {func(st *wire.Status) {
			cab := st.Nodes[1].Inventory.Cabling
			cab.NonMembers = append(cab.NonMembers, envgen.NonMember{NIC: cab.Sightings[0].NIC, Slot: cab.Sightings[0].Slot,
				MAC: "02:aa:00:00:00:01", Heard: envgen.NonMemberARP})
			st.Nodes[1].Inventory.FabricPorts = []string{cab.Sightings[0].NIC}
		}, "sparkrun: warning: spark2 port 0 is used by jobs, and the host 02:aa:00:00:00:01"},
		"no address": {func(st *wire.Status) {
			for i := range st.Nodes[1].Inventory.NICs[1:] {
				st.Nodes[1].Inventory.NICs[1+i].Addresses = nil
			}
			for i := range st.Nodes[1].Inventory.Devices {
				st.Nodes[1].Inventory.Devices[i].GIDs = nil
			}
		}, "sparkrun: warning: jobs meet spark1, spark2 over management, although the fabric has a link there: "},
	} {
		t.Run(name, func(t *testing.T) {
			st := apptest.Pair(true)
			c.change(&st)
			code, _, e := cli(t, apptest.Agent(apptest.StatusIs(st, nil)), "status")
			if code != 0 || c.want == "" && e != "" || !strings.Contains(e, c.want) {
				t.Errorf("code %d, stderr %q, want %q", code, e, c.want)
			}
		})
	}
}

func TestPsLeavesOutTheEnded(t *testing.T) {
	_, running, _ := cli(t, apptest.Agent(&apptest.FakeCluster{Has: apptest.SomeJobs()}), "ps")
	if strings.Contains(running, "aaaa") || !strings.Contains(running, "bbbb") {
		t.Errorf("ps without --all:\n%s", running)
	}
	code, none, _ := cli(t, apptest.Agent(&apptest.FakeCluster{}), "ps", "--json")
	if code != 0 || none != "[]\n" {
		t.Errorf("no jobs: %q", none)
	}
}

// Scripts read this: a field that goes breaks them.
func TestPsJSON(t *testing.T) {
	_, got, _ := cli(t, apptest.Agent(&apptest.FakeCluster{Has: apptest.SomeJobs()}), "ps", "--all", "--json")
	apptest.Golden(t, "ps.json", got)
}

func TestDryRun(t *testing.T) {
	env := func(rank string) []launcher.Setting {
		return []launcher.Setting{
			{Name: "HOME", Value: "/home/ada", Source: "login of ada"},
			{Name: "NCCL_IB_HCA", Value: "=rocep1s0f0", Source: "fabric"},
			{Name: "RANK", Value: rank, Source: "exec"},
			{Name: "MASTER_PORT", Value: "0", Source: "exec"},
			{Name: "EMPTY", Value: "", Source: "--env"},
		}
	}
	argv := []string{"sh", "-c", "echo it's $RANK"}
	res := wire.ExplainResponse{
		Plan: rendezvous.Plan{
			World: 3, Head: netip.MustParseAddr("192.168.0.1"), Network: "fabric", Why: "all have an address in 192.168.0.0/24",
			Nodes: []rendezvous.Place{{Host: "spark1", Ranks: 2}, {Host: "spark2", FirstRank: 2, Ranks: 1}},
		},
		Nodes: []wire.NodePlan{
			{Host: "spark1", Ranks: []launcher.RankPlan{{Rank: 0, Argv: argv, Env: env("0")},
				{Rank: 1, Argv: argv, Env: env("1")}}},
			{Host: "spark2", Error: `program "sh": not found`},
		},
	}
	b := apptest.Agent(&apptest.FakeCluster{}, apptest.Explains(res))
	code, o, e := cli(t, b, "launch", "exec", "--nodes", "2", "--dry-run", "--", "sh", "-c", "echo it's $RANK")
	if code != 125 || e != "sparkrun: spark2 would refuse: program \"sh\": not found\n" {
		t.Errorf("code %d, stderr %q", code, e)
	}
	apptest.Golden(t, "dryrun.txt", o)
}

func TestTokenCreate(t *testing.T) {
	c := &apptest.FakeCluster{Gives: wire.TokenResponse{Token: "spark-xyz",
		Join: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:7940")}}}
	code, o, e := cli(t, apptest.Agent(c), "token", "create", "--uses", "3", "--ttl", "60")
	if code != 0 || o != "spark-xyz\n" || !strings.Contains(e, "sparkrun join 10.0.0.1 ") ||
		!strings.Contains(e, "3 times") {
		t.Errorf("code %d, stdout %q, stderr %q", code, o, e)
	}
	if diff := cmp.Diff([]any{wire.TokenRequest{Uses: 3, TTL: time.Minute, Role: "node"}}, c.Requests); diff != "" {
		t.Error(diff)
	}
}

// Help is documentation: every command explains itself and gives an example.
func TestHelp(t *testing.T) {
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Name() == "help" || c.Name() == "completion" {
			return
		}
		if c.Short == "" || c.Long == "" || c.Example == "" && !c.Hidden {
			t.Errorf("%s: Short, Long or Example is missing", c.CommandPath())
		}
		for line := range strings.Lines(c.Long) {
			if len(line) > 90 {
				t.Errorf("%s: a line of %d letters: %s", c.CommandPath(), len(line), line)
			}
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(newRootCmd(&app.App{}))
}

// A token in argv can be read by every user of the machine.
func TestNoTokenArgument(t *testing.T) {
	join := cluster.NewJoinCmd(&app.App{})
	if f := join.Flags().Lookup("token"); f != nil {
		t.Error("join has --token")
	}
	code, _, e := cli(t, apptest.Agent(), "join", "10.0.0.1", "spark-secret")
	if code != 2 || !strings.Contains(e, "unexpected argument") {
		t.Errorf("code %d, %s", code, e)
	}
}

func TestContainerFlags(t *testing.T) {
	for line, want := range map[string]string{
		"exec --mount /a -- x":                               "--mount: this is for containers",
		"exec --pull always -- x":                            "--pull: this is for containers",
		"exec --image i --pull often -- x":                   "want missing or always or never",
		"exec --image i --image-map i -- x":                  "want NAME=REF",
		"exec --image i --docker-arg=--privileged -- x":      "no privileged containers",
		"exec --image i --docker-arg --shm-size -- x":        "--docker-arg",
		"exec --image i --shm-size many --nodes 2 -- x":      "want a size",
		"exec --image i --docker-arg=--network=bridge -- x":  "ranks use the host's network",
		"torchrun --docker-arg=--read-only -- train.py --lr": "--docker-arg: this is for containers",
	} {
		if _, err := parse(t, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want it to say %q", line, err, want)
		}
	}
}

// So does the command.
func TestStopCommandOutlivesALeader(t *testing.T) {
	// What waits for signals in this process begins with the first that is asked for, and not in a bubble.
	_, heard := app.Stoppable(t.Context())
	heard()
	synctest.Test(t, func(t *testing.T) {
		g := apptest.LosesLeader()
		if code, out, e := cli(t, apptest.Agent(g), "stop", "job", "--grace", "3s"); code != 0 ||
			!strings.HasSuffix(out, "has ended\n") {
			t.Errorf("exit code %d, stdout %q, stderr %q", code, out, e)
		}
		if diff := cmp.Diff([]string{"3s", "3s"}, g.Stops); diff != "" {
			t.Errorf("stops -want +got:\n%s", diff)
		}
	})
}

func TestUlimitFlag(t *testing.T) {
	var got launch.Options
	cmd := newLaunchCommands(&app.App{},
		func(_ context.Context, _ *app.App, o launch.Options) error { got = o; return nil })
	cmd.SetArgs([]string{"exec", "--ulimit", "core=0", "--ulimit", "nofile=5:9", "--bind-to", "numa", "--stdin", "all",
		"--", "true"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	if r := got.Request; len(r.Ulimits) != 2 || r.Ulimits[1].String() != "nofile=5:9" || r.BindTo != "numa" ||
		r.Stdin != "all" {
		t.Errorf("read %+v", r)
	}
}
