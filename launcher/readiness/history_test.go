package readiness

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

// What vLLM 0.11 and SGLang 0.5 show, cut down: labels with braces and blanks, several
// engines, a histogram, a line that is too long, and what is of no account.
const vllmMetrics = `# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a {b} c"} 2.0
vllm:num_requests_running{engine="1",model_name="a {b} c"} 1.0
vllm:num_requests_waiting{engine="0",model_name="a {b} c"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="a"} 1.5e+06
vllm:generation_tokens_total{engine="0",model_name="a"} 1000.0
vllm:generation_tokens_total{engine="1",model_name="a"} 24 1700000000000
vllm:generation_tokens_created{engine="0",model_name="a"} 1.7e+09
vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 3.0
vllm:iteration_tokens_total_count{engine="0"} 40.0
process_cpu_seconds_total 12.5
`

func TestMetrics(t *testing.T) {
	long := "vllm:request_params_n_bucket{le=\"" + strings.Repeat("9", 10<<10) + "\"} 1\n"
	tests := map[string]struct {
		text string
		want *metrics
	}{
		"vLLM": {long + vllmMetrics,
			&metrics{running: 3, generated: 1024, progress: [launcher.MaxProgress]float64{1024, 1.5e6, 40, 0.25}}},
		"SGLang": {"sglang:num_running_reqs{tp_rank=\"0\"} 1\nsglang:gen_throughput{tp_rank=\"0\"} 86.5\nsglang:generation_tokens_total{} 7\n",
			&metrics{running: 1, generated: 7, throughput: 86.5, hasThroughput: true,
				progress: [launcher.MaxProgress]float64{7, 0, 0, 86.5}}},
		"no such server": {"http_requests_total 5\n", nil},
		"a page":         {"<html>\nvllm:num_requests_running{ is not here", nil},
		"empty":          {"", nil},
		"no number":      {"vllm:num_requests_running{} many\n", nil},
		"no counts": {"vllm:num_requests_running 1\nvllm:kv_cache_usage_perc NaN\nvllm:prompt_tokens_total -3\nvllm:generation_tokens_total +Inf\nvllm:generation_tokens_total 5\n",
			&metrics{running: 1, generated: 5, progress: [launcher.MaxProgress]float64{5}}},
		"none that runs":   {"sglang:num_running_reqs NaN\nsglang:gen_throughput 5\n", nil},
		"beyond all":       {"vllm:num_requests_running 1e15\nvllm:num_requests_running 1e15\n", &metrics{running: 1e15}},
		"a last line only": {"vllm:num_requests_running 1", nil}, // it may have been cut off
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := readMetrics(strings.NewReader(tt.text), engine.Servers())
			if d := cmp.Diff(tt.want, got, cmp.AllowUnexported(metrics{})); d != "" {
				t.Error(d)
			}
		})
	}
	if got := readMetrics(io.MultiReader(strings.NewReader(vllmMetrics), iotest.ErrReader(errors.New("broken"))),
		engine.Servers()); got != nil {
		t.Errorf("of a connection that broke: %+v", got) // sums of a part would look like work
	}
	for _, s := range engine.Servers() {
		if len(s.Metrics.Progress) > launcher.MaxProgress {
			t.Errorf("%s: %d series, room for %d", s.Metrics.Running, len(s.Metrics.Progress), launcher.MaxProgress)
		}
	}
}

// server is what one look each five seconds finds, by the time since it came up.
type server func(at time.Duration) observation

func busy(running, prompt, generated float64) observation {
	return observation{metrics: &metrics{running: running, generated: generated,
		progress: [launcher.MaxProgress]float64{generated, prompt}}}
}

// states is how a service does, over some minutes, as "after state: text" at each turn.
func states(l *history, s server, until time.Duration) (turns []string) {
	began := time.Unix(1e9, 0)
	last := l.seen
	for at := time.Duration(0); at <= until; at += lookEvery {
		l.note(began.Add(at), s(at))
		if now := l.seen; now.State != last.State || now.Text != last.Text && now.State == launcher.ServiceReady {
			turns = append(turns, strings.TrimSuffix(fmt.Sprintf("%s %s: %s", at, now.State, now.Text), ": "))
		}
		last = l.seen
	}
	return turns
}

