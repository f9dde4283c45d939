"""Small random checkpoints and rows for training tests."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from cohort.data.tokenised import TokenisedRows

VOCABULARY = 96


def save_llama(directory: Path, *, seed: int = 0, hidden_size: int = 48, num_layers: int = 2) -> PreTrainedModel:
    """Save and return a random Llama with grouped heads, an odd MLP width and tied embeddings."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden_size,
        intermediate_size=116,
        num_hidden_layers=num_layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(directory)
    return model


def save_qwen2(directory: Path, *, seed: int = 0, num_layers: int = 2, hidden_size: int = 64) -> PreTrainedModel:
    """Save and return a random Qwen2 whose q, k and v biases are not zero."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden_size,
        intermediate_size=120,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.1,
        tie_word_embeddings=False,
    )
    model = Qwen2ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(directory)
    return model


def save_gemma2(directory: Path) -> PreTrainedModel:
    """Save and return a random Gemma 2 whose caps bend scores and logits, with a window in its first layer."""
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=100,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=14,
        query_pre_attn_scalar=9,
        sliding_window=24,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=4.0,
        max_position_embeddings=256,
        initializer_range=0.2,
    )
    model = Gemma2ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(directory)
    return model


def random_rows(count: int, *, seed: int = 0, shortest: int = 2, longest: int = 50) -> TokenisedRows:
    """Return rows of ragged length whose trained part starts anywhere."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(shortest, longest + 1, size=count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = rng.integers(0, VOCABULARY, size=offsets[-1]).astype(np.int32)
    trained = np.zeros(offsets[-1], dtype=np.bool_)
    for start, stop in itertools.pairwise(offsets):
        border = int(rng.integers(start + 1, stop))
        trained[border:stop] = True
    return TokenisedRows(
        tokens_T=tokens,
        trained_T=trained,
        offsets=offsets,
        prompts=("",) * count,
        references=("",) * count,
        sources=tuple(f"random:{i + 1}" for i in range(count)),
        fingerprint=f"random-{seed}-{count}",
    )


def compared_rows(count: int, *, seed: int = 0, longest: int = 50) -> TokenisedRows:
    """Return such rows with what any objective may read: borders, labels and a reference model's log-probabilities."""
    rows, rng = random_rows(count, seed=seed, longest=longest), np.random.default_rng(seed + 1)
    starts = np.array([int(rows.sample(row).trained.argmax()) for row in range(count)], dtype=np.int64)
    trained = [int(rows.sample(row).trained.sum()) for row in range(count)]
    return replace(
        rows,
        answer_starts=starts,
        labels=rng.random(count) < 0.6,
        # about what random models give a token
        reference_logps=-np.array(trained) * rng.uniform(3.5, 5.5, size=count),
    )
