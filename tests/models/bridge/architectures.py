"""Tiny random checkpoints of the architectures that transformers has, and what the product and PEFT make of each."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 96

# by the names that architectures have for their sizes; each takes those that it knows
_SMALL: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "shared_expert_intermediate_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "ffn_hidden_size": 96,
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 4,
    "n_inner": 96,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "sliding_window": 8,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": VOCABULARY,
    "num_kv_shared_layers": 0,
    "word_embed_proj_dim": 64,
    "ffn_dim": 96,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "original_max_position_embeddings": 256,
}
_LATENT: Mapping[str, Any] = {"num_key_value_heads": 4, "head_dim": 8}
_OWN: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "youtu"), _LATENT),
    **dict.fromkeys(("axk1", "axk2", "minicpm3"), _LATENT),
    "bamba": {"attn_layer_indices": [1, 3]},
    "codegen": {"rotary_dim": 8},
    "deepseek_v4": {
        "num_key_value_heads": 1,
        "o_groups": 2,
        "o_lora_rank": 16,
        "index_n_heads": 2,
        "index_head_dim": 16,
        "index_topk": 8,
    },
    "dots1": {"n_shared_experts": 1},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4, "num_heads": 4, "window_size": 8},
    "gptj": {"rotary_dim": 8},
    "hrm_text": {"num_layers_per_stack": 2},
    "kimi_linear": {"linear_head_dim": 16, "linear_num_heads": 4},
    "longcat_flash": {"num_layers": 2, "zero_expert_num": 2, "expert_ffn_hidden_size": 32},
    "minimax_m3_vl_text": {
        "dense_intermediate_size": 96,
        "shared_intermediate_size": 32,
        "rotary_dim": 8,
        "index_n_heads": 2,
        "index_head_dim": 16,
    },
    "qwen4_exp_text": {"hc_lowrank": 16, "ngram_vocab_size_base": 512, "split_ngram_parts": 4},
    "gemma4_text": {"head_dim": 16, "global_head_dim": 32},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"full_attn_idxs": [1, 3], "block_ff_dim": 96},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"], "num_dense_layers": 1},
    "zaya": {"num_experts_per_tok": 1},
}
# settings whose own values must stay
_KEPT = {"falcon": ("head_dim",), "lfm2_moe": ("layer_types",)}


def tiny_config(name: str, *, vocabulary: int = VOCABULARY) -> Any:
    """Return a small configuration of a model type, every kind of layer in it."""
    text = CONFIG_MAPPING[name]().get_text_config()
    values: dict[str, Any] = {}
    for key, value in {**_SMALL, "vocab_size": vocabulary}.items():
        is_plain = not isinstance(getattr(type(text), key, None), property)
        with contextlib.suppress(Exception):  # a setting that differs from layer to layer raises
            if is_plain and hasattr(text, key) and key not in _KEPT.get(name, ()):
                values[key] = value
    values.update(_OWN.get(name, {}))
    is_free = not isinstance(getattr(type(text), "layer_types", None), property)
    is_free = is_free and "layer_types" not in getattr(text, "attribute_map", {})
    if is_free and getattr(text, "layer_types", None) and name != "lfm2":
        kinds = list(dict.fromkeys(text.layer_types))
        count = max(4, len(kinds))
        values.update(num_hidden_layers=count, layer_types=[kinds[place % len(kinds)] for place in range(count)])
    return type(text)(**values)


def save_tiny(name: str, folder: Path, *, vocabulary: int = VOCABULARY) -> Path:
    """Save a random checkpoint of a model type, whose biases and gains are not the ones it begins with."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config(name, vocabulary=vocabulary)).float()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.08)
    model.save_pretrained(folder)
    return folder