func TestHistory(t *testing.T) {
	const stuckAt = 20 * time.Second
	secs := func(at time.Duration) float64 { return at.Seconds() }
	tests := map[string]struct {
		server server
		want   []string
	}{
		"it comes up and works": {
			func(at time.Duration) observation {
				if at < 15*time.Second {
					return observation{health: errors.New("nothing listens")}
				}
				return busy(2, 100, secs(at))
			},
			[]string{"0s starting: nothing listens", "15s ready"},
		},
		"idle": {
			func(time.Duration) observation { return busy(0, 100, 100) },
			[]string{"0s ready"},
		},
		"wedged within a minute, and well again": {
			func(at time.Duration) observation {
				if at >= 3*time.Minute {
					return busy(2, 100, 100+secs(at))
				}
				return busy(2, 100, min(secs(at), secs(stuckAt)))
			},
			[]string{"0s ready", "1m10s wedged: 2 requests are running, and no token has come for 50s", "3m0s ready"},
		},
		"a long prefill: the prompt grows": {
			func(at time.Duration) observation { return busy(1, 10*secs(at), 100) },
			[]string{"0s ready"},
		},
		"requests that come and go give up on it": {
			func(at time.Duration) observation { return busy(1+float64(int(at.Seconds())%3), 100, 100) },
			[]string{"0s ready", "50s wedged: 3 requests are running, and no token has come for 50s"},
		},
		"one request after the other": {
			func(at time.Duration) observation {
				if at%(40*time.Second) == 0 {
					return busy(0, 100, 100)
				}
				return busy(1, 100, 100)
			},
			[]string{"0s ready"},
		},
		"a slow health is no end, and one slow answer nothing": {
			func(at time.Duration) observation {
				s := busy(1, 100, secs(at))
				if at == 10*time.Second || at >= 30*time.Second && at < 50*time.Second {
					s.health = errors.New("GET /health: no answer within 10s")
				}
				return s
			},
			[]string{"0s ready", "35s unhealthy: GET /health: no answer within 10s", "50s ready"},
		},
		"it stops answering": {
			func(at time.Duration) observation {
				if at < stuckAt {
					return busy(1, 100, secs(at))
				}
				return observation{health: errors.New("GET /health: no answer within 10s")}
			},
			[]string{"0s ready", "25s unhealthy: GET /health: no answer within 10s"},
		},
		"metrics that tell nothing": {
			func(at time.Duration) observation {
				if at < 2*time.Minute {
					return observation{blind: true}
				}
				return busy(1, 100, secs(at))
			},
			[]string{"0s ready", "5s ready: its metrics show no requests: its tokens are not counted, and it would not be seen if it were stuck", "2m0s ready"},
		},
		"metrics that are slow at times": {
			func(at time.Duration) observation {
				if at%(20*time.Second) == 0 && at > 0 {
					return observation{blind: true}
				}
				return busy(1, 100, secs(at))
			},
			[]string{"0s ready"},
		},
		"no metrics": {
			func(time.Duration) observation { return observation{} },
			[]string{"0s ready"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, states(&history{}, tt.server, 5*time.Minute)); d != "" {
				t.Error(d)
			}
		})
	}
}

// An agent that comes again has seen no metrics yet: one slow answer of the metrics is nothing to tell
// of, nor is what its earlier incarnation has told. While the server loads, its metrics are not missed.
func TestBlindAfterRestart(t *testing.T) {
	const untold = "its metrics show no requests: its tokens are not counted"
	const text = untold + ", and it would not be seen if it were stuck"
	began := time.Unix(1e9, 0)
	before := func(text string) *history {
		return &history{seen: launcher.ServiceSeen{State: launcher.ServiceReady, Ready: &began, Text: text}}
	}
	slow := func(until time.Duration) server {
		return func(at time.Duration) observation {
			if at < until {
				return observation{blind: true}
			}
			return busy(1, 100, at.Seconds())
		}
	}
	loads := func(at time.Duration) observation {
		if at < 15*time.Second {
			return observation{blind: true, health: errors.New("nothing listens")}
		}
		return slow(20 * time.Second)(at)
	}
	for name, c := range map[string]struct {
		l      *history
		server server
		want   []string
	}{
		"slow once":       {before(""), slow(lookEvery), nil},
		"blind":           {before(""), slow(time.Hour), []string{"5s ready: " + text}},
		"blind, and told": {before(text), slow(time.Hour), nil},
		"blind, with completions": {&history{generates: true, seen: before("").seen}, slow(time.Hour),
			[]string{"5s ready: " + untold}},
		"slow once, after it came": {&history{}, loads, []string{"0s starting: nothing listens", "15s ready"}},
	} {
		if d := cmp.Diff(c.want, states(c.l, c.server, time.Minute)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// A machine that slept, or an agent that was stopped, has not seen a request freeze for so long.
func TestSleepIsNoWedge(t *testing.T) {
	var l history
	now := time.Unix(1e9, 0)
	l.note(now, busy(1, 100, 100))
	l.note(now.Add(time.Hour), busy(1, 100, 100))
	if l.seen.State != launcher.ServiceReady {
		t.Errorf("after an hour between two looks: %s, %s", l.seen.State, l.seen.Text)
	}
}

func TestTokenRate(t *testing.T) {
	var l history
	now := time.Unix(1e9, 0)
	for i := range 4 { // 12.5 tokens a second, looked at each five seconds
		l.note(now.Add(time.Duration(i)*lookEvery), busy(3, 100, float64(i)*62.5))
	}
	now = now.Add(3 * lookEvery)
	if !l.moved() {
		t.Error("nothing to tell")
	}
	l.measure(now)
	if l.seen.Rate == nil || *l.seen.Rate != 12.5 || *l.seen.Running != 3 {
		t.Errorf("rate %v of %v requests", l.seen.Rate, l.seen.Running)
	}
	l.note(now.Add(lookEvery), busy(3, 100, 250)) // as fast: nothing new
	if l.moved() {
		t.Errorf("told again, as %v", l.rate(now.Add(lookEvery)))
	}
	l.note(now.Add(2*lookEvery), busy(0, 100, 10)) // started anew
	l.measure(now.Add(2 * lookEvery))
	if *l.seen.Rate != 0 || *l.seen.Running != 0 {
		t.Errorf("rate %v of %v requests", *l.seen.Rate, *l.seen.Running)
	}
}

// Its metrics, with two requests at work.
func TestRealMetrics(t *testing.T) {
	text, err := os.ReadFile("testdata/vllm-metrics.txt")
	must(t, err)
	got := readMetrics(strings.NewReader(string(text)), engine.Servers())
	if want := (&metrics{running: 2, generated: 490,
		progress: [launcher.MaxProgress]float64{490, 12, 397, 0.0002441704309608106}}); got == nil || *got != *want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
