package recipe

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
)

func read(t *testing.T, text string) Recipe {
	t.Helper()
	r, err := Read([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// v1 and v2 are recipes of ours, in each version's own way.
const v1 = `
recipe_version: "1"
name: Test
container: my/vllm-node
model: org/M
env: {FLAG: 1}
defaults: {port: 8000, host: 0.0.0.0, tensor_parallel: 2, len: 4096}
command: |
  vllm serve org/M --max-model-len {len} \
    --port {port} --host {host} \
    -tp {tensor_parallel} --distributed-executor-backend ray \
    --speculative-config '{{"n":{len}}}'
`

const v2 = `
model: org/M
container: registry/image:1
defaults: {port: 8000, host: "::1", tensor_parallel: 2, base: "http://x:{port}", json: '{"a": {"b": 1}}', served_model_name: m}
env: {JSON: '{"x": [1]}', WHERE: "$HOME/x ${NOT_SET}"}
command: |
  vllm serve {model} --c '{json}' --base {base} --host {host} --port {port} -tp {tensor_parallel} --left {unknown}
`

func TestLaunch(t *testing.T) {
	for name, c := range map[string]struct {
		recipe  string
		options Options
		want    string // as render shows it
	}{
		"version 1": {v1, Options{}, `
vllm of org/M in my/vllm-node, 2 machines, TP 2, ray, listens at 0.0.0.0:8000
  $ vllm serve org/M
      --max-model-len 4096
      --speculative-config '{"n":4096}'
  FLAG=1
  note: host: 0.0.0.0: it listens on every address of its machine; --host has it listen on one
`},
		"the command line wins": {v1, Options{
			Set: []Setting{{"len", "99"}, {"port", "1"}}, Serve: workloads.Serve{Port: 9000, Host: "10.0.0.1", Backend: "native"}, Image: "other", Env: []string{"FLAG=2"}}, `
vllm of org/M in other, 2 machines, TP 2, native, listens at 10.0.0.1:9000
  $ vllm serve org/M
      --max-model-len 99
      --speculative-config '{"n":99}'
`},
		"one machine": {v1, Options{Nodes: 1, Serve: workloads.Serve{Host: "a"}}, `
vllm of org/M in my/vllm-node, 1 machine, sizes from machines and model, listens at a:8000
  $ vllm serve org/M
      --max-model-len 4096
      --speculative-config '{"n":4096}'
  FLAG=1
  note: command: its sizes (TP 2) make 2 machines: with 1 they are found anew
`},
		"a size of the user's stays": {v1, Options{Set: []Setting{{"tensor_parallel", "4"}, {"host", "a"}}}, `
vllm of org/M in my/vllm-node, 4 machines, TP 4, ray, listens at a:8000
  $ vllm serve org/M
      --max-model-len 4096
      --speculative-config '{"n":4096}'
  FLAG=1
`},
		"on the host": {v1, Options{OnHost: true, Serve: workloads.Serve{Host: "a"}}, `
vllm of org/M in , 2 machines, TP 2, ray, listens at a:8000
  $ vllm serve org/M
      --max-model-len 4096
      --speculative-config '{"n":4096}'
  FLAG=1
  note: container: my/vllm-node: left out: it runs on the machines themselves
`},
		"version 2": {v2, Options{Environ: []string{"HOME=/home/ada"}}, `
vllm of org/M in registry/image:1, 2 machines, TP 2, listens at ::1:8000
  $ vllm serve org/M
      --c '{"a": {"b": 1}}'
      --base http://x:8000
      --left '{unknown}'
      --served-model-name m
  JSON={"x": [1]}
  WHERE=/home/ada/x ${NOT_SET}
  note: command: {unknown} has no value, and stays as it is
  note: host: ::1: it listens there, as the recipe has it; --host decides otherwise
  note: env.WHERE: $HOME is filled in with yours
  note: env.WHERE: ${NOT_SET} is not set here, and stays as it is
`},
		"made of values": {"model: org/M\nmodel_revision: r1\nruntime: vllm-distributed\ndefaults: {tensor_parallel: 2, port: 1, trust_remote_code: true, enforce_eager: false, max_model_len: 5}\n", Options{}, `
vllm of org/M in , 2 machines, TP 2, native, listens at :1
  $ vllm serve org/M
      --trust-remote-code
      --max-model-len 5
      --revision r1
`},
		"sglang": {"model: org/M\ncommand: python3 -m sglang.launch_server --model-path {model} --tp 2 --dist-init-addr x:1 --nnodes 2 --mem-fraction-static 0.8\n", Options{}, `
sglang of org/M in , 2 machines, TP 2, listens at :0
  $ python3
      -m sglang.launch_server
      --model-path org/M
      --mem-fraction-static 0.8
  note: command: --dist-init-addr, --nnodes: left out: sparkrun adds what spreads a server over machines
`},
		"sglang, made of values": {"model: org/M\nruntime: sglang\ndefaults: {tensor_parallel: 2, gpu_memory_utilization: 0.8, max_model_len: 5}\n", Options{}, `
sglang of org/M in , 2 machines, TP 2, listens at :0
  $ sglang serve
      --model-path org/M
      --mem-fraction-static 0.8
      --context-length 5
`},
		"trtllm": {"model: org/M\nmodel_revision: r\ncommand: mpirun -n 2 trtllm-llmapi-launch trtllm-serve {model} --tp_size 2 --backend pytorch\n", Options{}, `
trtllm of org/M in , 2 machines, TP 2, listens at :0
  $ trtllm-serve org/M
      --backend pytorch
  note: command: ` + "`mpirun -n 2 trtllm-llmapi-launch`" + ` is left out: sparkrun starts the ranks itself
  note: model_revision: r: left out: trtllm takes none
`},
		"trtllm, by paths": {"model: org/M\ncommand: /opt/bin/mpiexec -x A=1 /opt/t/trtllm-llmapi-launch /opt/t/trtllm-serve serve {model} --tensor_parallel_size 2 --port 9\n", Options{}, `
trtllm of org/M in , 2 machines, TP 2, listens at :9
  $ /opt/t/trtllm-serve serve org/M
  note: command: ` + "`/opt/bin/mpiexec -x A=1 /opt/t/trtllm-llmapi-launch`" + ` is left out: sparkrun starts the ranks itself
`},
		"trtllm, without mpirun": {"model: org/M\ncommand: trtllm-llmapi-launch trtllm-serve {model} --tp_size 2 --pp_size=2\n", Options{}, `
trtllm of org/M in , 4 machines, TP 2, PP 2, listens at :0
  $ trtllm-llmapi-launch trtllm-serve org/M
`},
		"flags in their other forms": {"model: org/M\ncommand: vllm serve --model=org/N --tensor_parallel_size=2 -pp 2 --data-parallel-size 2 --headless --node-rank 1 --port=7 --x=--host\n", Options{}, `
vllm of org/N in , 8 machines, TP 2, PP 2, DP 2, listens at :7
  $ vllm serve
      --model=org/N
      --x=--host
  note: command: --headless, --node-rank: left out: sparkrun adds what spreads a server over machines
  note: model: org/M: the command serves org/N
`},
		"more machines than its sizes make": {"model: org/M\nmin_nodes: 3\ncommand: vllm serve M --distributed-executor-backend mp\n", Options{}, `
vllm of M in , 3 machines, sizes from machines and model, native, listens at :0
  $ vllm serve M
  note: model: org/M: the command serves M
`},
		"variables before the command": {"model: M\nenv: {A: 1}\ncommand: export B='$x' && A=2 vllm serve M\n", Options{}, `
vllm of M in , 1 machine, sizes from machines and model, listens at :0
  $ vllm serve M
  A=1
  B=$x
  A=2
`},
		"a variable of each machine": {"model: M\nenv: {NCCL_SOCKET_IFNAME: eth9}\ncommand: vllm serve M\n", Options{}, `
vllm of M in , 1 machine, sizes from machines and model, listens at :0
  $ vllm serve M
  NCCL_SOCKET_IFNAME=eth9
  note: env.NCCL_SOCKET_IFNAME: eth9 on every machine, in place of what each finds for itself
`},
		"secrets": {"model: M\nenv: {HF_TOKEN: \"${HF_TOKEN}\", A_KEY: $A_KEY, B_KEY: literal}\ncommand: vllm serve M --api-key x\n",
			Options{Environ: []string{"HF_TOKEN=hf"}, Secrets: []string{"B_KEY=/file", "VLLM_API_KEY"}}, `
vllm of M in , 1 machine, sizes from machines and model, listens at :0
  $ vllm serve M
  secret HF_TOKEN
  note: command: --api-key: left out: it is what --secret VLLM_API_KEY gives
  note: env.HF_TOKEN: yours is given to the ranks as a secret
  note: env.A_KEY: left out: it is not set here
`},
		"secrets and variables of yours, allowed": {"model: M\nenv: {GITHUB_TOKEN: $GITHUB_TOKEN, HUGGING_FACE_HUB_TOKEN: $HUGGING_FACE_HUB_TOKEN, URL: $DATABASE_URL}\ncommand: vllm serve M\n",
			Options{Trusted: true, Environ: []string{"GITHUB_TOKEN=gh", "HUGGING_FACE_HUB_TOKEN=hf", "DATABASE_URL=db"}}, `
vllm of M in , 1 machine, sizes from machines and model, listens at :0
  $ vllm serve M
  URL=db
  secret GITHUB_TOKEN
  secret HUGGING_FACE_HUB_TOKEN
  note: env.GITHUB_TOKEN: yours is given to the ranks as a secret
  note: env.HUGGING_FACE_HUB_TOKEN: yours is given to the ranks as a secret
  note: env.URL: $DATABASE_URL is filled in with yours
`},
		"an address that the workload leaves out, and says so": {"model: M\nenv: {VLLM_HOST_IP: 10.0.0.1}\ncommand: vllm serve M\n", Options{}, `
vllm of M in , 1 machine, sizes from machines and model, listens at :0
  $ vllm serve M
  VLLM_HOST_IP=10.0.0.1
`},
		"a host of the recipe's": {"model: M\ncommand: vllm serve M --host 10.0.0.1\n", Options{}, `
vllm of M in , 1 machine, sizes from machines and model, listens at 10.0.0.1:0
  $ vllm serve M
  note: host: 10.0.0.1: it listens there, as the recipe has it; --host decides otherwise
`},
		"after -- the user wins": {v1, Options{Serve: workloads.Serve{Args: []string{"--port=9000", "-tp", "4", "--host", "a", "--distributed-e", "mp"}}}, `
vllm of org/M in my/vllm-node, 4 machines, sizes from machines and model, listens at :0
  $ vllm serve org/M
      --max-model-len 4096
      --speculative-config '{"n":4096}'
  FLAG=1
`},
		"after -- nothing of a flag": {v1, Options{Serve: workloads.Serve{Port: 9000, Host: "a", Args: []string{"--port", "9001", "--pp", "x"}}}, `
vllm of org/M in my/vllm-node, 2 machines, TP 2, ray, listens at a:9000
  $ vllm serve org/M
      --max-model-len 4096
      --speculative-config '{"n":4096}'
  FLAG=1
`},
		"trusted": {"model: M\ncontainer: my/i\nmods: [mods/a, '@r/b']\npre_exec: ['echo {model} it''s']\nexecutor_config: {privileged: true, cap_add: [SYS_NICE], ulimit: ['nofile=1:2'], ipc: private, shm_size: 1g}\ncommand: vllm serve M\n",
			Options{Trusted: true}, `
vllm of M in my/i, 1 machine, sizes from machines and model, listens at :0
  $ vllm serve M
  docker --cap-add=SYS_NICE
  docker --cap-add=ALL
  docker --security-opt=seccomp=unconfined
  docker --security-opt=apparmor=unconfined
  shm 1073741824
  ulimit nofile=1:2
  setup> export WORKSPACE_DIR="$PWD"
  setup> (cd "$SPARKRUN_STAGE/mods/a" && chmod +x run.sh && ./run.sh)
  setup> (cd "$SPARKRUN_STAGE/mods/b" && chmod +x run.sh && ./run.sh)
  setup> bash -c 'echo M it'\''s'
  note: executor_config.privileged: given as all capabilities without seccomp and AppArmor, to whom the machines' policy allows it; devices beside the GPU's and RDMA's are not
`},
		"without privileges after all": {"model: M\nexecutor_config: {privileged: true}\ncommand: vllm serve M\n", Options{Set: []Setting{{"privileged", "false"}}}, `
vllm of M in , 1 machine, sizes from machines and model, listens at :0
  $ vllm serve M
`},
	} {
		l, err := read(t, c.recipe).Launch(c.options)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(strings.TrimPrefix(c.want, "\n"), render(l)); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

func TestLaunchRefuses(t *testing.T) {
	with := func(fields string) string { return "model: M\n" + fields + "\ncommand: vllm serve M\n" }
	for name, c := range map[string]struct {
		recipe  string
		options Options
		want    string
	}{
		"too few":             {with("min_nodes: 4"), Options{Nodes: 2}, "wants 4 machines or more (min_nodes): --nodes 4 is the nearest"},
		"too many":            {with("solo_only: true"), Options{Nodes: 2}, "is for at most 1 machine (solo_only): --nodes 1 is the nearest"},
		"one of a cluster's":  {with("cluster_only: true"), Options{Nodes: 1}, "wants 2 machines or more (cluster_only)"},
		"no such value":       {v1, Options{Set: []Setting{{"lenn", "1"}}}, "-o lenn: invalid: the recipe has no such value: it has model, port, host, tensor_parallel, len"},
		"a size that is none": {v1, Options{Set: []Setting{{"tensor_parallel", "two"}}}, "-o tensor_parallel: invalid: want a number"},
		"a placeholder":       {strings.Replace(v1, "{len}", "{length}", 1), Options{}, "line 1: {length} has no value: give it one with -o length=VALUE"},
		"a brace":             {strings.Replace(v1, "{{", "{", 1), Options{}, "a brace that is meant is written twice"},
		"a brace's end":       {strings.Replace(v1, "}}", "}", 1), Options{}, "line 4: a `}` alone"},
		"a format":            {strings.Replace(v1, "{len}", "{len:>9}", 1), Options{}, "`{len:>9}"},
		"a loop":              {"model: M\ndefaults: {a: '{b}', b: '{a}'}\ncommand: vllm serve {a}\n", Options{}, "leads back to itself"},
		"a bomb":              {"model: M\ndefaults: {a: '{b}{b}{b}{b}{b}{b}{b}{b}', b: '{c}{c}{c}{c}{c}{c}{c}{c}', c: '{d}{d}{d}{d}{d}{d}{d}{d}', d: '{e}{e}{e}{e}{e}{e}{e}{e}', e: '{f}{f}{f}{f}{f}{f}{f}{f}', f: 'xxxxxxxxxxxxxxxxxxxxxx'}\ncommand: vllm serve {a}\n", Options{}, "grows beyond 256 KiB"},
		"another runtime":     {with("runtime: llama-cpp"), Options{}, "llama-cpp: sparkrun serves with vllm, sglang and trtllm by recipes; without a recipe there is `sparkrun launch llamacpp` and `sparkrun launch exo`; `sparkrun launch exec --image IMAGE`"},
		"another program":     {"model: M\ncommand: llama-server -m M\n", Options{}, "`llama-server -m M`: want `vllm serve`"},
		"an engine's program": {"model: M\ncommand: llama-server -m M\n", Options{}, "; without a recipe there is `sparkrun launch llamacpp` and"},
		"not what it says":    {with("runtime: sglang"), Options{}, "runtime: invalid: sglang: the command starts vllm"},
		"a script":            {"model: M\ncommand: |\n  cd /x\n  vllm serve M\n", Options{}, "another command in line 2"},
		"no number":           {"model: M\ncommand: vllm serve M -tp auto\n", Options{}, "-tp auto: want a number"},
		"no value":            {"model: M\ncommand: vllm serve M --port\n", Options{}, "--port has no value"},
		"no port":             {"model: M\ncommand: vllm serve M --port 70000\n", Options{}, "want a number from 1 to 65535"},
		"an odd backend":      {"model: M\ncommand: vllm serve M --distributed-executor-backend external_launcher\n", Options{}, "want ray or mp"},
		"a key":               {"model: M\ncommand: vllm serve M --api-key secret\n", Options{}, "--secret VLLM_API_KEY"},
		"a secret":            {with("env: {HF_TOKEN: hf_abc}"), Options{}, "env.HF_TOKEN: invalid: its name says that it holds a secret"},
		"another's secret":    {with("env: {HF_TOKEN: $TOKEN}"), Options{Environ: []string{"TOKEN=x"}}, "--secret HF_TOKEN=FILE"},
		"a hidden secret":     {with("env: {X: 'a${HF_TOKEN}'}"), Options{Environ: []string{"HF_TOKEN=x"}}, "a secret by its name"},
		"a variable's name":   {with("env: {'A B': 1}"), Options{}, "a variable's name is letters"},
		"a shell's variable":  {strings.Replace(v1, "FLAG: 1", "FLAG: $HOME", 1), Options{}, "a shell in the container would fill it in"},
		"mods":                {with("mods: [mods/x]"), Options{Name: "it"}, "recipe it: not trusted: it has mods (mods/x)"},
		"commands":            {with("pre_exec: [ls, ls]"), Options{}, "pre_exec, 2 commands in each container"},
		"privileges":          {with("executor_config: {privileged: true}"), Options{}, "privileged: true, the rights of root"},
		"by -o":               {with("env: {}"), Options{Set: []Setting{{"privileged", "true"}}}, "privileged: true, the rights of root"},
		"capabilities":        {with("executor_config: {devices: [/dev/kvm]}"), Options{}, "--device=/dev/kvm, which give the container more"},
		"a mod outside":       {with("mods: [../../etc]"), Options{Trusted: true}, "want a folder beside the recipe"},
		"a mod at the root":   {with("mods: [/etc]"), Options{Trusted: true}, "want a folder beside the recipe"},
		"a mod of a shell":    {with("mods: ['mods/$(x)']"), Options{Trusted: true}, "want a folder beside the recipe"},
		"the same name twice": {with("mods: [a/x, b/x]"), Options{Trusted: true}, "two mods have this name"},
		"yours, a secret":     {with("env: {GITHUB_TOKEN: $GITHUB_TOKEN}"), Options{Environ: []string{"GITHUB_TOKEN=x"}}, "not trusted: it has env.GITHUB_TOKEN, which takes your GITHUB_TOKEN into its image (--secret GITHUB_TOKEN"},
		"yours, a variable":   {with("env: {X: 'a ${DATABASE_URL}'}"), Options{Environ: []string{"DATABASE_URL=x"}}, "not trusted: it has env.X, which takes your DATABASE_URL into its image"},
		"a folder":            {"model: /home/ada\ncommand: vllm serve {model}\n", Options{}, "not trusted: it has model /home/ada, a folder of your machines"},
		"a folder from here":  {"model: .\ncommand: vllm serve {model}\n", Options{}, "-o model=NAME serves another"},
		"a folder after all":  {"model: M\ncommand: vllm serve /home/ada\n", Options{Set: []Setting{{"model", "/models/m"}}}, "it has model /home/ada"},
		"all it asks for":     {"model: ../m\nmods: [mods/x]\ncommand: vllm serve {model}\n", Options{}, "starts; and model ../m"},
		"mods on a host":      {with("mods: [mods/x]"), Options{Trusted: true, OnHost: true}, "leave out --runtime host"},
	} {
		_, err := read(t, c.recipe).Launch(c.options)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v; want %q", name, err, c.want)
		} else if !errors.Is(err, launcher.ErrInvalid) {
			t.Errorf("%s: %v wraps no ErrInvalid", name, err)
		}
	}
}

// A folder that the user names, or has allowed, is served.
func TestLaunchOfAFolder(t *testing.T) {
	r := read(t, "model: /home/ada\ncommand: vllm serve {model}\n")
	for want, o := range map[string]Options{"/models/m": {Set: []Setting{{"model", "/models/m"}}}, "/home/ada": {Trusted: true}, "org/M": {Set: []Setting{{"model", "org/M"}}}} {
		if l, err := r.Launch(o); err != nil || l.Serve.Model != want {
			t.Errorf("got %s, %v; want %s", l.Serve.Model, err, want)
		}
	}
}

func TestInto(t *testing.T) {
	l, err := read(t, v1).Launch(Options{Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	r := workloads.Request{Job: launcher.Spec{Name: "mine"}, Serve: workloads.Serve{Args: []string{"--x"}, Program: "/opt/vllm"}, Env: []string{"A=1"}}
	l.Into(&r)
	if r.Job.Name != "mine" || r.Job.Nodes != 2 || r.Serve.TP != 2 || !cmp.Equal(r.Serve.Args, []string{"--x"}) || r.Serve.Program != "/opt/vllm" || !cmp.Equal(r.Env, []string{"A=1"}) {
		t.Errorf("got %+v", r)
	}
}
