package workloads

import (
	"encoding/json"
	"fmt"
	"math"
)

// Model has the facts on which a model's fit and parallelism depend, from its
// config.json and safetensors index. 0: not given.
type Model struct {
	Heads, KVHeads, HeadDim, Layers int
	Experts                         int
	MaxLen                          int   // tokens
	Bytes                           int64 // of its weights
	// KVPerToken is how many numbers of the cache a token takes, on all machines together;
	// Latent: each machine of tensor parallelism keeps all of them.
	KVPerToken int64
	Latent     bool
}

// hfConfig is what is read of a model's config.json. Those of models that see or hear have the
// part about language one level down.
type hfConfig struct {
	Heads     number `json:"num_attention_heads"`
	KVHeads   number `json:"num_key_value_heads"`
	HeadDim   number `json:"head_dim"`
	Hidden    number `json:"hidden_size"`
	Layers    number `json:"num_hidden_layers"`
	MaxLen    number `json:"max_position_embeddings"`
	Experts   number `json:"num_experts"`
	Local     number `json:"num_local_experts"`
	Routed    number `json:"n_routed_experts"`
	KVRank    number `json:"kv_lora_rank"`     // multi-head latent attention: one vector a token and layer
	RopeDim   number `json:"qk_rope_head_dim"` // and this beside it
	LayerKind kinds  `json:"layer_types"`
}

// number is a count, or 0 where something else stands: what a field means is its model's affair, and
// some have a list of one value a layer there.
type number int

// maxNumber is above any such count.
const maxNumber = 1 << 30

func (n *number) UnmarshalJSON(text []byte) error {
	var f float64
	if json.Unmarshal(text, &f) == nil && f >= 1 && f <= maxNumber && f == math.Trunc(f) {
		*n = number(f)
	}
	return nil
}

// kinds are of layers; none where something else stands.
type kinds []string

func (k *kinds) UnmarshalJSON(text []byte) error {
	var all []string
	if json.Unmarshal(text, &all) == nil {
		*k = all
	}
	return nil
}

// inner is the part about language; empty where something else stands.
type inner struct{ hfConfig }

func (i *inner) UnmarshalJSON(text []byte) error {
	var c hfConfig
	if json.Unmarshal(text, &c) == nil {
		i.hfConfig = c
	}
	return nil
}

// ParseModel reads a model's config.json. What it does not give, or gives in a form of its own, is
// 0; it never gives Bytes.
func ParseModel(config []byte) (Model, error) {
	var outer struct {
		hfConfig
		Text inner `json:"text_config"`
		LLM  inner `json:"llm_config"`
	}
	if err := json.Unmarshal(config, &outer); err != nil {
		return Model{}, fmt.Errorf("read config.json: %w", err)
	}
	c := outer.hfConfig
	for _, inner := range []hfConfig{outer.Text.hfConfig, outer.LLM.hfConfig} {
		if c.Heads == 0 && inner.Heads > 0 {
			c = inner
		}
	}
	m := Model{
		Heads: int(c.Heads), KVHeads: int(c.KVHeads), HeadDim: int(c.HeadDim), Layers: int(c.Layers), MaxLen: int(c.MaxLen),
		Experts: int(max(c.Experts, c.Local, c.Routed)),
	}
	if m.KVHeads == 0 {
		m.KVHeads = m.Heads
	}
	if m.HeadDim == 0 && m.Heads > 0 {
		m.HeadDim = int(c.Hidden) / m.Heads
	}
	// Layers whose cache does not grow with the text (a window, a state) count for nothing.
	whole := m.Layers
	if len(c.LayerKind) > 0 {
		whole = 0
		for _, kind := range c.LayerKind {
			if kind == "full_attention" {
				whole++
			}
		}
	}
	m.KVPerToken = product(whole, 2, m.KVHeads, m.HeadDim)
	if c.KVRank > 0 {
		m.KVPerToken = product(whole, int(c.KVRank+c.RopeDim))
		m.KVHeads = 0 // it is not dealt out by heads
		m.Latent = true
	}
	return m, nil
}

// product is 0, which is not known, where it is beyond all sense.
func product(of ...int) int64 {
	p := 1.0
	for _, n := range of {
		p *= float64(n)
	}
	if p > 1<<50 {
		return 0
	}
	return int64(p)
}
