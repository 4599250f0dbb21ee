package workloads

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

var update = flag.Bool("update", false, "write the goldens anew")

func request(args ...string) Request {
	return Request{
		Job:     launcher.Spec{ID: "abcd234567", Nodes: 2},
		Workdir: "/home/ada/run",
		Args:    args,
		Environ: []string{"PATH=/usr/bin:/bin", "HOME=/home/ada", "LANG=C.UTF-8", "HF_TOKEN=hf_x", "CUDA_HOME=", "BATCH=32"},
	}
}

// render shows what each rank of two nodes would be exec'd with.
func render(t *testing.T, spec launcher.Spec) string {
	t.Helper()
	if spec.Stepped() {
		return renderSteps(t, spec)
	}
	var b strings.Builder
	st := spec.MainStage()
	fmt.Fprintf(&b, "workload %s  workdir %s  files %q  port %t  grace %s\n", spec.Workload, st.Workdir, st.Files, st.UsesPort, spec.Grace)
	for node := range 2 {
		for local := range st.RanksPerNode {
			placement := launcher.Placement{
				Job: spec.ID, Generation: 1, Rank: node*st.RanksPerNode + local, LocalRank: local, NodeRank: node,
				World: 2 * st.RanksPerNode, LocalWorld: st.RanksPerNode, NodesIn: 2,
				Head: "192.168.0.1", Addr: fmt.Sprintf("192.168.0.%d", node+1), Host: fmt.Sprintf("spark%d", node+1), Port: 29512,
			}
			argv, err := placement.Argv(*st)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "\nrank %d: %q\n", placement.Rank, argv)
			for _, v := range st.Env {
				text, err := placement.Resolve(v.Value)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&b, "  %s=%s  (%s)\n", v.Name, text, v.Source)
			}
		}
	}
	return b.String()
}

// renderSteps is that of stages, with what makes each ready.
func renderSteps(t *testing.T, spec launcher.Spec) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "workload %s  stdin %s  node time-out %s\n", spec.Workload, spec.MainStage().Stdin, spec.NodeTimeout)
	first := 0
	for node := range spec.Nodes {
		a := launcher.Assignment{
			Key: launcher.Key{Job: spec.ID, Generation: 1}, Spec: spec.Only(""), Host: fmt.Sprintf("spark%d", node+1),
			NodeRank: node, NodeCount: spec.Nodes, FirstRank: first, Ranks: spec.RanksOn(node), World: spec.WorldOf(spec.Nodes),
			Head: netip.MustParseAddr("192.168.0.1"), Addr: netip.MustParseAddr(fmt.Sprintf("192.168.0.%d", node+1)),
			Management: netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", node+1)),
		}
		for local := range a.Ranks {
			_, st, placement := a.Local(local)
			next := uint16(20000)
			placement.Ports, placement.HeadPorts = map[string]launcher.Ports{}, map[string]launcher.Ports{}
			for _, s := range spec.Steps() {
				for _, p := range s.Ports {
					count := uint16(max(p.Count, 1))
					placement.Ports[p.Name] = launcher.Ports{First: next, Last: next + count - 1}
					next += count
				}
			}
			placement.HeadPorts = placement.Ports
			argv, err := placement.Argv(st)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "\nrank %d, stage %s: %q\n", first+local, st.Name, argv)
			if st.PIDsOf != "" {
				fmt.Fprintf(&b, "  sees the processes of %s\n", st.PIDsOf)
			}
			for _, v := range st.Env {
				text, err := placement.Resolve(v.Value)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&b, "  %s=%s  (%s)\n", v.Name, text, v.Source)
			}
			for _, p := range st.Ready {
				fmt.Fprintf(&b, "  ready: %s %s, on the head %t, port %s, match %q, want %s, %v\n", p.Kind, p.What, p.Head, p.Port, p.Match, p.Want, p.Argv)
			}
		}
		first += a.Ranks
	}
	return b.String()
}

