"""Kernels of the BLAS are loaded in a thread, for the linears of the model that is on its way."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

from cohort.kernels.exact_product import AskedProduct
from cohort.machine.compile_ahead import blas_kernels
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from tests.training.small_models import save_llama


@pytest.fixture
def decoder(tmp_path: Path) -> Decoder:
    save_llama(tmp_path, num_layers=2)
    return load_decoder(tmp_path, dtype="float32", device="cpu")


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens, in its order."""
    found: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: found.append("freed"))
    return found


def test_each_linear_is_loaded_both_ways_and_the_head_is_not(
    decoder: Decoder, freed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[AskedProduct] = []

    def load(products: Iterable[AskedProduct], *, is_enough: Callable[[], bool]) -> None:
        assert threading.current_thread() is not threading.main_thread()
        assert not is_enough()
        asked.extend(products)
        freed.append("loaded")

    monkeypatch.setattr(blas_kernels, "load_agreed", load)
    with blas_kernels.loading_blas_kernels(decoder, is_enough=lambda: False):
        pass
    *linears, head = decoder.products
    shapes = {(product.out_features, product.in_features) for product in linears}
    assert (head.out_features, head.in_features) not in shapes
    assert {(product.weight_shape, product.forward) for product in asked} == {
        (shape, forward) for shape in shapes for forward in (True, False)
    }
    assert len(asked) == 2 * len(shapes)
    assert freed == ["loaded", "freed"], "what it took is free once it has ended"


@pytest.mark.parametrize("fails", ["thread", "block"])
def test_what_fails_leaves_the_kernels_to_the_passes_and_memory_to_the_plan(
    decoder: Decoder, freed: list[str], monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    entered, held = threading.Event(), list[weakref.ref[torch.Tensor]]()

    def load(*_: object, **__: object) -> None:
        operand = torch.zeros(4)
        held.append(weakref.ref(operand))
        entered.wait(30)
        if fails == "thread":
            raise torch.OutOfMemoryError("CUDA out of memory")
        freed.append("loaded")

    monkeypatch.setattr(blas_kernels, "load_agreed", load)

    def run() -> None:
        with blas_kernels.loading_blas_kernels(decoder, is_enough=lambda: False):
            entered.set()
            if fails == "block":
                raise RuntimeError("no room")

    if fails == "block":
        with pytest.raises(RuntimeError, match="no room"):
            run()
    else:
        run()
    assert freed == (["freed"] if fails == "thread" else ["loaded", "freed"])
    assert [operand() for operand in held] == [None], "its frames would hold them"
