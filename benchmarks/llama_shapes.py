"""True model shapes with random weights, and rows with GSM8K's real lengths: what training benchmarks run on."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cohort.data.tokenised import TokenisedRows
from cohort.models.checkpoint_layout import checkpoint_layout
from cohort.models.config import DecoderConfig
from cohort.models.config_file import read_config
from cohort.models.decoder import Decoder
from cohort.models.streaming.layer_streaming import LayerStreaming
from cohort.models.weight_formats import PLAIN, WeightFormat
from cohort.models.weights import _is_of_part, freeze_weights

__all__ = ["SHAPES", "gsm8k_rows", "hf_config", "num_parameters", "random_decoder", "rows_of_lengths"]

_COMMON: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}

SHAPES: dict[str, dict[str, Any]] = {
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
    "70b": {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    # what is tuned on a CPU for real
    "44m": {
        "vocab_size": 32000,
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    # for trying the benchmarks out without a GPU
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "tie_word_embeddings": True,
    },
}


def hf_config(shape: str, *, num_layers: int | None = None) -> dict[str, Any]:
    """Return ``config.json`` of a shape, with fewer layers if asked."""
    config = {**_COMMON, **SHAPES[shape]}
    if num_layers is not None:
        config["num_hidden_layers"] = num_layers
    return config


def random_decoder(
    config: DecoderConfig,
    *,
    device: str,
    dtype: torch.dtype,
    streaming: LayerStreaming | None = None,
    weight_format: WeightFormat = PLAIN,
    part: range | None = None,
    has_head: bool = False,
) -> Decoder:
    """Return a decoder with normal weights of std 0.02 and unit norms; its speed is a real model's.

    ``part``: the layers of a stage of a pipeline, with the head if it ``has_head`` or is the last; None for all.
    """
    generator = torch.Generator(device).manual_seed(0)

    def drawn(shape: tuple[int, ...]) -> torch.Tensor:
        tensor = torch.empty(shape, device=device, dtype=dtype)
        return tensor.fill_(1.0) if len(shape) == 1 else tensor.normal_(std=0.02, generator=generator)

    layout = checkpoint_layout(config)
    if part is not None:
        layout = tuple(fused for fused in layout if _is_of_part(fused.name, part, config=config, has_head=has_head))
    drawn_all = ((fused, drawn(fused.shape)) for fused in layout)
    tensors, products = freeze_weights(drawn_all, streaming=streaming, weight_format=weight_format)
    ring = None if streaming is None else streaming.ring()
    return Decoder(config, tensors=tensors, products=products, ring=ring, part=part)


def decoder_config(shape: str, *, num_layers: int | None = None) -> DecoderConfig:
    """Return the decoder's own record of a shape."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(hf_config(shape, num_layers=num_layers)))
        return read_config(Path(folder))


def num_parameters(config: DecoderConfig) -> int:
    """Return all parameters, shared ones once."""
    return sum(int(np.prod(fused.shape)) for fused in checkpoint_layout(config))


def rows_of_lengths(pairs: list[tuple[int, int]], *, vocab_size: int, seed: int = 0) -> TokenisedRows:
    """Return rows of random tokens with (prompt, completion) lengths; the completion is trained."""
    rng = np.random.default_rng(seed)
    lengths = np.array([prompt + completion for prompt, completion in pairs], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    trained = np.zeros(offsets[-1], dtype=np.bool_)
    for start, (prompt, completion) in zip(offsets, pairs, strict=False):
        trained[start + max(prompt, 1) : start + prompt + completion] = True
    return TokenisedRows(
        tokens_T=rng.integers(0, min(vocab_size, 100_000), size=offsets[-1]).astype(np.int32),
        trained_T=trained,
        offsets=offsets,
        prompts=("",) * len(pairs),
        references=("",) * len(pairs),
        sources=tuple(f"random:{i + 1}" for i in range(len(pairs))),
        fingerprint=f"random-{seed}",
    )


def gsm8k_lengths() -> list[tuple[int, int]]:
    """Return the prompt and completion lengths of GSM8K's training rows, in their order."""
    recorded = json.loads((Path(__file__).parent / "gsm8k_lengths.json").read_text(encoding="utf-8"))["lengths"]
    return [(prompt, completion) for prompt, completion in recorded]


def gsm8k_rows(count: int, *, vocab_size: int, seed: int = 0) -> TokenisedRows:
    """Return ``count`` rows whose prompt and completion lengths are drawn from GSM8K's training split."""
    recorded = gsm8k_lengths()
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(recorded), size=count, replace=count > len(recorded))
    return rows_of_lengths([recorded[i] for i in chosen], vocab_size=vocab_size, seed=seed)
