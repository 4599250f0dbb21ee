package diagnose

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

const (
	torchRecord = `{"message": {"message": "RuntimeError: out of luck", "extraInfo": {"py_callstack": "Traceback (most recent call last):\n  File \"boom.py\", line 3, in main\n    raise RuntimeError(\"out of luck\")\nRuntimeError: out of luck\n", "timestamp": "1771070400"}}}`
	// Records of /dev/kmsg: priority, number, microseconds since boot, flags; text.
	kernelText = `6,339,5140900,-;NET: Registered PF_INET6 protocol family
3,812,90000000,-;Out of memory: Killed process 4711 (python3) total-vm:118000000kB, anon-rss:100663296kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:200kB oom_score_adj:0
4,813,95000000,-;NVRM: Xid (PCI:000f:01:00): 31, pid=4712, name=python3, Ch 00000008, intr 00000000. MMU Fault
4,814,96000000,-;NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus.
3,815,97000000,-;Memory cgroup out of memory: Killed process 4713 (train) total-vm:1kB, anon-rss:1048576kB
`
	oomText = `6,816,97000001,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/x,task_memcg=/sparkrun/n1-aaaa.1,task=VLLM::Engine Co,pid=99,uid=0
6,817,97000002,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/sparkrun-n1-bbbb.1.scope/ranks,task=python3,pid=98,uid=0
`
)

// torchrunSays is the end of what torch 1.13's torchrun wrote.
func torchrunSays(code, trace string) []string {
	return strings.Split(`    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
=====================================================
x/ar.py FAILED
-----------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
-----------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_16:57:00
  host      : spark2
  rank      : 5 (local_rank: 1)
  exitcode  : `+code+` (pid: 1009)
  error_file: <N/A>
  traceback : `+trace+`
=====================================================`, "\n")
}

