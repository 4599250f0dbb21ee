package agent

import (
	"fmt"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// What the guard goes by. The cases are of owners of GB10s, whose 121.7 GiB serve CPU and GPU:
//   - vllm#56824, vllm#54200: the driver failed allocations while 22.5 GiB were available; 29 GiB fell to 2.5 in 9 s.
//   - vllm#46307: the machine hung soon after it had 7 GiB left.
//   - Qwen3.8-Flash-Next-Single#54 (7 GiB left) and NemoClaw#7127 (3.2 GiB, 2.2 GiB in swap) served well.
//
// No signs are, since machines that serve well show them, too: little MemFree (#54), no free large blocks
// (DeepSeek-v4.1-Flash-DGX-Sparks#23), NV_ERR_NO_MEMORY in the kernel's log (vllm#56824), use of swap (NemoClaw#7127).
const (
	// guardEvery is the time between two samples, each of four files and some 300 us.
	guardEvery = 500 * time.Millisecond
	// A fall that reaches the floor within fallSoon is enough, once it has lasted for fallSteps samples. What is taken
	// at once, as vLLM's KV cache is, falls in two of them at most.
	fallSoon  = 3 * time.Second
	fallSteps = 3
	// Two of these have to agree for signSteps samples: a fall that reaches the floor within fallLater, all tasks at
	// once waiting for memory (PSI, Documentation/accounting/psi.rst) for that part of the time, and so many bytes a
	// second that come back from swap. PSI alone is no sign: reading large files raises it (syncloud/platform#769; to 0.17
	// in scripts/vm_test's guard).
	signSteps = 2
	fallLater = 10 * time.Second
	stallPart = 0.3
	swapIn    = 16 << 20
)

// sample is the state of a machine's memory at a moment.
type sample struct {
	at time.Time
	// total and available are in bytes. Page cache counts as available, so that filling it changes nothing, and so does
	// what the CPUs keep free, so that giving it back does not either.
	total, available int64
	stalled          time.Duration // for which all tasks at once have waited for memory, since the boot
	swapped          int64         // bytes that came back from swap since the boot
}

// headroom judges how near a machine is to the end of its memory.
type headroom struct {
	floor int64    // in bytes of sample.available
	past  []sample // the last ones, oldest first
}

type verdict int

const (
	calm verdict = iota
	warns
	ends
)

// judge takes the next sample. Where it does not say calm, its text goes on after "had".
func (h *headroom) judge(s sample) (verdict, string) {
	h.past = append(h.past, s)
	if len(h.past) > fallSteps+1 {
		h.past = h.past[1:]
	}
	left := launcher.Size(s.available) + " of memory left"
	floor := fmt.Sprintf("the --memory-floor of %s", launcher.Size(h.floor))
	switch signs := h.signs(); {
	case s.available < h.floor:
		return ends, left + ", less than " + floor
	case s.available >= h.soft(s.total):
		return calm, ""
	case h.lasting(fallSteps, func(of stretch) bool { return of.reaches(h.floor, fallSoon) }):
		of := h.stretch(len(h.past) - 1)
		in := float64(s.available-h.floor) / of.fall
		return ends, fmt.Sprintf("%s, which fell by %s a second: %.1f s above %s", left, launcher.Size(int64(of.fall)), in,
			floor)
	case len(signs) > 1:
		return ends, left + ", not far above " + floor + ": " + strings.Join(signs, ", and ")
	case len(signs) > 0 || s.available < warnAt*h.floor:
		return warns, strings.Join(append([]string{left + ", not far above " + floor}, signs...), ": ")
	}
	return calm, ""
}

// warnAt times the floor is worth a warning.
const warnAt = 2

// soft is up to where all this counts: a fifth of the memory, 24 GiB on a GB10. Above it no allocation has been seen to
// fail, and a model that is read fast may come to rest.
func (h *headroom) soft(total int64) int64 { return max(total/5, warnAt*h.floor) }

// signs are those that have lasted, in words.
func (h *headroom) signs() (signs []string) {
	if len(h.past) < 2 {
		return nil
	}
	now := h.stretch(len(h.past) - 1)
	if h.lasting(signSteps, func(of stretch) bool { return of.stalled >= stallPart }) {
		signs = append(signs, fmt.Sprintf("all tasks waited for memory for %.0f %% of the time", 100*now.stalled))
	}
	if h.lasting(signSteps, func(of stretch) bool { return of.swapIn >= swapIn }) {
		signs = append(signs, launcher.Size(int64(now.swapIn))+" a second came back from swap")
	}
	if h.lasting(signSteps, func(of stretch) bool { return of.reaches(h.floor, fallLater) }) {
		signs = append(signs, "it fell by "+launcher.Size(int64(now.fall))+" a second")
	}
	return signs
}

// lasting reports whether the last n stretches all are so.
func (h *headroom) lasting(n int, so func(stretch) bool) bool {
	for i := len(h.past) - n; i < len(h.past); i++ {
		if i < 1 || !so(h.stretch(i)) {
			return false
		}
	}
	return true
}

// stretch is what happened between two samples.
type stretch struct {
	left         int64   // available at its end
	fall, swapIn float64 // bytes a second
	stalled      float64 // part of the time
}

func (h *headroom) stretch(i int) stretch {
	from, to := h.past[i-1], h.past[i]
	seconds := max(to.at.Sub(from.at).Seconds(), 1e-3)
	return stretch{
		left: to.available, fall: float64(from.available-to.available) / seconds,
		swapIn: float64(to.swapped-from.swapped) / seconds, stalled: (to.stalled - from.stalled).Seconds() / seconds,
	}
}

// reaches reports whether memory is down to the floor within that time if it goes on falling so.
func (s stretch) reaches(floor int64, within time.Duration) bool {
	return s.fall > 0 && float64(s.left)-s.fall*within.Seconds() < float64(floor)
}
