// Package load asks a server of OpenAI's API for streams, so many at a time, and takes the times of their tokens.
//
// What it measures is what `vllm bench serve` measures (vllm/benchmarks/serve.py and lib/endpoint_request_func.py): the
// time to the first token is that to the first chunk with a choice, whatever it says, but for a role alone; between
// tokens is the time from one such chunk to the next; a request lasts until the last of them; the time per output token is (lasted - time to first) / (tokens -
// 1), tokens by the server's own count.
//
// It must not know what is benchmarked, nor judge.
package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sparkrun/sparkrun/workloads/bench"
)

// Config is what is asked, and how.
type Config struct {
	// Load's Input is in words, about a token each, and its Output max_tokens, with ignore_eos. Concurrency requests are
	// under way at any time (a closed loop) until Prompts have been made.
	bench.Load
	URL string // of the server, without a path
	// Seed makes prompts that no other seed makes: no prefix of theirs lies in the server's cache.
	Seed   string
	Client *http.Client
}

// answer is one request's.
type answer struct {
	first, last   time.Duration // since it was sent
	between       []float64
	input, output int // 0: the server did not count
}

// result is what was measured; times in milliseconds, by name.
type result struct {
	bench.Outcome
	times map[string][]float64
}

// Run makes the requests. It returns an error only where ctx has ended.
func Run(ctx context.Context, c Config) (bench.Outcome, error) {
	r := result{times: map[string][]float64{}}
	var mu sync.Mutex
	var next atomic.Int64
	var places sync.WaitGroup
	began := time.Now()
	for range min(c.Concurrency, c.Prompts) {
		places.Go(func() {
			for n := int(next.Add(1)); n <= c.Prompts && ctx.Err() == nil; n = int(next.Add(1)) {
				a, err := c.ask(ctx, n)
				mu.Lock()
				r.add(a, err)
				mu.Unlock()
			}
		})
	}
	places.Wait()
	took := time.Since(began).Seconds()
	if r.Done > 0 {
		measured := map[string]float64{"output_throughput": float64(r.Output) / took, "request_throughput": float64(r.Done) / took,
			"total_token_throughput": float64(r.Input+r.Output) / took}
		for name, all := range r.times {
			for p, q := range map[string]float64{"_p50": .5, "_p90": .9, "_p99": .99} {
				measured[name+p] = bench.Quantile(all, q)
			}
		}
		r.Figures = bench.Served(measured)
	}
	return r.Outcome, ctx.Err()
}

func (r *result) add(a answer, err error) {
	if err != nil {
		if r.Failed++; r.Problem == "" {
			r.Problem = err.Error()
		}
		return
	}
	r.Done++
	tokens := a.output
	if tokens == 0 { // the server does not count: then each chunk is one
		tokens = len(a.between) + 1
	}
	r.Input, r.Output = r.Input+a.input, r.Output+tokens
	put := func(name string, times ...float64) { r.times[name] = append(r.times[name], times...) }
	put("ttft", millis(a.first))
	if len(a.between) > 0 {
		put("itl", a.between...)
	}
	if tokens > 1 {
		put("tpot", millis(a.last-a.first)/float64(tokens-1))
	}
}

func millis(d time.Duration) float64 { return 1e3 * d.Seconds() }

// prompt begins with what no other prompt begins with.
func (c Config) prompt(n int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d", c.Seed, n)
	words := [...]string{"one", "river", "goes", "by", "house", "and", "field", "to", "sea"}
	for i := 2; i < c.Input; i++ {
		b.WriteString(" " + words[(i*7+n)%len(words)])
	}
	return b.String()
}

func (c Config) ask(ctx context.Context, n int) (a answer, err error) {
	body := map[string]any{"model": c.Model, "max_tokens": c.Output, "ignore_eos": true, "temperature": 0, "stream": true,
		"stream_options": map[string]any{"include_usage": true}}
	path := "/v1/completions"
	if c.API == bench.Chat {
		path = "/v1/chat/completions"
		body["messages"] = []any{map[string]any{"role": "user", "content": c.prompt(n)}}
	} else {
		body["prompt"] = c.prompt(n)
	}
	text, err := json.Marshal(body)
	if err != nil {
		return a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+path, bytes.NewReader(text))
	if err != nil {
		return a, err
	}
	req.Header.Set("Content-Type", "application/json")
	sent := time.Now()
	res, err := c.Client.Do(req)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(res.Body, 300)) // what can be read of it
		return a, fmt.Errorf("%s answers %s: %s", path, res.Status, bytes.TrimSpace(said))
	}
	err = a.read(res.Body, sent)
	return a, err
}

// longestLine of a stream, in bytes: a chunk is a few hundred.
const longestLine = 1 << 20

// read takes the stream to its end.
func (a *answer) read(body io.Reader, sent time.Time) error {
	lines, done := bufio.NewScanner(body), false
	lines.Buffer(nil, longestLine)
	for lines.Scan() {
		data, is := bytes.CutPrefix(bytes.TrimSpace(lines.Bytes()), []byte("data:"))
		switch data = bytes.TrimSpace(data); {
		case !is: // a comment that keeps the connection, the name of an event, or the end of one
		case string(data) == "[DONE]":
			done = true
		default:
			if err := a.chunk(data, time.Since(sent)); err != nil {
				return err
			}
		}
	}
	switch {
	case lines.Err() != nil:
		return lines.Err()
	case a.first == 0:
		return errors.New("the stream ended without a token")
	case !done:
		return errors.New("the stream broke off")
	}
	return nil
}

func (a *answer) chunk(data []byte, at time.Duration) error {
	var c struct {
		Choices []struct{ Delta map[string]any }
		Usage   *struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
		}
		Error *json.RawMessage
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("read a chunk: %w", err)
	}
	if c.Error != nil {
		return fmt.Errorf("the server says %.300s", *c.Error)
	}
	if c.Usage != nil {
		a.input, a.output = c.Usage.Prompt, c.Usage.Completion
	}
	switch {
	case len(c.Choices) == 0:
		return nil
	case a.first == 0 && onlyRole(c.Choices[0].Delta): // some servers say it before they have read the prompt
		return nil
	case a.first == 0:
		a.first = at
	default:
		a.between = append(a.between, millis(at-a.last))
	}
	a.last = at
	return nil
}

// onlyRole tells whether a delta says who is to speak, and nothing of what.
func onlyRole(delta map[string]any) bool {
	for name, v := range delta {
		if list, is := v.([]any); name != "role" && v != nil && v != "" && (!is || len(list) > 0) {
			return false
		}
	}
	return delta["role"] != nil
}
