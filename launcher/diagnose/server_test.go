package diagnose

import (
	"os"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

// What vLLM 0.32 writes when it goes wrong: its API server to standard error, all of its processes
// to the log. Places in traces are cut down.
const (
	vllmGaveUp = `(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "/opt/vllm/v1/engine/utils.py", line 1431, in wait_for_engine_startup
(APIServer pid=7)     raise RuntimeError(
(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}`
	vllmNoRoom = `(Worker pid=9) ERROR 11-23 03:31:00 [multiproc_executor.py:953] WorkerProc failed to start.
(Worker pid=9) ERROR 11-23 03:31:00 [multiproc_executor.py:953] Traceback (most recent call last):
(Worker pid=9) ERROR 11-23 03:31:00 [multiproc_executor.py:953]   File "/opt/vllm/v1/worker/cpu_worker.py", line 68, in __init__
(Worker pid=9) ERROR 11-23 03:31:00 [multiproc_executor.py:953]     raise ValueError(
(Worker pid=9) ERROR 11-23 03:31:00 [multiproc_executor.py:953] ValueError: SAYS
(EngineCore pid=8) ERROR 11-23 03:31:01 [core.py:1510] EngineCore failed to start.
(EngineCore pid=8) ERROR 11-23 03:31:01 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=8) ERROR 11-23 03:31:01 [core.py:1510]   File "/opt/vllm/v1/executor/multiproc_executor.py", line 823, in wait_for_ready
(EngineCore pid=8) ERROR 11-23 03:31:01 [core.py:1510]     raise e from None
(EngineCore pid=8) ERROR 11-23 03:31:01 [core.py:1510] Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.`
	vllmBreaks = `(Worker_TP0 pid=9) ERROR 11-23 03:31:00 [multiproc_executor.py:1063] WorkerProc hit an exception.
(Worker_TP0 pid=9) ERROR 11-23 03:31:00 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker_TP0 pid=9) ERROR 11-23 03:31:00 [multiproc_executor.py:1063]   File "/opt/torch/distributed/distributed_c10d.py", line 3012, in all_reduce
(Worker_TP0 pid=9) ERROR 11-23 03:31:00 [multiproc_executor.py:1063]     work.wait()
(Worker_TP0 pid=9) ERROR 11-23 03:31:00 [multiproc_executor.py:1063] RuntimeError: SAYS
(EngineCore pid=8) ERROR 11-23 03:31:01 [core.py:1512] EngineCore encountered a fatal error.
(EngineCore pid=8) ERROR 11-23 03:31:01 [core.py:1512] Traceback (most recent call last):
(EngineCore pid=8) ERROR 11-23 03:31:01 [core.py:1512]   File "/opt/vllm/v1/executor/multiproc_executor.py", line 444, in get_response
(EngineCore pid=8) ERROR 11-23 03:31:01 [core.py:1512]     raise RuntimeError(
(EngineCore pid=8) ERROR 11-23 03:31:01 [core.py:1512] RuntimeError: Worker failed with error 'SAYS', please check the stack trace above for the root cause
(APIServer pid=7) ERROR 11-23 03:31:01 [async_llm.py:906] AsyncLLM output_handler failed.
(APIServer pid=7) ERROR 11-23 03:31:01 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.
(APIServer pid=7) INFO:     Shutting down`
	vllmOldTrouble = `(APIServer pid=7) ERROR 11-23 01:00:00 [serving.py:1] Error in preprocessing prompt inputs
(APIServer pid=7) ERROR 11-23 01:00:00 [serving.py:1] ValueError: You passed 600 input tokens
`
	vllmDied     = `(VllmWorker-1 pid=9) ERROR 11-23 03:31:00 [multiproc_executor.py:315] Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.`
	vllmCoreDied = `(APIServer pid=7) WARNING 11-23 03:31:00 [core_client.py:817] [shutdown] MPClient: engine core exited unexpectedly; starting cleanup
(APIServer pid=7) ERROR 11-23 03:31:01 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.`
	vllmLeaves = `(APIServer pid=7) INFO 11-23 03:31:00 [launcher.py:1] [shutdown] API server: shutdown triggered
(APIServer pid=7) INFO:     Application shutdown complete.`
)

// knownLogs are read as the agent of a node reads them.
func knownLogs() *Servers { return NewServers(engine.Servers()) }

func TestEvaluateAServer(t *testing.T) {
	const (
		room = "Available memory on node 0 (3.1/23.0 GiB) on kv cache allocation is less than requested memory for kv (999.0 GiB). Decrease VLLM_CPU_KVCACHE_SPACE"
		peer = "[gloo/transport/tcp/pair.cc:538] Connection closed by peer [192.168.100.12]:4711"
	)
	one, left := launcher.Exit{Code: 1}, launcher.Exit{}
	says := func(text, says string) string { return strings.ReplaceAll(text, "SAYS", says) }
	tests := map[string]struct {
		exit     launcher.Exit
		err, log string
		want     string
		lost     bool
	}{
		"a worker has no room": {exit: one, err: vllmGaveUp, log: says(vllmNoRoom, room),
			want: "exit 1: " + room},
		"a worker that fails as nobody has yet": {exit: one, err: vllmGaveUp,
			log: says(vllmNoRoom, "the moon is full"), want: "exit 1: ValueError: the moon is full"},
		"only that something failed": {exit: one, err: vllmGaveUp,
			want: "exit 1: RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}", lost: true},
		"it fails by itself": {exit: one,
			err:  "(APIServer pid=7) OSError: [Errno 98] Address already in use",
			want: "exit 1: the port is taken: Address already in use"},
		"left, as a worker broke": {exit: left, log: says(vllmBreaks, "bad luck"),
			want: "exit 0: RuntimeError: bad luck"},
		"left, as a worker lost its peer": {exit: left, log: says(vllmBreaks, peer),
			want: "exit 0: RuntimeError: " + peer, lost: true},
		"left, as a worker was killed": {exit: left, err: "warning: x", log: vllmOldTrouble + vllmDied,
			want: "exit 0: Worker proc VllmWorker-1 died unexpectedly (exit code: -9)"},
		"left, as its other worker was killed": {exit: left, log: vllmDied + "\n" + says(vllmBreaks, peer),
			want: "exit 0: Worker proc VllmWorker-1 died unexpectedly (exit code: -9)"},
		"left, as its worker gave up its peer": {exit: left,
			log:  says(vllmBreaks, peer) + "\n" + strings.Replace(vllmDied, "-9", "-6", 1),
			want: "exit 0: Worker proc VllmWorker-1 died unexpectedly (exit code: -6)", lost: true},
		"left, as its engine was dead": {exit: left,
			log: "(APIServer pid=7) ERROR 11-23 03:31:01 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", want: "exit 0: vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", lost: true},
		"left, as its engine broke": {exit: left,
			log: "(EngineCore pid=8) ERROR 11-23 03:31:01 [core.py:1512] EngineCore encountered a fatal error.\n(EngineCore pid=8) ERROR 11-23 03:31:01 [core.py:1512] KeyError: 'cmpl-1'\n(APIServer pid=7) ERROR 11-23 03:31:01 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", want: "exit 0: KeyError: 'cmpl-1'"},
		"ended by us, as its worker was killed": {exit: launcher.Exit{Signal: 15, ByUs: true}, err: "warning: x",
			log:  vllmDied + "\n" + vllmLeaves,
			want: "killed by SIGTERM (15): Worker proc VllmWorker-1 died unexpectedly (exit code: -9)"},
		"ended by us, after other trouble": {exit: launcher.Exit{Signal: 15, ByUs: true},
			log: vllmOldTrouble + says(vllmBreaks, peer), want: "killed by SIGTERM (15)"},
		"a flag that it does not know": {exit: launcher.Exit{Code: 2},
			err: "usage: vllm serve [model_tag] [options]\nvllm serve: error: unrecognized arguments: --max-modl-len 9", want: "exit 2: error: unrecognized arguments: --max-modl-len 9"},
		"a module that is not there": {exit: one,
			err: "/usr/bin/python3: Error while finding module specification for 'sglang.launch_server' (ModuleNotFoundError: No module named 'sglang')", want: "exit 1: No module named 'sglang'"},
		"a plain module that is not there": {exit: one, err: "/usr/bin/python3.12: No module named sglang",
			want: "exit 1: No module named sglang"},
		"left, as the engine core was killed": {exit: left, log: vllmCoreDied,
			want: "exit 0: engine core exited unexpectedly"},
		"left in peace, after trouble long before": {exit: left, log: vllmOldTrouble + vllmLeaves, want: "exit 0"},
		"in colour": {exit: left,
			log:  "\x1b[0;36m(Worker pid=9)\x1b[0;0m \x1b[31mERROR\x1b[0m \x1b[90m11-23 03:31:00\x1b[0m \x1b[90m[multiproc_executor.py:315]\x1b[0m Worker proc VllmWorker-1 died unexpectedly (exit code: -9)",
			want: "exit 0: Worker proc VllmWorker-1 died unexpectedly (exit code: -9)"},
		"no server, and an exception that it only printed": {exit: one, err: "oh", log: "ValueError: 3", want: "exit 1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			ev := evidence{logs: knownLogs(), lines: strings.Split(tt.err, "\n"), aside: strings.Split(tt.log, "\n")}
			if tt.err == "" { // as gather gives it
				ev.lines, ev.aside = ev.aside, nil
			}
			got := ev.evaluate(tt.exit)
			if got.String() != tt.want || got.LostPeer != tt.lost {
				t.Errorf("%q, lost a peer: %t; want %q, %t", got, got.LostPeer, tt.want, tt.lost)
			}
		})
	}
}

// The ends of what the real vLLM 0.32 logged. Where one of its processes was killed it ended with 0.
func TestEvaluateARealServer(t *testing.T) {
	for file, tt := range map[string]struct {
		exit      launcher.Exit
		err, want string
	}{
		"vllm-core-killed.log":   {want: "exit 0: engine core exited unexpectedly"},
		"vllm-worker-killed.log": {want: "exit 0: Worker proc VllmWorker-1 died unexpectedly (exit code: -9)"},
		"vllm-no-room.log": {exit: launcher.Exit{Code: 1},
			err:  "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
			want: "exit 1: Available memory on node 0 (20.89/23.54 GiB) on kv cache allocation is less than requested memory for kv (999.0 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or reduce CPU memory used by other processes."},
	} {
		text, err := os.ReadFile("testdata/" + file)
		must(t, err)
		ev := evidence{logs: knownLogs(),
			lines: []string{tt.err, "/usr/lib/python3.12/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked shared_memory objects to clean up at shutdown"},
			aside: strings.Split(string(text), "\n")}
		if got := ev.evaluate(tt.exit); got.String() != tt.want {
			t.Errorf("%s: %q, want %q", file, got, tt.want)
		}
	}
}
