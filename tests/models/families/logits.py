"""What each family's tests compare: packed logits with transformers' of each sequence alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.weights import load_decoder
from tests.models.fixtures.streams import packed_logits
from tests.models.fixtures.tiny_checkpoints import reference_logits, save_checkpoint

__all__ = ["assert_float64_logits_equal_transformers", "assert_logits_equal_transformers"]

LENGTHS = (1, 7, 16, 33, 90)


def assert_logits_equal_transformers(family: str, folder: Path, **settings: Any) -> None:
    folder = save_checkpoint(folder, family, **settings)
    generator = torch.Generator().manual_seed(1)
    sequences = [torch.randint(0, 67, (length,), generator=generator) for length in LENGTHS]
    decoder = load_decoder(folder, dtype="float32")
    assert linear_shapes(decoder.config) == decoder.linears
    for ours, theirs in zip(packed_logits(decoder, sequences), reference_logits(folder, sequences), strict=True):
        assert theirs.abs().max() > 0.5, "logits near zero would hide a mistake"
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def assert_float64_logits_equal_transformers(family: str, folder: Path, **settings: Any) -> None:
    folder = save_checkpoint(folder, family, **settings)
    sequences = [torch.arange(length) % 67 for length in (9, 40)]
    decoder = load_decoder(folder, dtype="float64")
    assert decoder.dtype == torch.float64
    reference = reference_logits(folder, sequences, dtype=torch.float64)
    for ours, theirs in zip(packed_logits(decoder, sequences), reference, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
