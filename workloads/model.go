package workloads

import (
	"encoding/json"
	"fmt"
)

// hfConfig is what is read of a model's config.json. Those of models that see or hear have the
// part about language one level down.
type hfConfig struct {
	Heads     int      `json:"num_attention_heads"`
	KVHeads   int      `json:"num_key_value_heads"`
	HeadDim   int      `json:"head_dim"`
	Hidden    int      `json:"hidden_size"`
	Layers    int      `json:"num_hidden_layers"`
	MaxLen    int      `json:"max_position_embeddings"`
	Experts   int      `json:"num_experts"`
	Local     int      `json:"num_local_experts"`
	Routed    int      `json:"n_routed_experts"`
	KVRank    int      `json:"kv_lora_rank"`     // multi-head latent attention: one vector a token and layer
	RopeDim   int      `json:"qk_rope_head_dim"` // and this beside it
	LayerKind []string `json:"layer_types"`
}

// ParseModel reads a model's config.json and, where there is one, its
// model.safetensors.index.json. What they do not say is 0.
func ParseModel(config, index []byte) (Model, error) {
	var outer struct {
		hfConfig
		Text *hfConfig `json:"text_config"`
		LLM  *hfConfig `json:"llm_config"`
	}
	if err := json.Unmarshal(config, &outer); err != nil {
		return Model{}, fmt.Errorf("read config.json: %w", err)
	}
	c := outer.hfConfig
	for _, inner := range []*hfConfig{outer.Text, outer.LLM} {
		if c.Heads == 0 && inner != nil {
			c = *inner
		}
	}
	m := Model{Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, Layers: c.Layers, MaxLen: c.MaxLen, Experts: max(c.Experts, c.Local, c.Routed)}
	if m.KVHeads == 0 {
		m.KVHeads = m.Heads
	}
	if m.HeadDim == 0 && m.Heads > 0 {
		m.HeadDim = c.Hidden / m.Heads
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
	m.KVPerToken = int64(whole) * 2 * int64(m.KVHeads) * int64(m.HeadDim)
	if c.KVRank > 0 {
		m.KVPerToken = int64(whole) * int64(c.KVRank+c.RopeDim)
		m.KVHeads = 0 // it is not dealt out by heads
		m.Latent = true
	}
	if len(index) > 0 {
		var i struct {
			Metadata struct {
				Total json.Number `json:"total_size"`
			} `json:"metadata"`
		}
		if err := json.Unmarshal(index, &i); err != nil {
			return Model{}, fmt.Errorf("read model.safetensors.index.json: %w", err)
		}
		if total, err := i.Metadata.Total.Float64(); err == nil {
			m.Bytes = int64(total)
		}
	}
	return m, nil
}
