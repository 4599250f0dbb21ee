package engine

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
)

// budget is what a server is to take of a machine at most (--memory), in bytes.
type budget struct {
	bytes   int64
	total   int64 // the machine's memory, which its GPU shares
	weights int64 // its part of them; 0: it is not known
}

// forCache is what is left for the KV cache; an error says how much would be the least.
func (b budget) forCache() (int64, error) {
	if left := b.bytes - b.weights - ownStart; left > 0 {
		return left, nil
	}
	return 0, fmt.Errorf("--memory %s: %w: the weights take %s of each machine, and the server itself about %s: want "+
		"more, and room for the KV cache", gib(b.bytes), launcher.ErrInvalid, gib(b.weights), gib(ownStart))
}

// part is a size as a part of another, rounded down to thousandths.
func part(n, of int64) string {
	return strconv.FormatFloat(float64(n*1000/of)/1000, 'f', -1, 64)
}

// limit tells the server to take no more than the request's --memory. What stands after -- wins, and what a recipe
// says gives way.
func (e Engine) limit(r workloads.Request, s *served) error {
	m := r.Job.Memory
	if m == nil {
		return nil
	}
	for _, f := range e.memory.limits {
		if f.Stands(s.args) {
			s.note("%s stands after --, and decides what %s takes; --memory is only counted", f.Name, e.Title)
			return nil
		}
	}
	switch {
	case e.memory.limit == nil:
		s.note("%s is not told what it may take: --memory is only counted", e.Title)
		return nil
	case r.Serve.Total == 0:
		s.note("how much memory the machines have is not known: --memory is only counted")
		return nil
	}
	b := budget{bytes: min(m.Bytes, r.Serve.Total), total: r.Serve.Total}
	if c := r.Serve.Config; c != nil {
		b.weights = c.Bytes / int64(s.sizes.TP*s.sizes.PP)
	}
	flags, err := e.memory.limit(b)
	if err != nil {
		return err
	}
	for _, f := range e.memory.limits {
		if text, given := f.In(s.words); given {
			s.note("%s %s of the recipe's command gives way to --memory", f.Name, text)
		}
		s.words = f.without(s.words)
	}
	s.words = append(slices.Clip(s.words), flags...)
	return nil
}

// vllmLimit: the share is of all memory, and has to be free when it starts (vllm/v1/worker/utils.py). How large the
// KV cache gets is else found by profiling, which on shared memory counts what others take meanwhile
// (vllm/v1/worker/gpu_worker.py); said in bytes it is not profiled.
func vllmLimit(b budget) ([]string, error) {
	flags := []string{"--gpu-memory-utilization", part(b.bytes, b.total)}
	if b.weights == 0 {
		return flags, nil
	}
	cache, err := b.forCache()
	return append(flags, "--kv-cache-memory-bytes", strconv.FormatInt(cache, 10)), err
}

// sglangLimit: the share is that of weights and KV cache together
// (sglang/srt/model_executor/model_runner_kv_cache_mixin.py).
func sglangLimit(b budget) ([]string, error) {
	_, err := b.forCache()
	return []string{"--mem-fraction-static", part(max(b.bytes-ownStart, 0), b.total)}, err
}

// trtllmLimit: the share is that of what is free once the weights are loaded (tensorrt_llm/llmapi/llm_args.py,
// KvCacheConfig). Where others take some of it the cache gets smaller than planned, never larger.
func trtllmLimit(b budget) ([]string, error) {
	if b.weights == 0 {
		return nil, fmt.Errorf("--memory: %w: TensorRT-LLM takes a share of what its weights leave, and their size is not "+
			"known: `sparkrun model pull` the model first", launcher.ErrInvalid)
	}
	cache, err := b.forCache()
	return []string{"--kv_cache_free_gpu_memory_fraction", part(cache, max(b.total-b.weights, cache))}, err
}