func TestEvaluateAnExit(t *testing.T) {
	code, killed := launcher.Exit{Code: 1}, launcher.Exit{Signal: 9}
	tests := map[string]struct {
		exit launcher.Exit
		ev   evidence
		want string // Exit.String()
		lost bool
	}{
		"nothing is known": {exit: code, want: "exit 1"},
		"the OOM killer": {exit: killed, ev: evidence{pid: 4711, kernel: kernelText},
			want: "killed by SIGKILL (9): out of memory: the kernel's OOM killer ended it (it held 96.0 GiB)"},
		"MPICH's spawn": {exit: launcher.Exit{Code: 15, Cause: "MPI_Abort with code 15"}, ev: evidence{lines: []string{
			"Abort(672750351) on node 0 (rank 0 in comm 0): Fatal error in internal_Comm_spawn: Other MPI error, error stack:",
			"internal_Comm_spawn(101)....: MPI_Comm_spawn(command=./x, argv=(nil), maxprocs=2, MPI_INFO_NULL) failed",
			"MPID_Comm_spawn_multiple(86): Error in spawn call"}},
			want: "MPI_Abort with code 15: " + launcher.NoSpawn},
		"Open MPI's spawn": {exit: code, ev: evidence{lines: []string{
			"All nodes which are allocated for this job are already filled.",
			"[spark1:00121] *** An error occurred in MPI_Comm_spawn",
			"[spark1:00121] *** MPI_ERR_SPAWN: could not spawn processes"}}, want: "exit 1: " + launcher.NoSpawn},
		"a small /dev/shm": {exit: code, ev: evidence{lines: []string{
			"RuntimeError: DataLoader worker (pid 18) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
			"", "The above exception was the direct cause of the following exception:", "", "Traceback (most recent call last):",
			"RuntimeError: DataLoader worker (pid(s) 18) exited unexpectedly"}},
			want: "exit 1: a DataLoader worker got a bus error: /dev/shm is full (of a container: --shm-size, such as 16G)"},
		"docker stop": {exit: launcher.Exit{Signal: 15}, ev: evidence{lines: []string{"Connection reset by peer",
			"sparkrun: container sparkrun-7.1-0-a-b was ended from outside: by docker stop"}},
			want: "killed by SIGTERM (15): its container was ended from outside: by docker stop"},
		"no script in the container": {exit: launcher.Exit{Code: 2},
			ev: evidence{contained: true,
				lines: []string{"/usr/bin/python3: can't open file '/w/train.py': [Errno 2] No such file or directory"}},
			want: "exit 2: there is no /w/train.py in the container: --mount . --workdir . shows it this folder, --stage FILE brings a file along"},
		"no script on a host": {exit: launcher.Exit{Code: 2},
			ev: evidence{lines: []string{"/usr/bin/python3: can't open file '/w/train.py': [Errno 2] No such file or directory"}}, want: "exit 2"},
		"docker stop of a server": {exit: launcher.Exit{},
			ev: evidence{lines: []string{"bye",
				"sparkrun: container sparkrun-7.1-0-a-b was ended from outside: by docker stop"}},
			want: "exit 0: its container was ended from outside: by docker stop"},
		"a program that speaks of containers": {exit: code,
			ev: evidence{lines: []string{"the container x was ended from outside: y"}}, want: "exit 1"},
		"the limit of a cgroup": {exit: killed, ev: evidence{pid: 4713, kernel: kernelText},
			want: "killed by SIGKILL (9): out of memory: its cgroup's limit was reached, and the kernel's OOM killer ended it (it held 1.0 GiB)"},
		"another was killed by it": {exit: killed, ev: evidence{pid: 4714, kernel: kernelText},
			want: "killed by SIGKILL (9)"},
		"an Xid of its own": {exit: code, ev: evidence{pid: 4712, kernel: kernelText, lines: []string{"RuntimeError: x"}},
			want: "exit 1: the GPU reported an error: NVRM: Xid (PCI:000f:01:00): 31, pid=4712, name=python3, Ch 00000008, intr 00000000. MMU Fault"},
		"an Xid of nobody's, just then": {exit: code, ev: evidence{pid: 1, kernel: kernelText, died: 97 * time.Second},
			want: "exit 1: the GPU reported an error: NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus."},
		"an Xid of nobody's, long ago": {exit: code, ev: evidence{pid: 1, kernel: kernelText, died: time.Hour},
			want: "exit 1"},
		"an error file": {exit: code,
			ev: evidence{record: []byte(torchRecord), lines: []string{"boom"}}, want: "exit 1: RuntimeError: out of luck"},
		"an error file of a lost peer": {exit: code, lost: true,
			ev:   evidence{record: []byte(`{"message":{"message":"RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.2]:3"}}`)},
			want: "exit 1: RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.2]:3"},
		"an error file of an agent that lost the store": {exit: code, lost: true,
			ev:   evidence{record: []byte(`{"message":{"message":"RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details."}}`)},
			want: "exit 1: RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details."},
		"an old error file": {exit: code, ev: evidence{record: []byte(`{"message": "it broke"}`)}, want: "exit 1: it broke"},
		"a broken one": {exit: code,
			ev: evidence{record: []byte(`{"message": {`), lines: []string{"ValueError: 3"}}, want: "exit 1: ValueError: 3"},
		"an exception, and more behind it": {exit: code,
			ev:   evidence{lines: []string{"Traceback", "torch.cuda.CudaError: odd", "bye"}},
			want: "exit 1: torch.cuda.CudaError: odd"},
		"Ray's own time": {exit: code,
			ev: evidence{lines: []string{"    raise Exception(",
				"Exception: The current node timed out during startup. This could happen because some of the raylet failed to startup or the GCS has become overloaded."}},
			want: "exit 1: Ray was not up within the 30 s that it allows itself: the machine is too busy for it, or the head does not answer: --max-restarts N tries again, --ray-head-arg=--include-dashboard=false makes the start lighter"},
		"an interrupt that it survived": {exit: launcher.Exit{Code: 3},
			ev: evidence{lines: []string{"Traceback (most recent call last):", `  File "t.py", line 8, in <module>`,
				"KeyboardInterrupt", "bye"}}, want: "exit 3"},
		"an interrupt long before an exit 1": {exit: code,
			ev: evidence{lines: []string{"KeyboardInterrupt", "the next step"}}, want: "exit 1"},
		"an interrupt as Python's end": {exit: code,
			ev: evidence{lines: []string{"ValueError: 3", "KeyboardInterrupt"}}, want: "exit 1: KeyboardInterrupt"},
		"an interrupt by its signal": {exit: launcher.Exit{Signal: 2},
			ev: evidence{lines: []string{"KeyboardInterrupt", ""}}, want: "killed by SIGINT (2): KeyboardInterrupt"},
		"an interrupt by a shell's code": {exit: launcher.Exit{Code: 130},
			ev: evidence{lines: []string{"KeyboardInterrupt", "stopped"}}, want: "exit 130: KeyboardInterrupt"},
		"a warning": {exit: code, ev: evidence{lines: []string{"WARNING: x is slow", "UserWarning: x is old"}}, want: "exit 1"},
		"a warning after the cause": {exit: code,
			ev: evidence{lines: []string{"ValueError: 3", "UserWarning: x is old"}}, want: "exit 1: ValueError: 3"},
		"a warning that is an error": {exit: code,
			ev: evidence{lines: []string{`  File "t.py", line 8, in <module>`, `    warnings.warn("x is old")`,
				"UserWarning: x is old"}}, want: "exit 1: UserWarning: x is old"},
		"a bare exception": {exit: code, ev: evidence{lines: []string{"Exception: no luck"}},
			want: "exit 1: Exception: no luck"},
		"CUDA's memory": {exit: code,
			ev:   evidence{lines: []string{"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"}},
			want: "exit 1: the GPU's memory ran out"},
		"a CUDA error": {exit: code,
			ev: evidence{lines: []string{"RuntimeError: CUDA error: an illegal memory access was encountered",
				"Compile with..."}},
			want: "exit 1: CUDA error: an illegal memory access was encountered"},
		"an error that the program's text names": {exit: code,
			ev: evidence{lines: []string{`Traceback (most recent call last):`, `  File "t.py", line 8, in <module>`,
				`    raise RuntimeError("CUDA error: out of memory")`, `RuntimeError: CUDA error: an illegal address`}},
			want: "exit 1: CUDA error: an illegal address"},
		"an error that it only looks for": {exit: code, ev: evidence{lines: []string{`  File "t.py", line 8, in <module>`,
			`    if "Address already in use" in text: raise ValueError(3)`,
			`                                         ^^^^^^^^^^^^^^^^^^^`, `ValueError: 3`}}, want: "exit 1: ValueError: 3"},
		"torchrun's worker, killed": {exit: code,
			ev:   evidence{lines: torchrunSays("-9", "Signal 9 (SIGKILL) received by PID 1009")},
			want: "exit 1: worker rank 5: Signal 9 (SIGKILL) received by PID 1009"},
		"torchrun's worker, a code": {exit: code,
			ev: evidence{lines: torchrunSays("3",
				"To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html")},
			want: "exit 1: worker rank 5: exit 3"},
		"torchrun's worker, a trace": {exit: code,
			ev: evidence{lines: append([]string{"ValueError: bad batch"},
				torchrunSays("1", "To enable traceback see: x")...)}, want: "exit 1: worker rank 5: ValueError: bad batch"},
		"gloo's lost peer": {exit: code, lost: true, ev: evidence{lines: []string{
			"RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [172.30.0.12]:42242"}},
			want: "exit 1: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [172.30.0.12]:42242"},
		"NCCL's lost peer": {exit: launcher.Exit{Signal: 6}, lost: true, ev: evidence{lines: []string{
			"ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."}},
			want: "killed by SIGABRT (6): ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."},
		"Open MPI 4's abort": {exit: launcher.Exit{Code: 42}, ev: evidence{lines: []string{
			"[spark2][[1,1],2][btl_tcp.c:559] recv failed: Connection reset by peer (104)",
			"MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD", "with errorcode 42.", ""}},
			want: "exit 42: MPI rank 1 called MPI_Abort with code 42"},
		"Open MPI 5's abort": {exit: launcher.Exit{Code: 42}, ev: evidence{lines: []string{
			"MPI_ABORT was invoked on rank 5 in communicator MPI_COMM_WORLD", "  Proc: [[61411,1],5]", "  Errorcode: 42", ""}},
			want: "exit 42: MPI rank 5 called MPI_Abort with code 42"},
		"Open MPI 4's exit": {exit: launcher.Exit{Code: 7}, ev: evidence{lines: []string{
			"mpirun detected that one or more processes exited with non-zero status, thus causing",
			"the job to be terminated. The first process to do so was:", "",
			"  Process name: [[62154,1],3]", "  Exit code:    7"}},
			want: "exit 7: MPI rank 3: exit 7"},
		"Open MPI 5's exit": {exit: launcher.Exit{Code: 7}, ev: evidence{lines: []string{
			"   Process name: [prterun-spark1-4711@1,2] Exit code:    7"}}, want: "exit 7: MPI rank 2: exit 7"},
		"Open MPI's killed": {exit: launcher.Exit{Code: 137}, ev: evidence{lines: []string{
			"prterun noticed that process rank 1 with PID 4711 on node spark2 exited on", "signal 9 (Killed)."}},
			want: "exit 137: MPI rank 1 on spark2: signal 9 (Killed)"},
		"Open MPI's exit, and where": {exit: launcher.Exit{Code: 9}, ev: evidence{lines: []string{
			"  Process name: [[62154,1],3]", "  Exit code:    9", "sparkrun: MPI ranks, 2 a machine, were on spark1 spark2"}},
			want: "exit 9: MPI rank 3 on spark2: exit 9"},
		"Open MPI's killed, by an address": {exit: launcher.Exit{Code: 137}, ev: evidence{lines: []string{
			"mpirun noticed that process rank 1 with PID 0 on node 192.168.100.12 exited on signal 9 (Killed).",
			"sparkrun: MPI ranks, 1 a machine, were on spark1 spark2"}},
			want: "exit 137: MPI rank 1 on spark2: signal 9 (Killed)"},
		"a rank beyond the machines": {exit: launcher.Exit{Code: 9}, ev: evidence{lines: []string{
			"  Process name: [[62154,1],9]", "  Exit code:    9", "sparkrun: MPI ranks, 2 a machine, were on spark1 spark2"}},
			want: "exit 9: MPI rank 9: exit 9"},
		"a server beside MPI's ranks": {exit: launcher.Exit{Code: 137}, ev: evidence{lines: []string{
			"sparkrun: /opt/trtllm/bin/trtllm-serve was killed by signal 9 (killed)"}},
			want: "exit 137: trtllm-serve was killed by signal 9 (killed)"},
		"a server told to end": {exit: launcher.Exit{Code: 143}, ev: evidence{lines: []string{
			"sparkrun: /opt/trtllm/bin/trtllm-serve was told to end, and not by mpirun"}},
			want: "exit 143: trtllm-serve was told to end, and not by mpirun"},
		"a server beside MPI's ranks, with its own words": {exit: launcher.Exit{Code: 1}, ev: evidence{lines: []string{
			"OSError: no such model", "sparkrun: trtllm-serve ended with 1"}}, want: "exit 1: OSError: no such model"},
		"MPICH's lost peer": {exit: launcher.Exit{Code: 15, Cause: "MPI_Abort with code 15", Deliberate: true},
			lost: true, ev: evidence{lines: []string{
				"Fatal error in MPI_Ssend: Unknown error class, error stack:",
				"MPIDI_CH3_iSendv(34)............: Communication error with rank 229"}},
			want: "MPI_Abort with code 15: Communication error with rank 229"},
		"MPICH, told to abort": {exit: launcher.Exit{Code: 11, Cause: "MPI_Abort with code 11", Deliberate: true},
			ev: evidence{lines: []string{
				"Abort(11) on node 6 (rank 6 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 11) - process 6"}},
			want: "MPI_Abort with code 11"},
		"its child was killed at a limit": {exit: code, ev: evidence{kernel: oomText, died: 98 * time.Second,
			group: "n1-aaaa.1", lines: []string{"RuntimeError: engine died"}}, want: "exit 1: out of memory: its cgroup's " +
			"limit was reached, and the kernel's OOM killer ended VLLM::Engine Co (pid 99), a process of its job"},
		"its child was killed": {exit: code, ev: evidence{kernel: oomText, died: 98 * time.Second, group: "n1-bbbb.1"},
			want: "exit 1: out of memory: the kernel's OOM killer ended python3 (pid 98), a process of its job"},
		"another attempt's child was killed": {exit: code, ev: evidence{kernel: strings.ReplaceAll(oomText,
			"aaaa.1", "aaaa.12"), died: 98 * time.Second, group: "n1-aaaa.1"}, want: "exit 1"},
		"its child was killed long before": {exit: code, ev: evidence{kernel: oomText, died: 500 * time.Second,
			group: "n1-aaaa.1"}, want: "exit 1"},
		"escape sequences": {exit: code, ev: evidence{lines: []string{"ValueError: \x1b[31mred\x1b[0m"}},
			want: "exit 1: ValueError: [31mred[0m"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.ev.logs = knownLogs()
			got := tt.ev.evaluate(tt.exit)
			if got.String() != tt.want || got.LostPeer != tt.lost {
				t.Errorf("%q, lost a peer: %t; want %q, %t", got, got.LostPeer, tt.want, tt.lost)
			}
		})
	}
}

