"""Whole models: bfloat16 as near as its digits allow, and pretrained checkpoints where this machine has them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.models.weights import load_decoder
from tests.models.fixtures.streams import packed_logits
from tests.models.fixtures.tiny_checkpoints import reference_logits, save_checkpoint


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
