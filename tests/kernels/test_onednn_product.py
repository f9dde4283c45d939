"""Products by oneDNN: right, and with bits of their own at heights and places that oneDNN was not asked with."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from cohort.kernels import onednn_product as module
from cohort.kernels.onednn_product import LEAST_WEIGHT, onednn_product
from cohort.kernels.row_stable_product import row_stable_product


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    module._least_rows.cache_clear()


def weight_of(inner: int, width: int, generator: torch.Generator, *, transposed: bool) -> Tensor:
    if transposed:
        return torch.randn(width, inner, generator=generator).t()
    return torch.randn(inner, width, generator=generator)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("inner", "width"), [(192, 320), (320, 192), (1027, 64), (96, 1001), (2816, 40)])
def test_where_it_multiplies_a_row_has_the_same_bits_in_any_number_of_rows(
    inner: int, width: int, threads: int, *, transposed: bool
) -> None:
    torch.set_num_threads(threads)
    drawn, generator = random.Random(inner), torch.Generator().manual_seed(inner)
    w_IW, bias_W = weight_of(inner, width, generator, transposed=transposed), torch.randn(width, generator=generator)
    x_TI = torch.randn(800, inner, generator=generator)
    whole_TW = onednn_product(x_TI, w_IW, bias_W)
    if whole_TW is None:
        pytest.skip(f"this machine's oneDNN changes a row's bits with its height for {inner} x {width}")
    for _ in range(25):
        count = drawn.choice([1, 2, 3, drawn.randint(1, 40), drawn.randint(1, 700)])
        first = drawn.randint(0, 800 - count)
        rows = slice(first, first + count)
        neighbours_TI = torch.full_like(x_TI, torch.nan)
        neighbours_TI[rows] = x_TI[rows]
        found_TW = onednn_product(neighbours_TI, w_IW, bias_W)
        alone_TW = onednn_product(x_TI[rows], w_IW, bias_W)
        assert found_TW is not None
        assert alone_TW is not None
        assert torch.equal(found_TW[rows], whole_TW[rows]), (first, count)
        assert torch.equal(alone_TW, whole_TW[rows]), (first, count)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("num_rows", [1, 2, 37, 300])
@pytest.mark.parametrize("with_bias", [False, True])
def test_it_is_the_product(num_rows: int, *, with_bias: bool, transposed: bool) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    x_TI = torch.randn(num_rows, 200, generator=generator)
    w_IW = weight_of(200, 120, generator, transposed=transposed)
    bias_W = torch.randn(120, generator=generator) if with_bias else None
    found_TW = onednn_product(x_TI, w_IW, bias_W)
    if found_TW is None:
        pytest.skip("this machine's oneDNN does not keep bits")
    expected_TW = x_TI.double() @ w_IW.double() + (0.0 if bias_W is None else bias_W.double())
    # 200 products of about 1 each, rounded one after the other
    torch.testing.assert_close(found_TW.double(), expected_TW, rtol=1e-5, atol=1e-4)


def test_other_code_multiplies_what_it_is_not_for() -> None:
    x_TI, side = torch.randn(40, 128), LEAST_WEIGHT // 128
    w_IW = torch.randn(128, side)
    assert onednn_product(x_TI, w_IW[:, : side - 1].contiguous()) is None
    assert onednn_product(x_TI.double(), w_IW.double()) is None
    assert onednn_product(x_TI.bfloat16(), w_IW.bfloat16()) is None
    assert onednn_product(x_TI[:0], w_IW) is None
    assert onednn_product(x_TI, torch.randn(128, 2 * side)[:, :side]) is None


@pytest.mark.parametrize(("differs_up_to", "least"), [(1, 2), (2, 16), (31, 32), (100, 128), (300, None)])
def test_the_least_height_is_above_all_that_differ(
    monkeypatch: pytest.MonkeyPatch, differs_up_to: int, least: int | None
) -> None:
    heights: list[int] = []

    def product(x_TI: Tensor, w_IW: Tensor, bias_W: Tensor | None) -> Tensor:
        del w_IW, bias_W
        heights.append(len(x_TI))
        return x_TI + 0.5 if len(x_TI) <= differs_up_to else x_TI.clone()

    module._least_rows.cache_clear()
    monkeypatch.setattr(module, "_product", product)
    found = onednn_product(torch.ones(5, 128), torch.ones(128, 128))
    assert (found is None) == (least is None)
    if least is not None:
        # filled up to that height, and cut again
        assert heights[-1] == max(least, 5)
        assert found is not None
        assert len(found) == 5


@pytest.mark.parametrize("absent", ["operator", "library"])
def test_other_code_multiplies_where_torch_has_no_such_product(monkeypatch: pytest.MonkeyPatch, absent: str) -> None:
    # it is private to torch, which may rename it
    if absent == "operator":
        monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())
    else:
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    module._least_rows.cache_clear()
    generator = torch.Generator().manual_seed(0)
    x_TI, w_WI = torch.randn(37, 200, generator=generator), torch.randn(120, 200, generator=generator)
    assert onednn_product(x_TI, w_WI.t()) is None
    found_TW = row_stable_product(x_TI, w_WI.t())
    torch.testing.assert_close(found_TW.double(), x_TI.double() @ w_WI.double().t(), rtol=1e-5, atol=1e-4)
