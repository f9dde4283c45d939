"""Loads the kernels of the BLAS that exact passes of earlier starts have had, while a model's weights are read."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from cohort.core.process.daemon_thread import begin_in_thread
from cohort.kernels.exact_product import AskedProduct, load_agreed
from cohort.kernels.packed_linear.frozen_product import may_ask
from cohort.models.decoder import Decoder

__all__ = ["begin_blas_kernels"]


def begin_blas_kernels(decoder: Decoder, *, is_enough: Callable[[], bool]) -> Future[None]:
    """Begin to load them in a thread: a library's kernels are loaded without the interpreter's lock.

    Args:
        decoder: On a GPU, of any weights: its exact products are those of the passes to come.
        is_enough: Once it is true, the remaining ones are left to the passes that need them.
    """
    shapes = {(product.out_features, product.in_features) for product in decoder.products if may_ask(product)}
    products = [
        AskedProduct(weight_shape=shape, forward=forward, dtype=decoder.dtype, device=decoder.device)
        for shape in sorted(shapes)
        for forward in (True, False)
    ]

    return begin_in_thread("cohort-blas", load_agreed, products, is_enough=is_enough)
