package agent

import "strings"

// A server is several processes, of which the one that is waited for says at its end only that
// another has failed. What that one said stands in the log before, each line behind a prefix.
// The texts are vLLM 0.32's.

// prefix is what vLLM puts before each line of its log (vllm/logger.py): the process, and of
// what is logged level, time and place.
var prefix = compiled(`^(?:\x1b\[[0-9;]*m)*\([^() ]+ pid=\d+\)(?:\x1b\[[0-9;]*m)* (?:(?:\x1b\[[0-9;]*m)*(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)(?:\x1b\[[0-9;]*m)* (?:\x1b\[[0-9;]*m)*\d\d-\d\d \d\d:\d\d:\d\d(?:\x1b\[[0-9;]*m)* (?:\x1b\[[0-9;]*m)*\[[^\]]*\](?:\x1b\[[0-9;]*m)* ?)?`)

// unprefixed are the lines without it, as the program meant them; some: there was one.
func unprefixed(lines []string) (out []string, some bool) {
	out = make([]string, len(lines))
	for i, l := range lines {
		n := len(prefix().FindString(l))
		out[i], some = l[n:], some || n > 0
	}
	return out, some
}

// elsewhere are exceptions whose cause another of the server's processes has told
// (vllm/v1/engine/utils.py, exceptions.py, vllm/v1/executor/multiproc_executor.py).
var elsewhere = compiled(`Engine core initialization failed|Engine process failed to start|See root cause above|EngineDeadError|` +
	`WorkerProc initialization failed|Worker failed with error`)

// died is what is said of a process that ended without a word of its own: it was killed, or it
// crashed (multiproc_executor.py, core_client.py).
var died = compiled(`Worker proc \S+ died unexpectedly \(exit code: -?\d+\)|RayWorkerProc rank=\S+ died unexpectedly|engine core exited unexpectedly`)

// struck is what is said of a process that something outside the program has ended. One that
// aborts (6) may do so over a lost peer.
var struck = compiled(`Worker proc \S+ died unexpectedly \(exit code: -(?:4|7|8|9|11|31)\)`)

// struckDown finds that in a log, where nothing more is known than what others noticed of it.
func struckDown(lines []string, found string) string {
	if found != "" && !peerLost().MatchString(found) && !elsewhere().MatchString(found) {
		return ""
	}
	return struck().FindString(strings.Join(lines, "\n"))
}

// dead tells of a log that the server has left because one of its processes had failed: vLLM
// exits with 0 then.
var dead = compiled(`EngineDeadError|encountered a fatal error|died unexpectedly|engine core exited unexpectedly`)

// toldBy finds the cause in the end of what a rank wrote to standard error, and in that of the
// other stream, where servers log. Of another program's only what is certain counts there.
// lost: it says no more than that a peer has gone.
func toldBy(lines, aside []string) (words string, lost bool) {
	lines, _ = unprefixed(lines)
	aside, server := unprefixed(aside)
	if words, lost = recognise(lines); words != "" && !elsewhere().MatchString(words) {
		return words, lost
	}
	if server {
		if more, gone := recognise(aside); more != "" {
			return more, gone || elsewhere().MatchString(more)
		}
	} else if known := causeAside(aside); known != "" {
		return known, lost
	}
	return words, lost || elsewhere().MatchString(words)
}

// lastSign finds, from the end, the exception that says why, or that a process has died; else
// one that says no more than that.
func lastSign(lines []string) (vague string) {
	for i := len(lines) - 1; i >= 0; i-- {
		m := exception().FindString(lines[i])
		if m == "" {
			m = died().FindString(lines[i])
		}
		switch {
		case m == "" || childFailed().MatchString(m):
		case strings.HasPrefix(m, "engine core"), elsewhere().MatchString(m) && vague == "":
			vague = m
		case !elsewhere().MatchString(m):
			return m
		}
	}
	return vague
}
