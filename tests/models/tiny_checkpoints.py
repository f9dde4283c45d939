"""Small random checkpoints, saved by transformers, and their logits as transformers computes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from cohort.core.errors import InputError
from cohort.models.weights import load_decoder

SIZES: dict[str, Any] = {
    "vocab_size": 67,
    "hidden_size": 24,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def save_checkpoint(
    folder: Path, family: str, *, max_shard_size: str = "1GB", seed: int = 0, config: str = "", **settings: Any
) -> Path:
    """Save a random checkpoint of ``family`` (``Llama``, ``Qwen2``, ...); all weights, norms and biases are random.

    ``config`` is what its configuration is called, where that is not the family.
    """
    torch.manual_seed(seed)
    made = getattr(transformers, f"{config or family}Config")(**{**SIZES, **settings})
    model = getattr(transformers, f"{family}ForCausalLM")(made)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
            # Gemma adds 1 to what it stores
            center = 1.0 if "norm" in name and "Gemma" not in family else 0.0
            parameter.normal_(center, spread)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


@torch.no_grad()
def reference_logits(folder: Path, sequences: list[Tensor], *, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Logits [L, V] of each sequence alone, by transformers."""
    # its eager attention takes the softmax in float32 whatever the dtype
    kind = "sdpa" if dtype == torch.float64 else "eager"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=kind)
    return [model(sequence[None]).logits[0] for sequence in sequences]


def problems_of(folder: Path | str) -> list[str]:
    with pytest.raises(InputError) as caught:
        load_decoder(folder)
    return [str(problem) for problem in caught.value.problems]


def edit_config(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def edit_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
