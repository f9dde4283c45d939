"""The definition: a file of bitsandbytes reads to the same weights, and codes are the nearest values."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cohort.kernels.nf4_weight import Nf4Weight, dequantise, quantise
from cohort.kernels.nf4_weight.reference import BLOCK, VALUES, scales_of

THEIRS = Path(__file__).parent / "bitsandbytes_nf4.safetensors"


def test_a_file_of_bitsandbytes_has_the_same_codes_and_weights() -> None:
    """Quantised and dequantised by bitsandbytes 0.50.2 on a CPU. Its search for a scale's code is not exact: where a
    scale lies within 1 % of the middle between two values it may take the other one, and so one of 260 differs.
    """
    stored = load_file(THEIRS)
    state = json.loads(bytes(stored["weight.quant_state.bitsandbytes__nf4"].tolist()))
    assert torch.equal(stored["weight.quant_map"], torch.tensor(VALUES))
    shape = tuple(stored["original"].shape)
    theirs = Nf4Weight(
        codes=stored["weight"].flatten(),
        scale_codes=stored["weight.absmax"],
        nested_scales=stored["weight.nested_absmax"],
        nested_map=stored["weight.nested_quant_map"],
        offset=torch.tensor(state["nested_offset"]),
        shape=(shape[0], shape[1]),
    )
    found = torch.empty(shape, dtype=torch.bfloat16)
    dequantise(theirs, found)
    assert torch.equal(found, stored["dequantised"])
    ours = quantise(stored["original"])
    assert torch.equal(ours.codes, theirs.codes)
    assert torch.equal(ours.nested_scales, theirs.nested_scales)
    assert torch.equal(ours.nested_map, theirs.nested_map)
    assert ours.offset == theirs.offset
    assert (ours.scale_codes != theirs.scale_codes).sum() <= 2
    assert (ours.scale_codes.int() - theirs.scale_codes.int()).abs().max() <= 1


@pytest.mark.parametrize("shape", [(1, 1), (7, 9), (33, 64), (130, 130), (0, 5), (4, 0)])
def test_weights_are_the_nearest_values_times_their_scale(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape) * torch.logspace(-4, 2, shape[0])[:, None]
    kept = quantise(weight)
    found = torch.empty(shape)
    dequantise(kept, found)
    flat, out = weight.flatten(), found.flatten()
    scales = scales_of(kept.scale_codes, kept.nested_scales, kept.nested_map, kept.offset)
    widest = max(abs(b - a) for a, b in itertools.pairwise(VALUES)) / 2
    for start in range(0, flat.numel(), BLOCK):
        block, scale = flat[start : start + BLOCK], scales[start // BLOCK]
        largest = block.abs().max()
        # the code's rounding, and the scale's: off by as much as it is itself, where the mean of all is far larger
        bound = widest * largest + (scale - largest).abs()
        assert ((out[start : start + BLOCK] - block).abs() <= bound * 1.0001 + 1e-12).all()


def test_a_weight_of_zeros_stays_zero() -> None:
    found = torch.ones(3, 70)
    dequantise(quantise(torch.zeros(3, 70)), found)
    assert found.eq(0).all()
