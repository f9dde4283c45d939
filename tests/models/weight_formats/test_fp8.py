"""fp8 weights: one set of codes for siblings together, bytes that are counted, and where a second copy is kept."""

from __future__ import annotations

import pytest
import torch

from cohort.kernels.fp8_product import fp8_forward, fp8_grad_input, quantise_rows
from cohort.models.weight_formats import fp8
from cohort.models.weight_formats.fp8 import FORMAT, Fp8Linear


def test_siblings_have_the_products_that_each_has_alone() -> None:
    assert FORMAT.quantisation is not None
    weights, bias = [torch.randn(n, 24) for n in (6, 3, 5)], torch.randn(14)
    x, dy = torch.randn(32, 24), torch.randn(32, 14)
    fused = FORMAT.quantisation.assemble([FORMAT.quantisation.quantise(w) for w in weights], bias, torch.float32)
    alone = [FORMAT.freeze(weight, None).forward(x) for weight in weights]
    assert torch.equal(fused.forward(x), torch.cat(alone, dim=1) + bias)
    rows = quantise_rows(torch.cat(weights))
    assert torch.equal(fused.grad_input(dy), fp8_grad_input(dy, codes_NK=rows.codes_TK, scales_N=rows.scales_T))
    assert (fused.in_features, fused.out_features, fused.dtype) == (24, 14, torch.float32)


def test_bytes_are_one_a_weight_and_a_scale_a_row() -> None:
    frozen = FORMAT.freeze(torch.randn(6, 7), None)
    assert frozen.num_bytes == FORMAT.weight_bytes(6, 7, torch.float32) == 6 * 7 + 6 * 4


def test_a_transposed_copy_is_kept_where_both_take_less_than_half() -> None:
    assert FORMAT.copy_bytes(7 << 30, 79 << 30) == 7 << 30
    assert FORMAT.copy_bytes(70 << 30, 140 << 30) == 0
    frozen = FORMAT.freeze(torch.randn(6, 7), torch.randn(6))
    assert isinstance(frozen, Fp8Linear)
    before, dy = frozen.num_bytes, torch.randn(32, 6)
    dx = frozen.grad_input(dy)
    frozen.keep_transposed()
    assert frozen.num_bytes == before + 6 * 7
    assert torch.equal(frozen.grad_input(dy), dx)


def test_weights_can_stand_elsewhere() -> None:
    frozen = FORMAT.freeze(torch.randn(6, 20), None)
    assert isinstance(frozen, Fp8Linear)
    x = torch.randn(32, 20)
    before = frozen.forward(x)
    frozen.place_weights([weight.clone() for weight in frozen.streamed_weights])
    assert torch.equal(frozen.forward(x), before)


def test_a_cpu_keeps_no_second_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8, "_copy_bytes", lambda *_: 1)
    frozen = FORMAT.freeze(torch.randn(6, 20), None)
    assert FORMAT.quantisation is not None
    assert FORMAT.quantisation.finish is not None
    FORMAT.quantisation.finish([frozen], None)
    assert frozen.num_bytes == 6 * 20 + 6 * 4


def test_outputs_keep_the_dtype_of_rows() -> None:
    frozen = FORMAT.freeze(torch.randn(6, 20, dtype=torch.bfloat16), None)
    x = torch.randn(32, 20, dtype=torch.bfloat16)
    assert frozen.dtype == frozen.forward(x).dtype == torch.bfloat16
    rows = quantise_rows(torch.zeros(1, 20))
    assert fp8_forward(x, codes_NK=rows.codes_TK, scales_N=rows.scales_T).eq(0).all()
