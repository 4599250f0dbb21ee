package workloads

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

func TestFit(t *testing.T) {
	const g = 1 << 30
	spark := func(free int64) Room { return Room{Host: "spark1", Total: 120 * g, Available: free * g, GPU: true} }
	model := &Model{Heads: 64, KVHeads: 8, HeadDim: 128, Layers: 64, Bytes: 160 * g, KVPerToken: 64 * 2 * 8 * 128}
	tests := map[string]struct {
		nodes int
		args  string
		room  Room
		lines string
		fails string
	}{
		"fits": {2, "", spark(115), "spark1: 115.0 GiB of 120.0 GiB free; weights 80.0 GiB of 160.0 GiB; vLLM takes 108.0 GiB (--gpu-memory-utilization 0.9), " +
			"of which 28.0 GiB are left for the KV cache, 229376 tokens at 16 bits at most", ""},
		"too large":     {1, "", spark(115), "", "its part of the weights is 160.0 GiB, and it has 120.0 GiB of memory: more machines"},
		"somebody else": {2, "", spark(60), "", "60.0 GiB of its memory are free now: end what runs there"},
		"share":         {2, "", spark(100), "", "vLLM would want 108.0 GiB (--gpu-memory-utilization 0.9 of 120.0 GiB), and 100.0 GiB are free now: `-- --gpu-memory-utilization 0.83`"},
		"as told":       {2, "--gpu-memory-utilization=0.8", spark(100), "spark1: 100.0 GiB of 120.0 GiB free; weights 80.0 GiB of 160.0 GiB; vLLM takes 96.0 GiB (--gpu-memory-utilization 0.8), of which 16.0 GiB are left for the KV cache, 131072 tokens at 16 bits at most", ""},
		"small share":   {2, "--gpu-memory-utilization 0.5", spark(100), "", "and --gpu-memory-utilization 0.5 gives vLLM 60.0 GiB"},
		"no share":      {2, "--gpu-memory-utilization 9", spark(100), "", "want a share such as 0.9"},
		"no number":     {2, "--gpu-memory-utilization nan", spark(100), "", "want a share such as 0.9"},
		"no GPU":        {1, "", Room{Host: "lab", Total: 8 * g, Available: 4 * g}, "lab: 4.0 GiB of 8.0 GiB free; weights 160.0 GiB; vLLM takes 7.2 GiB (--gpu-memory-utilization 0.9)", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			lines, err := Fit(VLLM, serving(tc.nodes, Serve{Model: "m", Config: model, Args: strings.Fields(tc.args)}), []Room{tc.room})
			switch {
			case tc.fails == "" && err != nil, tc.fails != "" && (err == nil || !strings.Contains(err.Error(), tc.fails) || !errors.Is(err, ErrNoRoom) && !errors.Is(err, launcher.ErrInvalid)):
				t.Errorf("%v, want %q", err, tc.fails)
			case tc.fails == "":
				if d := cmp.Diff(tc.lines, strings.Join(lines, "\n")); d != "" {
					t.Error(d)
				}
			}
		})
	}
}
