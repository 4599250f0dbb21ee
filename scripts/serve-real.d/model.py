"""Makes a tiny Llama of random weights, as Hugging Face's libraries lay a model out: it says
nothing of sense, and vLLM serves it like any other. Into a second folder goes a LoRA adapter of it.
Usage: model.py FOLDER ADAPTER"""

import json
import os
import sys

import numpy
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, MLP = 128, 2, 4, 2, 32, 256
SPECIAL = ["<s>", "</s>"]

folder, adapter = sys.argv[1:]
os.makedirs(folder, exist_ok=True)
os.makedirs(adapter, exist_ok=True)
# As short as tools allow: each letter is a token. Calls have Hermes' form, which both engines know.
TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write(name, what, folder=folder):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        json.dump(what, f, indent=1)


# A token for each byte, and no longer ones: any text has tokens.
vocabulary = {c: i for i, c in enumerate(SPECIAL + sorted(pre_tokenizers.ByteLevel.alphabet()))}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens(SPECIAL)
tokenizer.save(os.path.join(folder, "tokenizer.json"))
write("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "model_max_length": 4096, "chat_template": TEMPLATE})
write(
    "config.json",
    {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
        "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "intermediate_size": MLP, "vocab_size": len(vocabulary), "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False, "bos_token_id": 0, "eos_token_id": 1,
    },
)  # fmt: skip
write("generation_config.json", {"bos_token_id": 0, "eos_token_id": 1})

random = numpy.random.default_rng(1)


def weight(*shape):
    return (random.standard_normal(shape) * 0.05).astype(numpy.float32)


def ones():
    return numpy.ones(HIDDEN, numpy.float32)


tensors = {"model.embed_tokens.weight": weight(len(vocabulary), HIDDEN), "model.norm.weight": ones(), "lm_head.weight": weight(len(vocabulary), HIDDEN)}
for i in range(LAYERS):
    at = f"model.layers.{i}."
    tensors |= {
        at + "input_layernorm.weight": ones(),
        at + "post_attention_layernorm.weight": ones(),
        at + "self_attn.q_proj.weight": weight(HEADS * HEAD_DIM, HIDDEN),
        at + "self_attn.k_proj.weight": weight(KV_HEADS * HEAD_DIM, HIDDEN),
        at + "self_attn.v_proj.weight": weight(KV_HEADS * HEAD_DIM, HIDDEN),
        at + "self_attn.o_proj.weight": weight(HIDDEN, HEADS * HEAD_DIM),
        at + "mlp.gate_proj.weight": weight(MLP, HIDDEN),
        at + "mlp.up_proj.weight": weight(MLP, HIDDEN),
        at + "mlp.down_proj.weight": weight(HIDDEN, MLP),
    }
save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})

RANK = 4
write("adapter_config.json", {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj"], "base_model_name_or_path": folder}, adapter)
save_file(
    {
        f"base_model.model.model.layers.{i}.self_attn.q_proj.lora_{part}.weight": weight(*shape)
        for i in range(LAYERS)
        for part, shape in (("A", (RANK, HIDDEN)), ("B", (HEADS * HEAD_DIM, RANK)))
    },
    os.path.join(adapter, "adapter_model.safetensors"),
)
