"""Logits equal transformers' on small random checkpoints of each family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.weights import load_decoder
from tests.models.streams import packed_logits
from tests.models.tiny_checkpoints import reference_logits, save_checkpoint

LENGTHS = (1, 7, 16, 33, 90)

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-2": ("Llama", {"num_key_value_heads": 4}),
    "llama-grouped-heads": ("Llama", {}),
    "llama-one-key-head-tied": ("Llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama-3.1": ("Llama", {"rope_parameters": LLAMA3_ROPE, "rms_norm_eps": 1e-5}),
    "llama-linear-rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4}},
    ),
    "llama-yarn": ("Llama", {"rope_parameters": YARN_ROPE}),
    "llama-dynamic-within-context": (
        "Llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
    ),
    "llama-all-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-own-head-dim": ("Llama", {"head_dim": 10}),
    "llama-odd-sizes": (
        "Llama",
        {"hidden_size": 30, "num_attention_heads": 3, "num_key_value_heads": 3, "intermediate_size": 41},
    ),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 20}),
    "mistral-own-head-dim": ("Mistral", {"sliding_window": None, "head_dim": 8, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {}),
    "qwen2-tied": (
        "Qwen2",
        {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-tied-biases": ("Qwen3", {"head_dim": 6, "tie_word_embeddings": True, "attention_bias": True}),
    "gemma2": ("Gemma2", {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 20}),
    "gemma2-own-scale": (
        "Gemma2",
        {"head_dim": 6, "query_pre_attn_scalar": 17, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.0},
    ),
    "gemma2-scaled-without-caps": (
        "Gemma2",
        {"head_dim": 6, "query_pre_attn_scalar": 17, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "llama-gelu": ("Llama", {"hidden_act": "gelu"}),
    "qwen3-window": (
        "Qwen3",
        {"head_dim": 8, "use_sliding_window": True, "sliding_window": 17, "max_window_layers": 0},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    family, settings = CASES[case]
    folder = save_checkpoint(tmp_path, family, **settings)
    generator = torch.Generator().manual_seed(1)
    sequences = [torch.randint(0, 67, (length,), generator=generator) for length in LENGTHS]
    decoder = load_decoder(folder, dtype="float32")
    assert linear_shapes(decoder.config) == decoder.linears
    for ours, theirs in zip(packed_logits(decoder, sequences), reference_logits(folder, sequences), strict=True):
        assert theirs.abs().max() > 0.5, "logits near zero would hide a mistake"
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_float64_equals_transformers_to_its_last_digits(family: str, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, family, head_dim=6) if family == "Qwen3" else save_checkpoint(tmp_path, family)
    sequences = [torch.arange(length) % 67 for length in (9, 40)]
    decoder = load_decoder(folder, dtype="float64")
    assert decoder.dtype == torch.float64
    reference = reference_logits(folder, sequences, dtype=torch.float64)
    for ours, theirs in zip(packed_logits(decoder, sequences), reference, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_bfloat16_is_as_close_as_its_digits_allow(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, "Llama")
    sequences = [torch.arange(30) % 67]
    (ours,) = packed_logits(load_decoder(folder, dtype="bf16"), sequences)
    (theirs,) = reference_logits(folder, sequences)
    # 8 bits of mantissa, a few dozen roundings on the way: a few per cent of the largest logit
    assert (ours.float() - theirs).abs().max() < 0.05 * theirs.abs().max()


@pytest.mark.parametrize("name", ["stories260K", "babyllama105"])
def test_real_models_equal_transformers(name: str, repository: Path) -> None:
    folder = repository.parent / "shared" / "models" / name / "hf"
    if not folder.is_dir():
        pytest.skip(f"the pretrained model {name} is not on this machine")
    decoder = load_decoder(folder)
    generator = torch.Generator().manual_seed(2)
    sequences = [torch.randint(3, decoder.config.vocab_size, (n,), generator=generator) for n in (5, 64, 130)]
    for ours, theirs in zip(packed_logits(decoder, sequences), reference_logits(folder, sequences), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
