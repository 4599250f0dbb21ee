package workloads

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseModel(t *testing.T) {
	m, err := ParseModel([]byte(`{"architectures":["X"],"text_config":{"num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,"num_hidden_layers":4,
		"max_position_embeddings":262144,"num_experts":128,"layer_types":["linear_attention","linear_attention","linear_attention","full_attention"]}}`))
	want := Model{Heads: 32, KVHeads: 4, HeadDim: 128, Layers: 4, Experts: 128, MaxLen: 262144, KVPerToken: 1 * 2 * 4 * 128}
	if d := cmp.Diff(want, m); err != nil || d != "" {
		t.Error(err, d)
	}
	m, err = ParseModel([]byte(`{"num_attention_heads":128,"num_key_value_heads":128,"num_hidden_layers":61,"kv_lora_rank":512,"qk_rope_head_dim":64,"n_routed_experts":256}`))
	if err != nil || m.KVPerToken != 61*576 || !m.Latent || m.Experts != 256 || m.Bytes != 0 {
		t.Errorf("%+v, %v", m, err)
	}
	for _, text := range []string{"", "[]", `"x"`, `{"num_attention_heads":`, strings.Repeat("[", 1e6)} {
		if _, err := ParseModel([]byte(text)); err == nil {
			t.Errorf("%.20s was taken for a model", text)
		}
	}
}

// A field of another kind is one that its model means otherwise: no reason to refuse a launch.
func TestParseModelOfAnotherKind(t *testing.T) {
	for text, want := range map[string]Model{
		`{"num_attention_heads":"many","num_hidden_layers":8}`:                                                                     {Layers: 8},
		`{"num_attention_heads":[8,16],"num_key_value_heads":[2,4],"head_dim":64,"num_hidden_layers":28}`:                          {HeadDim: 64, Layers: 28}, // OpenELM
		`{"num_attention_heads":-8,"num_hidden_layers":1e308,"max_position_embeddings":1e6,"num_experts":0.5}`:                     {MaxLen: 1e6},
		`{"text_config":5,"llm_config":{"num_attention_heads":4,"hidden_size":64},"layer_types":{"0":"x"}}`:                        {Heads: 4, KVHeads: 4, HeadDim: 16},
		`{"num_hidden_layers":1073741824,"num_attention_heads":1073741824,"num_key_value_heads":1073741824,"head_dim":1073741824}`: {Heads: 1 << 30, KVHeads: 1 << 30, HeadDim: 1 << 30, Layers: 1 << 30},
	} {
		m, err := ParseModel([]byte(text))
		if d := cmp.Diff(want, m); err != nil || d != "" {
			t.Errorf("%s: %v\n%s", text, err, d)
		}
	}
}
