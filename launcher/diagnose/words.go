package diagnose

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
)

// What a rank and the kernel wrote, turned into a sentence. All of it is pure: texts in,
// words out.

// evidence is what was found about one failed rank.
type evidence struct {
	pid       int
	died      time.Duration // since boot, as the kernel log counts; 0 = not known
	kernel    string        // records of /dev/kmsg
	record    []byte        // the error file
	lines     []string      // the end of its output: of stderr, if it wrote there
	aside     []string      // then the end of the other stream
	contained bool          // it ran in a container
	group     string        // as in Case
	logs      *Servers
}

// evaluate adds the words to an exit. The kernel knows better than the program why it was
// killed, and the program better than its output why it failed.
func (ev evidence) evaluate(e launcher.Exit) launcher.Exit {
	if e.ByUs { // its own errors are then not known, only what had hit it before
		for _, lines := range [][]string{ev.lines, ev.aside} {
			lines, _ = ev.logs.unprefixed(lines)
			e.Words = cmp.Or(e.Words,
				plain.Cut(plain.Strip(ev.logs.killedProcess(withoutSource(lines), "")), launcher.MaxWordsBytes))
		}
		return e
	}
	message, trace := errorRecord(ev.record)
	text, lost := ev.logs.causeIn(ev.lines, ev.aside, e)
	if m := noScript().FindStringSubmatch(strings.Join(ev.lines[max(len(ev.lines)-1, 0):], "\n")); m != nil &&
		ev.contained {
		text = "there is no " + m[1] + " in the container: --mount . --workdir . shows it this folder, --stage " +
			"FILE brings a file along"
	}
	if !e.Failed() && !ev.logs.dead().MatchString(strings.Join(ev.lines, "\n")+"\n"+strings.Join(ev.aside, "\n")) {
		text, lost = "", false // it may have exited normally: what its log says is older
	}
	if message != "" {
		_, lost = ev.logs.recognise([]string{message})
	}
	kernel := ""
	if e.Signal == 9 {
		kernel = outOfMemory(ev.kernel, ev.pid)
	}
	if kernel == "" {
		kernel = xid(ev.kernel, ev.pid, ev.died)
	}
	outside := endedFromOutside(ev.lines)
	if outside == "" {
		outside = endedFromOutside(ev.aside)
	}
	if e.LostPeer = lost && kernel == "" && outside == ""; kernel == "" && !e.LostPeer && e.Failed() {
		kernel = childOutOfMemory(ev.kernel, ev.group, ev.died)
	}
	for _, words := range []string{kernel, outside, message, text} {
		if e.Words == "" {
			e.Words = plain.Cut(plain.Strip(words), launcher.MaxWordsBytes)
		}
	}
	e.Trace = tailOf(strings.Join(withoutMarks(strings.Split(plain.Strip(trace), "\n")), "\n"), launcher.MaxTraceBytes)
	var last []string
	told := withoutMarks(ev.lines)
	for _, l := range told[max(0, len(told)-launcher.MaxLastLines):] {
		last = append(last, plain.Cut(plain.Strip(l), launcher.MaxLineBytes))
	}
	e.Last = strings.Join(last, "\n")
	return e
}

// withoutMarks drops the lines by which Python, from 3.11 on, underlines a part of the source above.
func withoutMarks(lines []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(l string) bool {
		return strings.Trim(l, "^~ ") == "" && strings.TrimSpace(l) != ""
	})
}

// endedFromOutside finds the last line of a container's outer half. It drops the
// container's name, which would make ranks that ended alike look different.
func endedFromOutside(lines []string) string {
	if len(lines) == 0 || !strings.HasPrefix(lines[len(lines)-1], "sparkrun: container ") {
		return ""
	}
	_, why, found := strings.Cut(lines[len(lines)-1], launcher.EndedFromOutside)
	if !found {
		return ""
	}
	return "its container" + launcher.EndedFromOutside + why
}

