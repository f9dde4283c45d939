"""Small random checkpoints that four ranks can divide."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, Qwen2Config, Qwen2ForCausalLM

from tests.training.small_models import VOCABULARY


def save_divided_qwen2(directory: Path, *, seed: int = 0) -> None:
    """Save a random Qwen2 with biases, an untied head and a vocabulary that four ranks do not divide evenly."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY + 1,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=256,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    model = Qwen2ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(directory)


def save_divided_gemma2(directory: Path) -> None:
    """Save a random Gemma 2: norms after the blocks, capped logits, a tied head."""
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=8,
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
