"""Codes of the fused gradient: those of a pass of its own over what the rotation has stored, and the same gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from cohort.kernels.backend import Backend
from cohort.kernels.fp8_product import CodeRoom, empty_rows, quantise_rows
from cohort.kernels.rope import reference
from cohort.kernels.rope import triton as rope
from tests.kernels.closeness import low_precision


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "width"), [(3, 1, 6), (4, 2, 16), (1, 1, 2)])
def test_codes_are_those_of_the_stored_row(triton_device: str, num_heads: int, num_kv_heads: int, width: int) -> None:
    dtype, num_rows = low_precision(triton_device), 5
    total = (num_heads + 2 * num_kv_heads) * width
    generator = torch.Generator().manual_seed(0)
    dqkv = torch.randn(num_rows, total, generator=generator) * torch.logspace(-3, 3, num_rows)[:, None]
    dqkv[2] = 0.0
    heads = dqkv.to(triton_device, dtype).unflatten(1, (-1, width))
    dq, dk, dv = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    angles = torch.linspace(0, 3, num_rows * width, device=triton_device).view(num_rows, width)
    factors = torch.linspace(0.2, 3.0, total, device=triton_device)
    room = CodeRoom(factors_N=factors, rows=empty_rows(heads, width=total))
    arguments: dict[str, Any] = {"cos_TE": angles.cos(), "sin_TE": angles.sin()}
    found = rope.fused_backward(dq, dk, dv, **arguments, room=room)
    assert torch.equal(found, rope.fused_backward(dq, dk, dv, **arguments))
    # by the same backend: Triton's interpreter rounds to e4m3 wrongly
    expected = quantise_rows(found, factors_K=factors, backend=Backend.TRITON)
    assert torch.equal(room.rows.scales_T, expected.scales_T)
    assert torch.equal(room.rows.codes_TK.view(torch.uint8), expected.codes_TK.view(torch.uint8))


def test_the_definition_writes_them_too() -> None:
    dq, dk, dv = (torch.randn(4, count, 6) for count in (2, 1, 1))
    room = CodeRoom(factors_N=torch.rand(24) + 0.5, rows=empty_rows(dq, width=24))
    angles = torch.rand(4, 6)
    found = reference.fused_backward(dq, dk, dv, cos_TE=angles.cos(), sin_TE=angles.sin(), room=room)
    expected = quantise_rows(found, factors_K=room.factors_N)
    assert torch.equal(room.rows.codes_TK.float(), expected.codes_TK.float())
    assert torch.equal(room.rows.scales_T, expected.scales_T)