// errorRecord reads what @record of torch.distributed.elastic writes into
// TORCHELASTIC_ERROR_FILE (error_handler.py): a message of "Type: text" with its trace, or
// in older versions a bare string.
func errorRecord(data []byte) (message, trace string) {
	var outer struct {
		Message json.RawMessage `json:"message"`
	}
	if json.Unmarshal(data, &outer) != nil {
		return "", ""
	}
	var inner struct {
		Message   string `json:"message"`
		ExtraInfo struct {
			Callstack string `json:"py_callstack"`
		} `json:"extraInfo"`
	}
	if json.Unmarshal(outer.Message, &inner) == nil && inner.Message != "" {
		return inner.Message, inner.ExtraInfo.Callstack
	}
	_ = json.Unmarshal(outer.Message, &message)
	return message, ""
}

// noScript is Python's message about a missing script.
var noScript = plain.Pattern(`(?m)^\S*python\S*: can't open file '?([^':]+)'?: \[Errno 2\]`)

// peerLost are the texts by which gloo, NCCL, torch's store and rendezvous (torchrun's agents)
// and MPICH say that the other end of a connection has gone.
var peerLost = plain.Pattern(`(?i)connection (was )?(closed|reset) by (remote )?peer|broken pipe|ncclRemoteError|` +
	`remote process exiting prematurely|failed to recv, got 0 bytes|recvvalue failed|collective operation timeout|` +
	`watchdog caught collective|Rendezvous(Connection|Closed)Error|gloo.*timed out waiting|client socket has timed out|` +
	`communication error with rank \d+|Other MPI error|MPI_ERR_OTHER|UCX +ERROR|OFI poll failed|active connection unexpectedly closed`)

// known are texts that name a cause better than the exception that carries them.
var known = []struct {
	text  func() *regexp.Regexp
	words string
}{
	{plain.Pattern(`CUDA out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation`),
		"the GPU's memory ran out"},
	// torch/utils/data/_utils/signal_handling.py; what it lacks is room for what the workers hand over.
	{plain.Pattern(`DataLoader worker .* is killed by signal: Bus error.*shared memory`),
		"a DataLoader worker got a bus error: /dev/shm is full (of a container: --shm-size, such as 16G)"},
	{plain.Pattern(`CUDA error: .*`), ""},
	{plain.Pattern(`CUDA driver version is insufficient.*`), ""},
	{plain.Pattern(`nccl(UnhandledCudaError|SystemError|InternalError|InvalidArgument|InvalidUsage|RemoteError): .*`), ""},
	{plain.Pattern(`NCCL WARN .*`), ""},
	// ray/_private/node.py: a raylet that the GCS has not heard from 30 s after its start.
	{plain.Pattern(`The current node timed out during startup`),
		"Ray was not up within the 30 s that it allows itself: the machine is too busy for it, or the head does " +
			"not answer: --max-restarts N tries again, --ray-head-arg=--include-dashboard=false makes the start " +
			"lighter"},
	{plain.Pattern(`(?i)address already in use`), "the port is taken: " + "Address already in use"},
	{plain.Pattern(`.*is not a valid model identifier listed on.*`), ""},
	{plain.Pattern(`(?:.*GatedRepoError|Cannot access gated repo).*`), ""},
}

// causeAside finds a certain cause in a log.
func (s *Servers) causeAside(lines []string) string {
	all := strings.Join(lines, "\n")
	for _, k := range known {
		if found := k.text().FindString(all); found != "" {
			if k.words != "" {
				return k.words
			}
			return found
		}
	}
	for _, cause := range s.causes {
		if found := cause().FindString(all); found != "" {
			return found
		}
	}
	return ""
}

// exception is the last line of a Python trace.
var exception = plain.Pattern(`^([A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Failure|Timeout|Warning)\b.*|Exception: .*)`)

// interrupt and warning are such lines that need not be the last of the process.
var (
	interrupt = plain.Pattern(`^KeyboardInterrupt\b`)
	warning   = plain.Pattern(`^[A-Za-z_][\w.]*Warning\b`)
)

