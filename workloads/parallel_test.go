package workloads

import (
	"errors"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
)

func TestSpread(t *testing.T) {
	llama, small := &Model{Heads: 32, KVHeads: 8, Layers: 32}, &Model{Heads: 4, KVHeads: 2, Layers: 2}
	tests := []struct {
		nodes int
		asked Sizes
		model *Model
		want  Sizes
		fails string // part of the error
	}{
		{1, Sizes{}, nil, Sizes{1, 1, 1}, ""},
		{2, Sizes{}, nil, Sizes{2, 1, 1}, ""},
		{3, Sizes{}, llama, Sizes{1, 3, 1}, ""},
		{4, Sizes{}, llama, Sizes{4, 1, 1}, ""},
		{6, Sizes{}, llama, Sizes{2, 3, 1}, ""},
		{8, Sizes{}, llama, Sizes{8, 1, 1}, ""},
		{4, Sizes{}, &Model{Heads: 14, KVHeads: 2, Layers: 24}, Sizes{2, 2, 1}, ""},      // 14 = 2 x 7
		{16, Sizes{}, &Model{Heads: 32, KVHeads: 8, Layers: 32}, Sizes{16, 1, 1}, ""},    // keys are copied
		{4, Sizes{}, &Model{Heads: 12, KVHeads: 6, Layers: 24}, Sizes{2, 2, 1}, ""},      // 6 cannot be dealt out to 4
		{4, Sizes{TP: 2}, llama, Sizes{2, 2, 1}, ""},                                     // the rest is a pipeline
		{4, Sizes{PP: 4}, llama, Sizes{1, 4, 1}, ""},                                     // as asked
		{4, Sizes{DP: 2}, llama, Sizes{2, 1, 2}, ""},                                     // two copies of two
		{4, Sizes{TP: 1, PP: 1}, llama, Sizes{1, 1, 4}, ""},                              // what is left
		{3, Sizes{TP: 3}, &Model{Heads: 24, KVHeads: 24, Layers: 8}, Sizes{3, 1, 1}, ""}, // it divides: as asked
		{3, Sizes{TP: 3}, llama, Sizes{}, "32 attention heads do not divide by 3; nearest that works on 3 machines: --pp 3"},
		{2, Sizes{TP: 4}, llama, Sizes{}, "takes 4 GPUs, and 2 machines have 2, one each (--nodes 4 has as many); nearest that works on 2 machines: --tp 2"},
		{4, Sizes{TP: 3}, llama, Sizes{}, "takes 3 GPUs, and 4 machines have 4, one each; nearest that works on 4 machines: --tp 4"},
		{1, Sizes{TP: 2}, nil, Sizes{}, "nearest that works on 1 machine: --tp 1"},
		{4, Sizes{TP: 2, PP: 1, DP: 1}, nil, Sizes{}, "takes 2 GPUs"},
		{8, Sizes{PP: 8}, &Model{Heads: 32, Layers: 4}, Sizes{}, "the model has 4 layers"},
		{1, Sizes{TP: 2}, nil, Sizes{}, "--tp 2: invalid: that takes 2 GPUs, and 1 machine has 1 (--nodes 2 has as many)"},
		{3, Sizes{}, small, Sizes{}, "3 machines: invalid: the model has 2 layers, and a stage of the pipeline takes one at least; nearest that works: --nodes 2, with --tp 2"},
		{3, Sizes{TP: 3}, small, Sizes{}, "--tp 3: invalid: the model's 4 attention heads do not divide by 3; nearest that works: --nodes 2, with --tp 2"},
		{3, Sizes{TP: 2}, small, Sizes{}, "3 machines have 3, one each; nearest that works: --nodes 2, with --tp 2"},
	}
	for _, tc := range tests {
		got, _, err := Spread(tc.nodes, tc.asked, tc.model)
		switch {
		case tc.fails == "" && (err != nil || got != tc.want):
			t.Errorf("%d machines, %+v, %+v: %+v, %v, want %+v", tc.nodes, tc.asked, tc.model, got, err, tc.want)
		case tc.fails != "" && (err == nil || !strings.Contains(err.Error(), tc.fails) || !errors.Is(err, launcher.ErrInvalid)):
			t.Errorf("%d machines, %+v: %v, want %q", tc.nodes, tc.asked, err, tc.fails)
		}
	}
	if _, why, _ := Spread(3, Sizes{}, llama); !strings.Contains(why, "power of two") {
		t.Errorf("three machines are cut without a word: %q", why)
	}
}
