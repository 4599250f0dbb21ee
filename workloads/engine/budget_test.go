package engine

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
)

// --memory becomes flags of the server, by what each of its flags means; what stands after -- wins, and a recipe's
// gives way.
func TestMemoryIsTold(t *testing.T) {
	const g = 1 << 30
	known := &workloads.Model{Heads: 64, KVHeads: 8, HeadDim: 128, Layers: 64, Bytes: 20 * g, KVPerToken: 1 << 18}
	tests := []struct {
		name, engine string
		serve        workloads.Serve
		bytes        int64
		want         string // in the command
		not          string // in the command
		note, fails  string
	}{
		{name: "vllm", engine: "vllm", serve: workloads.Serve{Config: known, Total: 120 * g}, bytes: 40 * g,
			want: "--gpu-memory-utilization 0.333 --kv-cache-memory-bytes 18253611008"}, // 40 - 20 - 3 GiB
		{name: "vllm, weights unknown", engine: "vllm", serve: workloads.Serve{Total: 120 * g}, bytes: 40 * g,
			want: "--gpu-memory-utilization 0.333", not: "--kv-cache"},
		{name: "vllm, too little", engine: "vllm", serve: workloads.Serve{Config: known, Total: 120 * g}, bytes: 22 * g,
			fails: "--memory 22.0 GiB: invalid: the weights take 20.0 GiB of each machine, and the server itself about 3.0 GiB"},
		{name: "after --", engine: "vllm", serve: workloads.Serve{Total: 120 * g, Args: []string{"--gpu-memory-util=0.5"}},
			bytes: 40 * g, want: "--gpu-memory-util=0.5", not: "--gpu-memory-utilization",
			note: "--gpu-memory-utilization stands after --, and decides what vLLM takes; --memory is only counted"},
		{name: "a recipe's", engine: "vllm", bytes: 60 * g, want: "vllm serve org/m --gpu-memory-utilization 0.5", not: "0.9",
			serve: workloads.Serve{Total: 120 * g, Command: strings.Fields("vllm serve org/m --gpu-memory-utilization 0.9")},
			note:  "--gpu-memory-utilization 0.9 of the recipe's command gives way to --memory"},
		{name: "sglang", engine: "sglang", serve: workloads.Serve{Config: known, Total: 120 * g}, bytes: 39 * g,
			want: "--mem-fraction-static 0.3"},
		{name: "trtllm", engine: "trtllm", serve: workloads.Serve{Config: known, Total: 120 * g}, bytes: 48 * g,
			want: "--kv_cache_free_gpu_memory_fraction 0.25"}, // 25 of the 100 GiB that the weights leave
		{name: "trtllm, weights unknown", engine: "trtllm", serve: workloads.Serve{Total: 120 * g}, bytes: 48 * g,
			fails: "their size is not known"},
		{name: "no machine has told", engine: "vllm", bytes: 40 * g, not: "--gpu-memory-utilization",
			note: "how much memory the machines have is not known: --memory is only counted"},
		{name: "llama.cpp", engine: "llamacpp", serve: workloads.Serve{Model: "/m/x.gguf", Total: 120 * g}, bytes: 40 * g,
			note: "llama.cpp is not told what it may take: --memory is only counted"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if tc.serve.Model == "" {
				tc.serve.Model = "org/m"
			}
			r := serving(1, tc.serve)
			r.Job.Memory = &launcher.Memory{Bytes: tc.bytes}
			e := named(t, tc.engine)
			spec, err := e.Spec(r)
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) {
					t.Errorf("%v, want %q", err, tc.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var words []string
			for _, v := range spec.MainStage().Argv {
				for _, p := range v {
					words = append(words, p.Lit)
				}
			}
			command := strings.Join(words, " ")
			if !strings.Contains(command, tc.want) || tc.not != "" && strings.Contains(command, tc.not) {
				t.Errorf("%s\nwant %q, and no %q", command, tc.want, tc.not)
			}
			if notes := strings.Join(e.Notes(r), "\n"); !strings.Contains(notes, tc.note) || tc.note == "" && notes != "" {
				t.Errorf("notes %q, want %q", notes, tc.note)
			}
			if d := cmp.Diff(r.Job.Memory, spec.Memory); d != "" {
				t.Error(d)
			}
		})
	}
}
