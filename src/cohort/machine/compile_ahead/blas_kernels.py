"""Loads the kernels of the BLAS that exact passes of earlier starts have had, while a model's weights are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from cohort.core.process.daemon_thread import begin_in_thread
from cohort.kernels.exact_product import AskedProduct, load_agreed
from cohort.kernels.packed_linear.frozen_product import may_ask
from cohort.models.decoder import Decoder

__all__ = ["loading_blas_kernels"]


@contextmanager
def loading_blas_kernels(decoder: Decoder, *, is_enough: Callable[[], bool]) -> Iterator[None]:
    """Load them in a thread next to the block, and free what that took of the GPU before memory is planned.

    A library's kernels are loaded without the interpreter's lock. An error leaves them to the passes that need them.

    Args:
        decoder: On a GPU, of any weights: its linears are those of the passes to come. The loss head is left out: its
            products have few numbers of rows that come again, and gigabytes of weights.
        is_enough: Once it is true, the remaining ones are left to the passes that need them.
    """
    linears = [linear.frozen for layer in decoder.layers for linear in layer.linears]
    shapes = {(product.out_features, product.in_features) for product in linears if may_ask(product)}
    products = [
        AskedProduct(weight_shape=shape, forward=forward, dtype=decoder.dtype, device=decoder.device)
        for shape in sorted(shapes)
        for forward in (True, False)
    ]
    loading = begin_in_thread("cohort-blas", load_agreed, products, is_enough=is_enough)
    try:
        yield
    finally:
        error = loading.exception()
        if error is not None:
            # its frames would hold their tensors
            error.__traceback__ = None
        torch.cuda.empty_cache()
