// Package load asks a server of OpenAI's API for streams, so many at a time, and takes the times of their tokens.
//
// What it measures is what `vllm bench serve` measures (vllm/benchmarks/serve.py and lib/endpoint_request_func.py): the
// time to the first token is that to the first chunk with a choice; between tokens is the time from one such chunk to
// the next; a request lasts until the last of them; the time per output token is (lasted - time to first) / (tokens -
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
	URL    string // of the server, without a path
	Chat   bool   // by /v1/chat/completions in place of /v1/completions
	Model  string
	Input  int // words of a prompt, about a token each
	Output int // max_tokens, with ignore_eos
	// Concurrency requests are under way at any time (a closed loop) until Prompts have been made.
	Concurrency, Prompts int
	// Seed makes prompts that no other seed makes: no prefix of theirs lies in the server's cache.
	Seed   string
	Client *http.Client
}

// result is what was measured; times in seconds.
type result struct {
	bench.Outcome
	ttft, tpot, itl []float64
}

// answer is one request's.
type answer struct {
	first, last   time.Duration // since it was sent
	between       []float64
	input, output int // 0: the server did not count
}

// Run makes the requests. It returns an error only where ctx has ended.
func Run(ctx context.Context, c Config) (bench.Outcome, error) {
	var r result
	var mu sync.Mutex
	var next atomic.Int64
	var places sync.WaitGroup
	began := time.Now()
	for range min(c.Concurrency, c.Prompts) {
		places.Go(func() {
			for {
				n := int(next.Add(1))
				if n > c.Prompts || ctx.Err() != nil {
					return
				}
				a, err := c.ask(ctx, n)
				mu.Lock()
				r.add(c, a, err)
				mu.Unlock()
			}
		})
	}
	places.Wait()
	took := time.Since(began).Seconds()
	if r.Done > 0 {
		times := map[string][3]float64{}
		for name, all := range map[string][]float64{"ttft": r.ttft, "tpot": r.tpot, "itl": r.itl} {
			if len(all) > 0 {
				times[name] = [3]float64{1e3 * bench.Quantile(all, .5), 1e3 * bench.Quantile(all, .9), 1e3 * bench.Quantile(all, .99)}
			}
		}
		r.Figures = bench.Served(map[string]float64{"output_throughput": float64(r.Output) / took,
			"request_throughput": float64(r.Done) / took, "total_token_throughput": float64(r.Input+r.Output) / took}, times)
	}
	return r.Outcome, ctx.Err()
}

func (r *result) add(c Config, a answer, err error) {
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
	r.ttft = append(r.ttft, a.first.Seconds())
	r.itl = append(r.itl, a.between...)
	if tokens > 1 {
		r.tpot = append(r.tpot, (a.last-a.first).Seconds()/float64(tokens-1))
	}
}

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
	if c.Chat {
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
	return a, a.read(res.Body, sent)
}

// read takes the stream to its end.
func (a *answer) read(body io.Reader, sent time.Time) error {
	lines, done := bufio.NewReader(body), false
	for {
		line, err := lines.ReadBytes('\n')
		at := time.Since(sent)
		if data, is := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data:")); is {
			if data = bytes.TrimSpace(data); string(data) == "[DONE]" {
				done = true
			} else if err := a.chunk(data, at); err != nil {
				return err
			}
		}
		switch {
		case err == nil:
		case !errors.Is(err, io.EOF):
			return err
		case a.first == 0:
			return errors.New("the stream ended without a token")
		case !done:
			return errors.New("the stream broke off")
		default:
			return nil
		}
	}
}

func (a *answer) chunk(data []byte, at time.Duration) error {
	var c struct {
		Choices []json.RawMessage `json:"choices"`
		Usage   *struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
		} `json:"usage"`
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("read a chunk: %w", err)
	}
	if c.Error != nil {
		return fmt.Errorf("the server says %.300s", c.Error)
	}
	if c.Usage != nil {
		a.input, a.output = c.Usage.Prompt, c.Usage.Completion
	}
	switch {
	case len(c.Choices) == 0:
	case a.first == 0:
		a.first, a.last = at, at
	default:
		a.between = append(a.between, (at - a.last).Seconds())
		a.last = at
	}
	return nil
}
