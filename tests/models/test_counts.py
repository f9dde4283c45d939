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
