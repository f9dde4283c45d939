"""What a layer adds to the stream: the sum behind a norm, and the weight that a norm multiplies by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from cohort.kernels.fp8_product import empty_rows, quantise_rows
from cohort.kernels.rms_norm import rms_norm
from cohort.models.decoder_layer import add_and_norm, norm_weight


def test_the_first_norm_has_nothing_to_add() -> None:
    stream, delta, weight = torch.randn(3, 8), torch.randn(3, 8), torch.rand(8)
    x, same = add_and_norm(stream, None, weight_D=weight, eps=1e-5)
    assert same is stream
    assert torch.equal(x, rms_norm(stream, weight_D=weight, eps=1e-5))
    x, total = add_and_norm(stream, delta, weight_D=weight, eps=1e-5)
    assert torch.equal(total, stream + delta)
    assert torch.equal(x, rms_norm(total, weight_D=weight, eps=1e-5))


def test_codes_are_written_where_they_are_asked_for() -> None:
    stream, weight = torch.randn(3, 8), torch.rand(8)
    for delta in (None, torch.randn(3, 8)):
        codes = empty_rows(stream, width=8)
        x, _ = add_and_norm(stream, delta, weight_D=weight, eps=1e-5, codes=codes)
        expected = quantise_rows(x)
        assert torch.equal(codes.codes_TK.view(torch.uint8), expected.codes_TK.view(torch.uint8))
        assert torch.equal(codes.scales_T, expected.scales_T)


def test_an_offset_is_added_in_float32() -> None:
    weight = torch.full((4,), 2**-9, dtype=torch.bfloat16)
    plain: Any = SimpleNamespace(norm_offset=0.0)
    gemma: Any = SimpleNamespace(norm_offset=1.0)
    assert norm_weight(weight, plain) is weight
    # in bfloat16 the sum would be 1
    assert norm_weight(weight, gemma).tolist() == [1 + 2**-9] * 4
