package bench

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
)

// Seconds is the time that a command took: a figure of every command.
const Seconds = "seconds"

// Find gives the figures that patterns find in what a command printed.
func Find(patterns []Pattern, output []byte) (out []Figure, err error) {
	for _, p := range patterns {
		re, err := regexp.Compile(p.Text)
		if err != nil {
			return nil, err // Read has compiled it
		}
		all := re.FindAllSubmatch(output, -1)
		if len(all) == 0 {
			return nil, fmt.Errorf("figure %s: nothing in its output matches %s", p.Name, p.Text)
		}
		text := string(all[len(all)-1][re.SubexpIndex(p.Name)])
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("figure %s: %q is no number", p.Name, text)
		}
		out = append(out, Figure{p.Name, v, p.Unit, p.Better})
	}
	return out, nil
}

// Served are the figures of a server that were measured. Times are in milliseconds, and mean what vLLM's benchmark means
// by them: see package load.
func Served(measured map[string]float64) (out []Figure) {
	add := func(name, unit string, better Better) {
		if v, ok := measured[name]; ok {
			out = append(out, Figure{name, v, unit, better})
		}
	}
	add("output_throughput", "tok/s", Higher)
	add("request_throughput", "req/s", Higher)
	add("total_token_throughput", "tok/s", Higher)
	for _, name := range []string{"ttft", "tpot", "itl"} {
		for _, p := range []string{"p50", "p90", "p99"} {
			add(name+"_"+p, "ms", Lower)
		}
	}
	return out
}

// Outcome is what a client has measured.
type Outcome struct {
	Figures []Figure
	Input   int // tokens, by the server's count
	Output  int
	Done    int
	Failed  int
	// Problem is the first error of a request.
	Problem string
}

// ReadVLLM reads the result that `vllm bench serve --save-result` writes. Of old versions it has no 90th percentile.
func ReadVLLM(text []byte, prompts int) (Outcome, error) {
	var all map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		return Outcome{}, fmt.Errorf("read the result of vllm bench serve: %w", err)
	}
	measured := map[string]float64{}
	for name, v := range all {
		if v, is := v.(float64); is {
			measured[name] = v
		}
	}
	for _, of := range []string{"ttft", "tpot", "itl"} {
		for p, theirs := range map[string]string{"p50": "median", "p90": "p90", "p99": "p99"} {
			if v := measured[theirs+"_"+of+"_ms"]; v > 0 { // 0: there was none, as of answers of one token
				measured[of+"_"+p] = v
			}
		}
	}
	o := Outcome{Input: int(measured["total_input_tokens"]), Output: int(measured["total_output_tokens"]),
		Done: int(measured["completed"])}
	if o.Failed = max(0, prompts-o.Done); o.Failed > 0 {
		o.Problem = "vllm bench serve says which"
	}
	if o.Done > 0 {
		o.Figures = Served(measured)
	}
	return o, nil
}