func TestGolden(t *testing.T) {
	two := func(r Request) Request { r.RanksPerNode = 2; return r }
	tests := map[string]struct {
		workload string
		req      Request
	}{
		"exec":     {"exec", request("sh", "-c", "echo $RANK")},
		"torchrun": {"torchrun", two(request("train.py", "--lr", "0.1"))},
		"ray": {"ray", func() Request {
			r := request("python3", "job.py")
			r.Stdin, r.Job.GPUs, r.Ray.Args = "0", launcher.AllGPUs, []string{"--num-cpus=4"}
			return r
		}()},
		"ray-cluster": {"ray", request()},
		"ray-image": {"ray", func() Request {
			r := request("python3", "job.py")
			r.Environ, r.Container = append(r.Environ, "VIRTUAL_ENV=/opt/venv"), &launcher.Container{Image: "rayproject/ray:2.60.0"}
			return r
		}()},
		"torchrun-agent": {"torchrun", func() Request {
			r := two(request("train.py", "--lr", "0.1"))
			r.Torchrun.Agent = true
			return r
		}()},
		"torchrun-c10d": {"torchrun", func() Request {
			r := two(request("pkg.train"))
			r.Torchrun = Torchrun{Agent: true, Rendezvous: RendezvousC10d, Module: true}
			return r
		}()},
		"torchrun-agent-again": {"torchrun", func() Request {
			r := two(request("train.py"))
			r.Torchrun.Agent, r.Job.MaxRestarts = true, 2
			return r
		}()},
		"torchrun-env": {"torchrun", func() Request {
			r := two(request("train.py"))
			r.Environ = append(r.Environ, "VIRTUAL_ENV=/opt/venv", "OMP_NUM_THREADS=4", "TORCH_NCCL_ASYNC_ERROR_HANDLING=3")
			r.Env = []string{"BATCH", "NCCL_DEBUG=INFO", "EMPTY=", "MASTER_PORT=1234", "EQ=a=b"}
			return r
		}()},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w, err := Find(All(), tc.workload)
			if err != nil {
				t.Fatal(err)
			}
			spec, err := w.Spec(tc.req)
			if err != nil {
				t.Fatal(err)
			}
			got := render(t, spec)
			file := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// The workers have ranks of their own; what we started is told as their agent.
func TestTorchrunsAgentsAreNamed(t *testing.T) {
	for agent, want := range map[bool]string{true: "torchrun's agent 1", false: "rank 1"} {
		r := request("train.py")
		r.Torchrun.Agent = agent
		spec, err := torchrunSpec(r)
		if err != nil {
			t.Fatal(err)
		}
		if got := spec.Process(1); got != want {
			t.Errorf("agent %t: %q, want %q", agent, got, want)
		}
	}
}

// A torch worker that misses one of these does not start, or starts as another
// rank than it is.
func TestEveryTorchVariable(t *testing.T) {
	r := request("train.py")
	r.RanksPerNode = 2
	spec, err := torchrunSpec(r)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, v := range spec.MainStage().Env {
		if have[v.Name] {
			t.Errorf("%s is there twice", v.Name)
		}
		have[v.Name] = true
	}
	for _, name := range strings.Fields(`RANK LOCAL_RANK GROUP_RANK ROLE_RANK ROLE_NAME LOCAL_WORLD_SIZE WORLD_SIZE GROUP_WORLD_SIZE
		ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID
		TORCHELASTIC_USE_AGENT_STORE TORCH_NCCL_ASYNC_ERROR_HANDLING OMP_NUM_THREADS`) {
		if !have[name] {
			t.Errorf("%s is missing", name)
		}
	}
}

func TestCommands(t *testing.T) {
	tests := map[string]struct {
		torch   Torchrun
		args    []string
		venv    string
		argv    string
		files   []string
		refused string
	}{
		"script":         {args: []string{"a.py", "-x"}, argv: "python3 -u a.py -x", files: []string{"a.py"}},
		"venv":           {args: []string{"a.py"}, venv: "/v", argv: "/v/bin/python3 -u a.py", files: []string{"a.py"}},
		"python wins":    {torch: Torchrun{Python: "python3.12"}, args: []string{"a.py"}, venv: "/v", argv: "python3.12 -u a.py", files: []string{"a.py"}},
		"module":         {torch: Torchrun{Module: true}, args: []string{"pkg.train", "x"}, argv: "python3 -u -m pkg.train x"},
		"no python":      {torch: Torchrun{NoPython: true}, args: []string{"./train"}, argv: "./train"},
		"none of both":   {torch: Torchrun{NoPython: true, Module: true}, args: []string{"x"}, refused: "a --module needs python"},
		"which python":   {torch: Torchrun{NoPython: true, Python: "p"}, args: []string{"x"}, refused: "--python names one"},
		"no script":      {refused: "no script"},
		"empty script":   {args: []string{""}, refused: "no script"},
		"an interpreter": {args: []string{"python3", "train.py"}, refused: "python3 is no script: leave it out"},
		"NUL in command": {args: []string{"a.py", "x\x00y"}, refused: "NUL"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := request(tc.args...)
			r.Torchrun = tc.torch
			if tc.venv != "" {
				r.Environ = append(r.Environ, "VIRTUAL_ENV="+tc.venv)
			}
			spec, err := torchrunSpec(r)
			if tc.refused != "" {
				wantInvalid(t, err, tc.refused)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			st := spec.MainStage()
			var argv []string
			for _, v := range st.Argv {
				argv = append(argv, v.String())
			}
			if diff := cmp.Diff(tc.argv, strings.Join(argv, " ")); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tc.files, st.Files); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	tests := map[string]struct {
		change func(*Request)
		says   string
	}{
		"no command":      {func(r *Request) { r.Args = nil }, "no command: sparkrun launch exec"},
		"variable unset":  {func(r *Request) { r.Env = []string{"NOPE"} }, "--env NOPE: invalid: it is not set here"},
		"no name":         {func(r *Request) { r.Env = []string{"=x"} }, `--env "": invalid`},
		"nothing":         {func(r *Request) { r.Env = []string{""} }, `--env "": invalid`},
		"bad name":        {func(r *Request) { r.Env = []string{"A-B=x"} }, `--env "A-B": invalid`},
		"token":           {func(r *Request) { r.Env = []string{"HF_TOKEN"} }, "--env HF_TOKEN: invalid: its name says that it holds a secret"},
		"key":             {func(r *Request) { r.Env = []string{"WANDB_API_KEY=1"} }, "--secret WANDB_API_KEY brings it to the ranks"},
		"secret":          {func(r *Request) { r.Env = []string{"aws_secret=1"} }, "secret"},
		"password":        {func(r *Request) { r.Env = []string{"PGPASSWORD_FILE=1"} }, "secret"},
		"relative folder": {func(r *Request) { r.Workdir = "run" }, "--workdir"},
		"too many ranks":  {func(r *Request) { r.RanksPerNode = 5000 }, "--nproc-per-node 5000"},
		"less than none":  {func(r *Request) { r.RanksPerNode = -1 }, "--nproc-per-node -1"},
		"not UTF-8":       {func(r *Request) { r.Args = []string{"a\xff"} }, "it is not UTF-8"},
		"value not UTF-8": {func(r *Request) { r.Env = []string{"A=\xff"} }, "variable A (--env): invalid"},
		"no such id":      {func(r *Request) { r.Job.ID = "A" }, "job id"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := request("true")
			tc.change(&r)
			_, err := execSpec(r)
			wantInvalid(t, err, tc.says)
			if err != nil && strings.Contains(err.Error(), "hf_x") {
				t.Errorf("the secret itself is in the error: %v", err)
			}
		})
	}
}

// The caller's own variables must not leak: HOME and tokens describe, or
// belong to, the machine that asks.
func TestCallersEnvironmentStaysShort(t *testing.T) {
	spec, err := execSpec(request("true"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, v := range spec.MainStage().Env {
		if v.Source == sourceCaller {
			got = append(got, v.Name)
		}
	}
	if diff := cmp.Diff([]string{"PATH", "LANG"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestFind(t *testing.T) {
	tests := map[string]string{
		"exec":     "",
		"torchrun": "",
		"torchrn":  `unknown workload "torchrn": did you mean torchrun? known: exec, ib-test, mpi, nccl-test, ray, torchrun`,
		"Torch":    `unknown workload "Torch": did you mean torchrun? known: exec, ib-test, mpi, nccl-test, ray, torchrun`,
		"exce":     `unknown workload "exce": did you mean exec? known: exec, ib-test, mpi, nccl-test, ray, torchrun`,
		"serve":    `unknown workload "serve": known: exec, ib-test, mpi, nccl-test, ray, torchrun`,
		"":         `unknown workload "": known: exec, ib-test, mpi, nccl-test, ray, torchrun`,
	}
	for name, want := range tests {
		w, err := Find(All(), name)
		switch {
		case want == "" && (err != nil || w.Name != name):
			t.Errorf("Find(%q) = %q, %v", name, w.Name, err)
		case want != "" && (err == nil || err.Error() != want || !errors.Is(err, ErrUnknown)):
			t.Errorf("Find(%q): %v\nwant %s", name, err, want)
		}
	}
}

func wantInvalid(t *testing.T, err error, says string) {
	t.Helper()
	if !errors.Is(err, launcher.ErrInvalid) || !strings.Contains(err.Error(), says) {
		t.Errorf("error %v, want an invalid request that says %q", err, says)
	}
}

// What the rest of a Ray job hangs on is asked for by sparkrun's own flags.
func TestRayArgs(t *testing.T) {
	for _, arg := range []string{"--port=6379", "--port", "--head", "--address=1.2.3.4:6379", "--dashboard-port=8265"} {
		r := request()
		r.Ray.HeadArgs = []string{"--num-cpus=4", arg}
		_, err := raySpec(r)
		wantInvalid(t, err, "--ray-head-arg="+arg)
		r.Ray.Args, r.Ray.HeadArgs = r.Ray.HeadArgs, nil
		_, err = raySpec(r)
		wantInvalid(t, err, "--ray-arg="+arg)
	}
	r := request()
	r.Ray.Port, r.Ray.DashboardPort, r.Ray.HeadArgs = 6379, 8265, []string{"--dashboard-host=0.0.0.0"}
	spec, err := raySpec(r)
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]uint16{}
	for _, st := range spec.Stages {
		for _, p := range st.Ports {
			if p.At != 0 {
				at[p.Name] = p.At
			}
		}
	}
	if d := cmp.Diff(map[string]uint16{RayGCS: 6379, RayDashboard: 8265}, at); d != "" {
		t.Errorf("fixed ports (-want +got):\n%s", d)
	}
}

// In a container a job's stages have their commands where a build from before containers does not look, and
// nothing of the caller's paths.
func TestInContainer(t *testing.T) {
	r := request("train.py")
	r.Container, r.Workdir, r.Before = &launcher.Container{Image: "img"}, "", "prepare"
	r.Environ = append(r.Environ, "PATH=/caller/bin", "LD_LIBRARY_PATH=/caller/lib", "VIRTUAL_ENV=/caller/venv", "LANG=C.UTF-8")
	spec, err := torchrunSpec(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range spec.Stages {
		if len(st.Argv) > 0 || st.Container == nil || st.Container.Image != "img" || len(st.Command()) == 0 {
			t.Errorf("stage %s: argv %v, container %+v", st.Name, st.Argv, st.Container)
		}
		for _, e := range st.Env {
			if strings.Contains(e.Value.String(), "/caller/") {
				t.Errorf("stage %s gets %s=%s", st.Name, e.Name, e.Value)
			}
		}
	}
	if got := spec.MainStage().Command()[0].String(); got != "python3" {
		t.Errorf("it runs %s, want the image's python3", got)
	}
	if r.Container.Argv != nil {
		t.Error("the request was changed")
	}
}

// Each family has ranks of its own shape: MPICH's are the job's, Open MPI's are mpirun's.
func TestMPI(t *testing.T) {
	request := func(m MPI) Request {
		return Request{Job: launcher.Spec{ID: "abcd2345", Nodes: 2}, RanksPerNode: 4, Workdir: "/w", Args: []string{"./ring", "-x"}, Stdin: "3", MPI: m}
	}
	names := func(st *launcher.Stage) string {
		var all []string
		for _, v := range st.Env {
			all = append(all, v.Name)
		}
		return " " + strings.Join(all, " ") + " "
	}
	for family, want := range map[launcher.MPIFamily]struct {
		ranks      int
		stdin      launcher.Stdin
		argv       string
		has, lacks string
	}{
		"":               {4, "3", "./ring -x", "MPI_LOCALRANKID", ""},
		launcher.MPICH:   {4, "3", "./ring -x", "MPI_LOCALRANKID", ""},
		launcher.OpenMPI: {1, "0", "<sparkrun> mpi-node -nproc 4 -bind-to none -stdin 3 -- ./ring -x", "PMI_RANK", "RANK"},
	} {
		spec, err := mpiSpec(request(MPI{Family: family}))
		if err != nil {
			t.Fatal(err)
		}
		st := spec.MainStage()
		var argv []string
		for _, v := range st.Argv {
			argv = append(argv, v.String())
		}
		if got := strings.Join(argv, " "); got != want.argv || st.RanksPerNode != want.ranks || st.Stdin != want.stdin {
			t.Errorf("%q: %d ranks, stdin %s, %s", family, st.RanksPerNode, st.Stdin, got)
		}
		if all := names(st); !strings.Contains(all, " "+want.has+" ") || want.lacks != "" && strings.Contains(all, " "+want.lacks+" ") {
			t.Errorf("%q: its ranks have%s", family, all)
		}
	}
	for _, stdin := range []launcher.Stdin{"", launcher.StdinNone} { // -d, and --stdin none: a program that reads meets an end
		quiet := request(MPI{Family: launcher.OpenMPI})
		quiet.Stdin = stdin
		spec, err := mpiSpec(quiet)
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		for _, v := range spec.MainStage().Argv {
			text += v.String() + " "
		}
		if !strings.Contains(text, " -stdin none ") || spec.MainStage().Stdin.Any() {
			t.Errorf("--stdin %q: mpirun is told %s", stdin, text)
		}
	}
	boxed := request(MPI{Family: launcher.OpenMPI})
	boxed.Container = &launcher.Container{Image: "mpi"}
	spec, err := mpiSpec(boxed)
	if err != nil {
		t.Fatal(err)
	}
	if st := spec.MainStage(); len(st.Argv) > 0 || st.Command()[0].String() != "<sparkrun>" || st.MPI.Program != "./ring" {
		t.Errorf("in a container: %+v", st)
	}
	if _, err := mpiSpec(request(MPI{Family: launcher.MPICH, Mpirun: "/x"})); !errors.Is(err, launcher.ErrInvalid) {
		t.Errorf("an mpirun for MPICH: %v", err)
	}
}
