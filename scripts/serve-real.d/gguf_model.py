"""Makes a tiny Llama of random weights as llama.cpp has models, with the tokenizer and the template of the model in
FOLDER (model.py). llama.cpp's gguf package is to be in PYTHONPATH. Usage: gguf_model.py FOLDER FILE"""

import json
import os
import sys

import gguf
import numpy
from safetensors.numpy import load_file

folder, file = sys.argv[1:]


def read(name):
    with open(os.path.join(folder, name), encoding="utf-8") as f:
        return json.load(f)


config, words = read("config.json"), read("tokenizer.json")["model"]["vocab"]
tokens = sorted(words, key=words.get) + ["Ġt"]  # it takes at least one merge
w = gguf.GGUFWriter(file, "llama")
w.add_context_length(config["max_position_embeddings"])
w.add_embedding_length(config["hidden_size"])
w.add_block_count(config["num_hidden_layers"])
w.add_feed_forward_length(config["intermediate_size"])
w.add_head_count(config["num_attention_heads"])
w.add_head_count_kv(config["num_key_value_heads"])
w.add_rope_dimension_count(config["head_dim"])
w.add_layer_norm_rms_eps(config["rms_norm_eps"])
w.add_tokenizer_model("gpt2")
w.add_tokenizer_pre("gpt-2")
w.add_token_list(tokens)
w.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(tokens) - 2))
w.add_token_merges(["Ġ t"])
w.add_bos_token_id(config["bos_token_id"])
w.add_eos_token_id(config["eos_token_id"])
w.add_chat_template(read("tokenizer_config.json")["chat_template"])
names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
for i in range(config["num_hidden_layers"]):
    for ours, theirs in {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }.items():  # fmt: skip
        names[f"model.layers.{i}.{ours}"] = f"blk.{i}.{theirs}"
for name, tensor in load_file(os.path.join(folder, "model.safetensors")).items():
    name = names[name.removesuffix(".weight")]
    if name in ("token_embd", "output"):
        tensor = numpy.concatenate([tensor, tensor[-1:]])  # the token more
    w.add_tensor(name + ".weight", tensor)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
