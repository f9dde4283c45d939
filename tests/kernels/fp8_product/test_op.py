"""The ops: what they refuse, what a CPU computes, and on a GPU the definition but for the order of its sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cohort.core.errors import ShapeError
from cohort.kernels.fp8_product import (
    fp8_forward,
    fp8_grad_input,
    fp8_problem,
    quantise_rows,
    reference,
    transposed,
)
from tests.kernels.closeness import relative_error


def test_a_cpu_computes_the_definition() -> None:
    weight = quantise_rows(torch.randn(6, 20))
    x, dy = torch.randn(32, 20), torch.randn(32, 6)
    kept: dict[str, Any] = {"codes_NK": weight.codes_TK, "scales_N": weight.scales_T}
    assert torch.equal(fp8_forward(x, **kept), reference.fp8_forward(x, **kept))
    assert torch.equal(fp8_grad_input(dy, **kept), reference.fp8_grad_input(dy, **kept))
    turned = fp8_grad_input(dy, codes_KN=transposed(weight.codes_TK), **kept)
    assert torch.equal(turned, fp8_grad_input(dy, **kept))


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4)])
def test_only_matrices_are_rounded(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"it is \[T, K\]"):
        quantise_rows(torch.zeros(shape))
    with pytest.raises(ShapeError, match="one factor for each of K columns"):
        quantise_rows(torch.zeros(2, 3), factors_K=torch.ones(4))


def test_a_gpu_without_eight_bit_floats_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fp8_problem(torch.device("cpu")) is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    assert fp8_problem(torch.device("cuda")) == "NVIDIA A100, of compute capability 8.0"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert fp8_problem(torch.device("cuda")) is None
    assert fp8_problem(torch.device("mps")) == "a device of type mps"


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [0, 1, 17, 256, 1000])
@pytest.mark.parametrize(("num_out", "num_in"), [(48, 80), (6144, 4096), (4096, 14336), (37, 24)])
def test_a_gpus_products_are_the_definitions(num_rows: int, num_out: int, num_in: int) -> None:
    """Codes are the same, so only sums differ: those of the tensor cores keep about 14 bits (2^-13 for long sums)."""
    weight = quantise_rows(torch.randn(num_out, num_in, device="cuda") * 0.02)
    kept: dict[str, Any] = {"codes_NK": weight.codes_TK, "scales_N": weight.scales_T}
    x = torch.randn(num_rows, num_in, device="cuda", dtype=torch.bfloat16)
    dy = torch.randn(num_rows, num_out, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(num_out, device="cuda", dtype=torch.bfloat16)
    y, dx = fp8_forward(x, bias_N=bias, **kept), fp8_grad_input(dy, **kept)
    assert (y.shape, dx.shape) == ((num_rows, num_out), (num_rows, num_in))
    assert torch.equal(dx, fp8_grad_input(dy, codes_KN=transposed(weight.codes_TK), **kept))
    if num_rows:
        # rounding of the result to bf16, twice with a bias, and of the sums
        assert relative_error(y, reference.fp8_forward(x.float(), bias_N=bias, **kept)) < 3 * 2**-9
        # the sums of dx are as short-sighted as those of y: 0.003 over 6,144 products
        assert relative_error(dx, reference.fp8_grad_input(dy.float(), **kept)) < 3 * 2**-9


@pytest.mark.gpu
def test_rows_on_a_gpu_do_not_depend_on_their_neighbours() -> None:
    weight = quantise_rows(torch.randn(256, 512, device="cuda"))
    x = torch.randn(300, 512, device="cuda", dtype=torch.bfloat16)
    clean = fp8_forward(x, codes_NK=weight.codes_TK, scales_N=weight.scales_T)
    x[7, 3] = torch.nan
    found = fp8_forward(x, codes_NK=weight.codes_TK, scales_N=weight.scales_T)
    others = torch.arange(300) != 7
    assert found[7].isnan().all()
    assert torch.equal(found[others], clean[others])


@pytest.mark.gpu
@pytest.mark.parametrize(("num_out", "num_in"), [(6144, 4096), (4096, 14336), (37, 24)])
def test_exact_rows_have_their_bits_in_any_stream(num_out: int, num_in: int) -> None:
    weight = quantise_rows(torch.randn(num_out, num_in, device="cuda") * 0.02)
    kept: dict[str, Any] = {"codes_NK": weight.codes_TK, "scales_N": weight.scales_T, "exact": True}
    x = torch.randn(4096, num_in, device="cuda", dtype=torch.bfloat16)
    dy = torch.randn(4096, num_out, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(num_out, device="cuda", dtype=torch.bfloat16)
    y, dx = fp8_forward(x, bias_N=bias, **kept), fp8_grad_input(dy, **kept)
    for rows in (1, 16, 33, 200, 1100, 2048):
        own = slice(700, 700 + rows)
        assert torch.equal(fp8_forward(x[own], bias_N=bias, **kept), y[own]), rows
        assert torch.equal(fp8_grad_input(dy[own], **kept), dx[own]), rows
    kept["exact"] = False
    assert relative_error(y, fp8_forward(x.float(), bias_N=bias, **kept)) < 3 * 2**-9
    assert relative_error(dx, fp8_grad_input(dy.float(), **kept)) < 3 * 2**-9