// fitting leaves out exceptions by which a process cannot have ended so: an interrupt that it, or one that it ran
// before, has survived; and a warning that was only printed (where warnings are errors it stands below a trace).
func fitting(lines []string, e launcher.Exit) (out []string) {
	for i, l := range lines {
		switch status := e.Status(); {
		case interrupt().MatchString(l) && status != launcher.ExitInterrupted && (status != 1 || i < len(lines)-1):
		case warning().MatchString(l) && (i == 0 || !strings.HasPrefix(lines[i-1], " ")):
		default:
			out = append(out, l)
		}
	}
	return out
}

// torchrunRoot is what the real torchrun prints at its end about the worker that failed
// first (torch/distributed/elastic/multiprocessing/errors/__init__.py, ChildFailedError):
// its rank, its exit code, and the signal or the trace.
var torchrunRoot = plain.Pattern(`(?s)Root Cause \(first observed failure\):\n.*?\n\s+rank\s+: (\d+) [^\n]*\n\s+exitcode\s+: (-?\d+) .*?\n\s+traceback : ([^\n]*)`)

// childFailed is torchrun's own exception, which only says that there is such a text.
var childFailed = plain.Pattern(`\bChildFailedError:`)

// recognise finds the words for a failure in the end of a rank's output; lost: they only
// say that a peer has gone.
func (s *Servers) recognise(lines []string) (words string, lost bool) {
	lines = withoutSource(lines)
	all := strings.Join(lines, "\n")
	lost = peerLost().MatchString(all)
	if told := mpirunSays(all); told != "" { // it counts whatever the peers noticed
		if found := s.causeAside(lines); found != "" {
			told += ": " + found
		}
		return told, false
	}
	found := s.causeAside(lines)
	if told := s.killedProcess(lines, found); told != "" {
		return told, false
	}
	if found != "" {
		return found, lost
	}
	worker := ""
	if m := torchrunRoot().FindStringSubmatch(all); m != nil {
		worker = "worker rank " + m[1] + ": "
		if strings.HasPrefix(m[3], "Signal ") {
			return worker + m[3], lost
		}
	}
	if m := s.lastException(lines); m != "" {
		return worker + m, lost
	}
	if m := torchrunRoot().FindStringSubmatch(all); m != nil {
		return worker + "exit " + m[2], lost
	}
	if m := taskKilled().FindStringSubmatch(all); m != nil {
		return m[1], false
	}
	if lost {
		return strings.TrimSpace(peerLost().FindString(all)), true
	}
	return complaint(lines), false
}

// complains is how Python's argparse refuses a command line ("prog: error: ..."), and
// Python itself a module (-m) that it cannot find.
var complains = plain.Pattern(`^(?:[^:]+: (error: .+)|\S*python[\d.]*: (?:.*\(\w+: )?(No module named .+?)\)?)$`)

// complaint finds that at the end of a program's output; only warnings may follow.
func complaint(lines []string) string {
	for _, l := range slices.Backward(lines[max(0, len(lines)-launcher.MaxLastLines):]) {
		if m := complains().FindStringSubmatch(l); m != nil {
			return m[1] + m[2]
		}
	}
	return ""
}

// withoutSource drops the source lines that a Python trace quotes: they are program text, not
// output.
func withoutSource(lines []string) (out []string) {
	for i, line := range lines {
		if i == 0 || !traced().MatchString(lines[i-1]) || strings.TrimLeft(line, " ") == line {
			out = append(out, line)
		}
	}
	return out
}

// traced is a place in a Python trace; a line of source follows.
var traced = plain.Pattern(`^\s+File ".*", line \d+`)

// oomKill is the kernel's line (mm/oom_kill.c), for the machine and for a cgroup alike:
// "Out of memory: Killed process 12 (python3) total-vm:..., anon-rss:5kB".
var oomKill = plain.Pattern(`(?i)(memory cgroup )?out of memory: Killed process (\d+) \(([^)]*)\)(?:.*anon-rss:(\d+)kB)?`)

