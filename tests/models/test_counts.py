"""Counts against the model itself, and against torch's own FLOP counter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from cohort.models.counts import (
    activation_bytes_per_token,
    count_model,
    recomputed_bytes_per_token,
    weight_bytes,
)
from cohort.models.weights import load_decoder
from tests.models.fixtures.tiny_checkpoints import save_checkpoint

EXPERTS: dict[str, Any] = {"head_dim": 16, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20}


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("Llama", {}),
        ("Llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
        ("Qwen2", {}),
        ("Qwen3", {"head_dim": 10}),
    ],
)
def test_counts_are_those_of_the_model(family: str, settings: dict[str, Any], tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, family, **settings)
    decoder = load_decoder(folder)
    counts = count_model(decoder.config)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    assert counts.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert weight_bytes(decoder.config, dtype=torch.float32) == decoder.num_bytes == 4 * counts.parameters
    assert counts.linear_parameters == sum(inputs * outputs for inputs, outputs in decoder.linears.values())
    length = 32
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, length, dtype=torch.int64))
    # the outer product that makes the rotary angles
    rotary = 2 * length * decoder.config.head_dim // 2
    per_token = counts.linear_flops_per_token + counts.head_flops_per_token
    # torch counts all length^2 pairs, also those that causality hides
    assert counter.get_total_flops() == length * per_token + length**2 * counts.attention_flops_per_pair + rotary


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("Mixtral", {"num_local_experts": 4, "intermediate_size": 36}),
        ("Qwen3Moe", {**EXPERTS, "num_hidden_layers": 3, "mlp_only_layers": [1]}),
    ],
)
def test_of_experts_all_are_kept_and_a_token_s_are_passed(
    family: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    decoder = load_decoder(save_checkpoint(tmp_path, family, **settings))
    config = decoder.config
    counts = count_model(config)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert counts.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert weight_bytes(config, dtype=torch.float32) == decoder.num_bytes == 4 * counts.parameters
    assert config.mixture is not None
    own = config.mixture
    experts = sum(own.num_experts * 3 * own.intermediate_size * config.hidden_size for _ in own.sparse_layers)
    norms_and_tables = sum(p.numel() for name, p in model.named_parameters() if "norm" in name)
    norms_and_tables += 2 * config.vocab_size * config.hidden_size
    passed = counts.parameters - norms_and_tables - experts * (1 - own.experts_per_token / own.num_experts)
    assert counts.linear_flops_per_token == 2 * passed
    # a token's rows of each of its experts, and what a dense layer keeps
    sparse = own.experts_per_token * (3 * own.intermediate_size + 2 * config.hidden_size) * len(own.sparse_layers)
    dense = 3 * config.intermediate_size * (config.num_layers - len(own.sparse_layers))
    assert config.mlp_values == pytest.approx((sparse + dense) / config.num_layers, abs=1)


def test_a_recomputed_token_keeps_a_stream_a_layer_and_one_layer_at_work(tmp_path: Path) -> None:
    config = load_decoder(save_checkpoint(tmp_path, "Llama")).config
    config = replace(config, num_layers=32, windows=config.windows[:1] * 32)
    kept, recomputed = (
        count(config, bytes_per_value=2) for count in (activation_bytes_per_token, recomputed_bytes_per_token)
    )
    assert 32 * config.hidden_size * 2 < recomputed < kept / 5
    shallow = replace(config, num_layers=1, windows=config.windows[:1])
    assert recomputed_bytes_per_token(shallow, bytes_per_value=2) == activation_bytes_per_token(
        shallow, bytes_per_value=2
    )
