"""The kernels give the definition's codes; Triton's interpreter rounds to e4m3 wrongly, so there inputs need none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cohort.kernels.backend import Backend, implementation
from cohort.kernels.fp8_product import quantise_rows, reference
from cohort.kernels.fp8_product.reference import CODES

SHAPES = [(1, 1), (7, 5), (130, 64), (3, 1000), (2, 4100), (2, 6144), (0, 8), (0, 4100), (3, 0)]


def representable(num_rows: int, width: int) -> Tensor:
    """Rows of e4m3 values times a power of two each, their largest entry 448 times it."""
    codes = torch.randint(0, 256, (num_rows, width), dtype=torch.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0
    x = codes.view(CODES).float()
    if width:
        x[:, width // 2] = 448.0
    return x * torch.exp2(torch.randint(-8, 9, (num_rows, 1)).float())


def assert_same(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    assert torch.equal(found[0].cpu().view(torch.uint8), expected[0].cpu().view(torch.uint8))
    assert torch.equal(found[1].cpu(), expected[1].cpu())


@pytest.mark.parametrize(("num_rows", "width"), SHAPES)
@pytest.mark.parametrize("with_factors", [False, True])
def test_codes_and_scales_are_the_references(triton_device: str, num_rows: int, width: int, with_factors: bool) -> None:
    x = representable(num_rows, width + 3)[:, :width] if width == 5 else representable(num_rows, width)
    x = x.to(triton_device)
    factors = torch.full((width,), 0.5, device=triton_device) if with_factors else None
    rows = quantise_rows(x, factors_K=factors, backend=Backend.TRITON)
    assert_same((rows.codes_TK, rows.scales_T), reference.quantise_rows(x, factors_K=factors))


@pytest.mark.gpu
@pytest.mark.parametrize(("num_rows", "width"), [*SHAPES, (64, 4096), (33, 14336), (9, 28672)])
def test_rounding_is_the_references(num_rows: int, width: int) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        x = (torch.randn(num_rows, width, device="cuda") * torch.logspace(-9, 9, num_rows, device="cuda")[:, None]).to(
            dtype
        )
        if num_rows and width:
            x[0] = 0
        factors = torch.rand(width, device="cuda") + 0.5
        for given in (None, factors):
            rows = quantise_rows(x, factors_K=given)
            on_host = None if given is None else given.cpu()
            assert_same((rows.codes_TK, rows.scales_T), reference.quantise_rows(x.cpu(), factors_K=on_host))


@pytest.mark.gpu
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_is_not_finite_keeps_its_row_from_being_finite(poison: float) -> None:
    x = torch.randn(8, 64, device="cuda", dtype=torch.bfloat16)
    x[3, 5] = poison
    rows = quantise_rows(x)
    found = rows.codes_TK.float() * rows.scales_T[:, None]
    assert found[3].isnan().any()
    assert found[torch.arange(8) != 3].isfinite().all()


@pytest.mark.parametrize(("num_out", "num_in"), [(1, 1), (130, 70), (128, 256)])
def test_codes_are_transposed(triton_device: str, num_out: int, num_in: int) -> None:
    codes = representable(num_out, num_in).clamp(-448, 448).to(CODES).to(triton_device)
    found = implementation("fp8_product", Backend.TRITON).transposed(codes)
    assert torch.equal(found.cpu().view(torch.uint8), reference.transposed(codes.cpu()).view(torch.uint8))
