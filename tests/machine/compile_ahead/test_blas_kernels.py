"""Kernels of the BLAS are loaded in a thread, for the products of the model that is on its way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from cohort.kernels.exact_product import AskedProduct
from cohort.machine.compile_ahead import blas_kernels
from cohort.models.weights import load_decoder
from tests.training.small_models import save_llama


def test_each_product_is_loaded_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[AskedProduct] = []

    def load(products: Iterable[AskedProduct], *, is_enough: Callable[[], bool]) -> None:
        assert not is_enough()
        found.extend(products)

    monkeypatch.setattr(blas_kernels, "load_agreed", load)
    save_llama(tmp_path, num_layers=2)
    decoder = load_decoder(tmp_path, dtype="float32", device="cpu")
    blas_kernels.begin_blas_kernels(decoder, is_enough=lambda: False).result(60)
    shapes = {(product.out_features, product.in_features) for product in decoder.products}
    assert {(product.weight_shape, product.forward) for product in found} == {
        (shape, forward) for shape in shapes for forward in (True, False)
    }
    assert len(found) == 2 * len(shapes)
