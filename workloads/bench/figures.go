package bench

import (
	"encoding/json"
	"fmt"
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
		if err != nil {
			return nil, fmt.Errorf("figure %s: %q is no number", p.Name, text)
		}
		out = append(out, Figure{p.Name, v, p.Unit, p.Better})
	}
	return out, nil
}

// Served are the figures of a server. Times are in milliseconds, and mean what vLLM's benchmark means by them: see
// package load.
func Served(rate map[string]float64, times map[string][3]float64) (out []Figure) {
	for _, r := range []struct{ name, unit string }{
		{"output_throughput", "tok/s"}, {"request_throughput", "req/s"}, {"total_token_throughput", "tok/s"},
	} {
		if v, ok := rate[r.name]; ok {
			out = append(out, Figure{r.name, v, r.unit, Higher})
		}
	}
	for _, name := range []string{"ttft", "tpot", "itl"} {
		for i, p := range []string{"p50", "p90", "p99"} {
			if t, ok := times[name]; ok && t[i] > 0 {
				out = append(out, Figure{name + "_" + p, t[i], "ms", Lower})
			}
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
	number := func(names ...string) (v float64) {
		for _, n := range names {
			if f, ok := all[n].(float64); ok {
				return f
			}
		}
		return 0
	}
	o := Outcome{Input: int(number("total_input_tokens")), Output: int(number("total_output_tokens")),
		Done: int(number("completed"))}
	if o.Failed = max(0, prompts-o.Done); o.Failed > 0 {
		o.Problem = "vllm bench serve says which"
	}
	if o.Done == 0 {
		return o, nil
	}
	rate, times := map[string]float64{}, map[string][3]float64{}
	for _, n := range []string{"output_throughput", "request_throughput", "total_token_throughput"} {
		rate[n] = number(n)
	}
	for _, n := range []string{"ttft", "tpot", "itl"} {
		times[n] = [3]float64{number("p50_"+n+"_ms", "median_"+n+"_ms"), number("p90_" + n + "_ms"), number("p99_" + n + "_ms")}
	}
	o.Figures = Served(rate, times)
	return o, nil
}