func outOfMemory(kernel string, pid int) string {
	if !strings.Contains(kernel, "illed process") { // a regexp search through hundreds of KiB less
		return ""
	}
	for _, m := range oomKill().FindAllStringSubmatch(kernel, -1) {
		if m[2] != strconv.Itoa(pid) {
			continue
		}
		words := "out of memory: the kernel's OOM killer ended it"
		if m[1] != "" {
			words = "out of memory: its cgroup's limit was reached, and the kernel's OOM killer ended it"
		}
		if kb, err := strconv.ParseInt(m[4], 10, 64); err == nil {
			words += fmt.Sprintf(" (it held %.1f GiB)", float64(kb)/(1<<20))
		}
		return words
	}
	return ""
}

// oomChoice is the kernel's line about what it is to kill, with the cgroup of that: "oom-kill:constraint=
// CONSTRAINT_MEMCG,...,oom_memcg=/a,task_memcg=/a/b,task=python3,pid=12,uid=0".
var oomChoice = plain.Pattern(`(?m)^\d+,\d+,(\d+),[^;]*;oom-kill:constraint=(\w+),.*task_memcg=([^,]*),task=(.*),pid=(\d+),uid=`)

// childOutOfMemory is about another process of an attempt, which was killed shortly before: its rank may well have
// ended because of that. group is as in Case.
func childOutOfMemory(kernel, group string, died time.Duration) (words string) {
	if group == "" || !strings.Contains(kernel, "oom-kill:") {
		return ""
	}
	for _, m := range oomChoice().FindAllStringSubmatch(kernel, -1) {
		if us, err := strconv.ParseInt(m[1], 10, 64); err != nil || !isOf(m[3], group) ||
			!shortlyBefore(time.Duration(us)*time.Microsecond, died, oomWithin) {
			continue
		}
		words = "out of memory: "
		if m[2] == "CONSTRAINT_MEMCG" {
			words += "its cgroup's limit was reached, and "
		}
		words += fmt.Sprintf("the kernel's OOM killer ended %s (pid %s), a process of its job", m[4], m[5])
	}
	return words
}

// isOf reports whether a path of a cgroup has a name that no digit follows, which would be another attempt's.
func isOf(cgroup, name string) bool {
	_, rest, found := strings.Cut(cgroup+"/", name)
	return found && (rest[0] < '0' || rest[0] > '9')
}

// oomWithin is how long before a rank's end a process of its job counts as its cause.
const oomWithin = time.Minute

func shortlyBefore(at, died, within time.Duration) bool {
	return died > 0 && at <= died+time.Second && died-at <= within
}

// xidLine is how NVIDIA's driver reports a GPU error: "NVRM: Xid (PCI:000f:01:00): 31,
// pid=1234, name=python3, Ch 00000008, ...".
var xidLine = plain.Pattern(`(?m)^\d+,\d+,(\d+),[^;]*;(NVRM: Xid \([^)]*\): (\d+), (?:pid='?(\d+)'?)?.*)$`)

// xidWithin is how long before a rank's death an Xid without a process counts as its cause.
const xidWithin = 10 * time.Second

func xid(kernel string, pid int, died time.Duration) string {
	if !strings.Contains(kernel, "NVRM: Xid") {
		return ""
	}
	found := ""
	for _, m := range xidLine().FindAllStringSubmatch(kernel, -1) {
		us, err := strconv.ParseInt(m[1], 10, 64)
		recent := err == nil && shortlyBefore(time.Duration(us)*time.Microsecond, died, xidWithin)
		if m[4] == strconv.Itoa(pid) && pid > 0 || m[4] == "" && recent {
			found = "the GPU reported an error: " + m[2]
		}
	}
	return found
}

// tailOf keeps the end of a text, from the start of a line.
func tailOf(s string, n int) string {
	s = strings.TrimRight(s, "\n ")
	if len(s) <= n {
		return s
	}
	s = s[len(s)-n:]
	if _, rest, more := strings.Cut(s, "\n"); more {
		s = rest
	}
	return "…\n" + strings.ToValidUTF8(s, "")
}
