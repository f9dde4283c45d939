"""fp8 weights: one set of codes for siblings together, bytes that are counted, and where a second copy is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.kernels.fp8_product import Fp8Rows, fp8_forward, fp8_grad_input, quantise_rows
from cohort.models.weight_formats.kinds import fp8
from cohort.models.weight_formats.kinds.fp8 import FORMAT, Fp8Linear
from cohort.models.weights import load_decoder
from tests.models.fixtures.streams import packed_logits
from tests.models.fixtures.tiny_checkpoints import save_checkpoint


def test_siblings_have_the_products_that_each_has_alone() -> None:
    assert FORMAT.quantisation is not None
    weights, bias = [torch.randn(n, 24) for n in (6, 3, 5)], torch.randn(14)
    x, dy = torch.randn(32, 24), torch.randn(32, 14)
    fused = FORMAT.quantisation.assemble([FORMAT.quantisation.quantise(w) for w in weights], bias, torch.float32)
    alone = [FORMAT.freeze(weight, None).forward(x) for weight in weights]
    # a BLAS may add up in another order where fewer columns stand side by side
    torch.testing.assert_close(fused.forward(x), torch.cat(alone, dim=1) + bias, rtol=1e-5, atol=1e-5)
    rows = quantise_rows(torch.cat(weights))
    assert torch.equal(fused.forward(x), fp8_forward(x, codes_NK=rows.codes_TK, scales_N=rows.scales_T, bias_N=bias))
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


def test_codes_written_in_passing_are_multiplied_and_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a GPU multiplies codes; here the product is made to, from the codes that came with the rows."""
    taken: list[Fp8Rows] = []

    def from_codes(x_TK: Tensor, *, rows: Fp8Rows | None, **kept: Any) -> Tensor:
        if rows is not None:
            taken.append(rows)
            x_TK = torch.where(torch.tensor(True), rows.codes_TK.float() * rows.scales_T[:, None], x_TK)
        # rounding what is rounded already changes nothing
        return fp8_forward(x_TK, **kept)

    decoder = load_decoder(save_checkpoint(tmp_path, "Llama"), dtype="float32", weight_format="fp8")
    sequences = [torch.arange(1, 20), torch.arange(5, 8)]
    plain = packed_logits(decoder, sequences)
    monkeypatch.setattr(fp8, "has_product", lambda *_: True)
    monkeypatch.setattr(fp8, "fp8_forward", from_codes)
    coded = packed_logits(decoder, sequences)
    # q, k, v and gate and up of every layer read the rows of a norm, down those of the activation
    assert len(taken) == 3 * decoder.config.num_layers
    for a, b in zip(coded, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_codes_serve_one_product_of_their_own_rows() -> None:
    frozen = FORMAT.freeze(torch.randn(6, 20), None)
    assert isinstance(frozen, Fp8Linear)
    x = torch.randn(5, 20)
    reading = frozen.reading(quantise_rows(x))
    assert (reading.in_features, reading.out_features, reading.num_bytes) == (20, 6, frozen.num_bytes)
    assert torch.equal(reading.forward(x), frozen.forward(x))
    assert torch.equal(reading.forward(-x), frozen.forward(-x))
    with pytest.raises(ShapeError, match=r"x is \(5, 20\) but its codes are \(4, 20\)"):
        frozen.reading(quantise_rows(x[:4])).forward(x)