// What is told stays small, whatever a rank wrote.
func TestCausesAreBounded(t *testing.T) {
	long := strings.Repeat("ä", 10_000)
	ev := evidence{record: []byte(`{"message":{"message":"` + long + `","extraInfo":{"py_callstack":"first\n` + strings.Repeat(strings.Repeat("ö", 50)+`\n`, 500) + `last"}}}`)}
	for range 100 {
		ev.lines = append(ev.lines, long)
	}
	ev.logs = knownLogs()
	e := ev.evaluate(launcher.Exit{Code: 1})
	if len(e.Words) > launcher.MaxWordsBytes || len(e.Trace) > launcher.MaxTraceBytes+len("…\n") ||
		len(e.Last) > launcher.MaxLastLines*(launcher.MaxLineBytes+1) {
		t.Errorf("words %d, trace %d, last lines %d bytes", len(e.Words), len(e.Trace), len(e.Last))
	}
	if !strings.HasSuffix(e.Trace, "\nlast") || strings.Contains(e.Trace, "first") {
		t.Errorf("the trace is cut at its end: %q", e.Trace)
	}
}

// Lines that only underline the source above are no news.
func TestMarksAreLeftOut(t *testing.T) {
	trace := []string{"Traceback (most recent call last):", `  File "a.py", line 5, in <module>`, "    import x",
		"    ~~~~~~~^", "", "ModuleNotFoundError: No module named 'x'"}
	ev := evidence{lines: trace, logs: knownLogs(), record: []byte(`{"message":{"message":"x","extraInfo":{"py_callstack":"a\n  ^^^^^\nb"}}}`)}
	want := strings.Join(slices.Delete(slices.Clone(trace), 3, 4), "\n")
	if e := ev.evaluate(launcher.Exit{Code: 1}); e.Last != want || e.Trace != "a\nb" {
		t.Errorf("%q, %q", e.Last, e.Trace)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
