package agent

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
)

// metricsMost bounds what is read of a server's metrics, in bytes: vLLM's are some 100 KiB.
const metricsMost = 8 << 20

const maxProgress = 8 // of an engine's series

// figureMost is above all that a server can have done, and small enough for any number's type.
const figureMost = 1e15

// figures are the few of a server's metrics that tell whether it works.
type figures struct {
	running       float64 // requests
	generated     float64 // tokens since its start
	throughput    float64 // tokens a second, where the server says so itself
	hasThroughput bool
	// progress is what grows, or changes, with work alone: another value of any is a sign of it.
	progress [maxProgress]float64
}

// The servers' own names for these, as their documents on metrics have them. A histogram of
// vLLM's counts the steps of its engine, and the share of the KV cache that is taken grows
// while a long prompt is read in chunks, which its counter of prompt tokens counts at the
// end. SGLang counts a request's tokens when it has ended; what moves before is its
// throughput, and the tokens that it holds.
var engines = []struct {
	running, generated, throughput string
	progress                       []string
}{
	{running: "vllm:num_requests_running", generated: "vllm:generation_tokens_total", progress: []string{
		"vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:iteration_tokens_total_count",
		"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc",
	}},
	{running: "sglang:num_running_reqs", generated: "sglang:generation_tokens_total", throughput: "sglang:gen_throughput", progress: []string{
		"sglang:generation_tokens_total", "sglang:prompt_tokens_total", "sglang:realtime_tokens_total", "sglang:gen_throughput",
		"sglang:num_used_tokens", "sglang:token_usage", "sglang:cached_tokens_total",
	}},
}

// readFigures reads Prometheus' text format; nil: it is of no server that is known, or broke off, as
// the sums of a part would look like work. A value that is no count (NaN, which differs from itself
// at every look; Inf; one below zero) is as good as not there.
func readFigures(r io.Reader) *figures {
	sums := map[string]float64{}
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadSlice('\n')
		if name, value, ok := sample(line); ok && err == nil {
			if of := wanted(name); of != "" && value >= 0 && value <= figureMost {
				sums[of] = min(sums[of]+value, figureMost)
			}
		}
		if errors.Is(err, bufio.ErrBufferFull) { // no line of ours is as long
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = in.ReadSlice('\n')
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil
		}
	}
	for _, e := range engines {
		running, known := sums[e.running]
		if !known {
			continue
		}
		f := figures{running: running, generated: sums[e.generated]}
		if e.throughput != "" {
			f.throughput, f.hasThroughput = sums[e.throughput]
		}
		for i, name := range e.progress {
			f.progress[i] = sums[name]
		}
		return &f
	}
	return nil
}

// wanted is the name that is kept of what a line is of; empty: none.
func wanted(name []byte) string {
	for _, e := range engines {
		if string(name) == e.running {
			return e.running
		}
		for _, p := range e.progress {
			if string(name) == p {
				return p
			}
		}
	}
	return ""
}

// sample splits a line as name{labels} value [time].
func sample(line []byte) (name []byte, value float64, ok bool) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 || line[0] == '#' {
		return nil, 0, false
	}
	rest := line
	if i := bytes.IndexByte(line, '{'); i >= 0 {
		end := bytes.LastIndexByte(line, '}') // a label's value may have one, too
		if end < i {
			return nil, 0, false
		}
		name, rest = line[:i], line[end+1:]
	} else if i := bytes.IndexAny(line, " \t"); i >= 0 {
		name, rest = line[:i], line[i:]
	}
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return nil, 0, false
	}
	value, err := strconv.ParseFloat(string(fields[0]), 64)
	return bytes.TrimSpace(name), value, err == nil
}
