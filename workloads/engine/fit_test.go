package engine

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
)

func TestFit(t *testing.T) {
	const g = 1 << 30
	spark := func(free int64) Room { return Room{Host: "spark1", Total: 120 * g, Available: free * g, GPU: true} }
	lab := func(total, free int64) Room { return Room{Host: "lab", Total: total * g, Available: free * g} }
	model := &workloads.Model{Heads: 64, KVHeads: 8, HeadDim: 128, Layers: 64, Bytes: 160 * g, KVPerToken: 64 * 2 * 8 * 128}
	tests := map[string]struct {
		nodes int
		args  string // those that begin with "100G " are of a job with --memory 100G
		room  Room
		lines string
		doubt string
		fails string
	}{
		"fits": {2, "", spark(115), "spark1: 115.0 GiB of 120.0 GiB free; weights 80.0 GiB of 160.0 GiB; vLLM takes 108.0 GiB (--gpu-memory-utilization 0.9), " +
			"of which 28.0 GiB are left for the KV cache, 229376 tokens at 16 bits at most", "", ""},
		"too large":                   {1, "", spark(115), "", "", "its part of the weights is 160.0 GiB, and it has 120.0 GiB of memory: more machines take smaller parts; nearest that works: --nodes 2, with 80.0 GiB on each"},
		"somebody else":               {2, "", spark(60), "", "", "60.0 GiB of its memory are free now: end what runs there (`sparkrun ps`), or take another machine, or more of them; nearest that works: --nodes 3, with 53.3 GiB on each"},
		"share":                       {2, "", spark(100), "", "", "vLLM wants 108.0 GiB (--gpu-memory-utilization 0.9 of 120.0 GiB), and 100.0 GiB are free now: end what runs there, or give it less: `-- --gpu-memory-utilization 0.80`"},
		"as told":                     {2, "--gpu-memory-utilization=0.8", spark(100), "spark1: 100.0 GiB of 120.0 GiB free; weights 80.0 GiB of 160.0 GiB; vLLM takes 96.0 GiB (--gpu-memory-utilization 0.8), of which 16.0 GiB are left for the KV cache, 131072 tokens at 16 bits at most", "", ""},
		"small share":                 {2, "--gpu-memory-utilization 0.5", spark(100), "", "", "and --gpu-memory-utilization 0.5 gives vLLM 60.0 GiB"},
		"no share":                    {2, "--gpu-memory-utilization 9", spark(100), "", "", "want a share such as 0.9"},
		"no number":                   {2, "--gpu-memory-utilization nan", spark(100), "", "", "want a share such as 0.9"},
		"no share left":               {2, "", spark(82), "", "", "vLLM wants 108.0 GiB (--gpu-memory-utilization 0.9 of 120.0 GiB), and 82.0 GiB are free now: end what runs there (`sparkrun ps`), or take another machine"},
		"planned":                     {2, "100G ", spark(115), "spark1: 115.0 GiB of 120.0 GiB free; weights 80.0 GiB of 160.0 GiB; vLLM takes 100.0 GiB (--memory), of which 20.0 GiB are left for the KV cache, 163840 tokens at 16 bits at most", "", ""},
		"planned, and told otherwise": {2, "100G --gpu-memory-utilization 0.8", spark(100), "spark1: 100.0 GiB of 120.0 GiB free; weights 80.0 GiB of 160.0 GiB; vLLM takes 96.0 GiB (--gpu-memory-utilization 0.8), of which 16.0 GiB are left for the KV cache, 131072 tokens at 16 bits at most", "", ""},
		"planned, and taken":          {2, "100G ", spark(90), "", "", "vLLM wants 100.0 GiB (--memory), and 90.0 GiB are free now: end what runs there, or give it less: --memory 87G"},
		// A machine without a GPU serves by its processor: its weights have to lie somewhere all the same.
		"no GPU, too large": {1, "", lab(24, 21), "", "", "its part of the weights is 160.0 GiB, and it has 24.0 GiB of memory: more machines take smaller parts; nearest that works: --nodes 8, with 20.0 GiB on each"},
		"no GPU, taken":     {8, "", lab(24, 12), "", "", "its part of the weights is 20.0 GiB, and 12.0 GiB of its memory are free now"},
		"no GPU, crowded": {16, "", lab(24, 17), "lab: 17.0 GiB of 24.0 GiB free; weights 10.0 GiB of 160.0 GiB; vLLM takes 21.6 GiB (--gpu-memory-utilization 0.9), of which 11.6 GiB are left for the KV cache, 380108 tokens at 16 bits at most",
			"lab: vLLM wants 21.6 GiB (--gpu-memory-utilization 0.9 of 24.0 GiB), and 17.0 GiB are free now: end what runs there, or give it less: `-- --gpu-memory-utilization 0.58`; a vLLM for CPUs may end at once for that", ""},
		"its cache is said": {16, "--kv-cache-memory-bytes 1000000", lab(24, 17), "lab: 17.0 GiB of 24.0 GiB free; weights 10.0 GiB of 160.0 GiB; vLLM takes 21.6 GiB (--gpu-memory-utilization 0.9), of which 11.6 GiB are left for the KV cache, 380108 tokens at 16 bits at most", "", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			args, planned := strings.CutPrefix(tc.args, "100G ")
			r := serving(tc.nodes, workloads.Serve{Model: "m", Config: model, Args: strings.Fields(args)})
			if planned {
				r.Job.Memory = &launcher.Memory{Bytes: 100 * g}
			}
			lines, doubts, err := named(t, "vllm").Fit(r, []Room{tc.room})
			switch {
			case tc.fails == "" && err != nil, tc.fails != "" && (err == nil || !strings.Contains(err.Error(), tc.fails) || !errors.Is(err, ErrNoRoom) && !errors.Is(err, launcher.ErrInvalid)):
				t.Errorf("%v, want %q", err, tc.fails)
			case tc.fails == "":
				if d := cmp.Diff([]string{tc.lines, tc.doubt}, []string{strings.Join(lines, "\n"), strings.Join(doubts, "\n")}); d != "" {
					t.Error(d)
				}
			}
		})
	}
}

// A small size is told in what it has some of.
func TestSmallSizes(t *testing.T) {
	for n, want := range map[int64]string{0: "0.0 GiB", 1 << 20: "1.0 MiB", 100 << 20: "100.0 MiB", 108 << 20: "0.1 GiB", 3 << 29: "1.5 GiB"} {
		if got := gib(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
