"""Where the BLAS gives the very bits of the exact product, it may compute it: asked of each shape, once for a model.

Which kernel a BLAS takes follows from the shape of a product and from how its operands lie, not from their numbers. So
one product of random numbers tells whether it sums over K in the same order: a sum that is cut elsewhere changes about
one entry in a thousand, and all entries are compared. It is asked where our own tiles leave much of their last wave
empty, for numbers of rows that come again: those of recorded passes. Answers are kept for later processes.

Shapes:  M rows · N, K output and input width of the weight
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from cohort.kernels.exact_product.agreed_shapes import AgreedShapes, AskedProduct
from cohort.kernels.exact_product.kept_answers import KeptAnswers, kept_answers
from cohort.kernels.loading_once import load_kernels_once
from cohort.kernels.packed_linear.hopper.launch import exact_hopper_product, wasted_share
from cohort.kernels.packed_linear.launch.support import num_multiprocessors

__all__ = ["ask_ahead", "blas_agrees", "blas_product", "is_settled", "load_agreed"]

# recorded passes have a multiple of this many rows, but for those of more than 2,048 that end with a few spare ones
ROW_MULTIPLE = 128
# a share of waves below which our tiles are as fast
LEAST_WASTE = 0.05
# bytes: a BLAS may take another kernel for operands that lie otherwise, and looks no further than this
ALIGNMENT = 256
# a BLAS cuts sums over K for few rows, and many rows fill their waves
MOST_ROWS = 4096


def blas_product(x_MI: Tensor, weight_NK: Tensor, out_MO: Tensor, *, forward: bool) -> None:
    torch.mm(x_MI, weight_NK.t() if forward else weight_NK, out=out_MO)


def blas_agrees(x_MI: Tensor, weight_NK: Tensor, *, forward: bool, agreed: AgreedShapes) -> bool:
    """Return whether the BLAS is known to give the exact product's bits for operands like these; ask it if need be."""
    num_rows, (num_out, num_in) = x_MI.shape[0], weight_NK.shape
    if num_rows % ROW_MULTIPLE or not x_MI.is_contiguous() or not weight_NK.is_contiguous():
        return False
    product = AskedProduct(weight_shape=(num_out, num_in), forward=forward, dtype=x_MI.dtype, device=x_MI.device)
    agreed.products.add(product)
    # what is asked about lies as an allocator lays it
    if x_MI.data_ptr() % ALIGNMENT or weight_NK.data_ptr() % ALIGNMENT:
        return False
    if not _is_asked_about(product, num_rows=num_rows):
        return False
    key = (num_rows, product)
    if key not in agreed.answers:
        kept, name = kept_answers(x_MI.device), product.name(num_rows)
        found = kept.get(name)
        # nothing can be asked while a graph is recorded; the pass before it has asked
        if found is None and not torch.cuda.is_current_stream_capturing():
            found = _ask(product, num_rows=num_rows)
            if found is not None:
                kept.add(name, agrees=found)
        if found is None:
            return False
        agreed.answers[key] = found
        if found:
            # by the product that follows
            kept.loaded.add(name)
    return agreed.answers[key]


def is_settled(num_rows: int, *, agreed: AgreedShapes, trains: bool) -> bool:
    """As :func:`cohort.kernels.exact_product.is_settled`, for the products of the passes so far."""
    products = [product for product in agreed.products if trains or product.forward]
    return all(_is_product_settled(product, num_rows=num_rows, agreed=agreed) for product in products)


def _is_product_settled(product: AskedProduct, *, num_rows: int, agreed: AgreedShapes) -> bool:
    # where the answer is known here the BLAS was asked, or has computed the product
    if not _is_asked_about(product, num_rows=num_rows) or (num_rows, product) in agreed.answers:
        return True
    kept, name = kept_answers(product.device), product.name(num_rows)
    return kept.get(name) is False or name in kept.loaded


def load_agreed(products: Iterable[AskedProduct], *, is_enough: Callable[[], bool]) -> None:
    """As :func:`cohort.kernels.exact_product.load_agreed`, on filler."""
    for product in products:
        kept = kept_answers(product.device)
        # the largest first: what it takes serves the others
        for num_rows in range(MOST_ROWS, 0, -ROW_MULTIPLE):
            name = product.name(num_rows)
            if not kept.get(name):
                continue
            if is_enough():
                return
            _launch_on_filler(product, num_rows=num_rows)
            kept.loaded.add(name)


def ask_ahead(
    agreed: AgreedShapes, *, row_counts: Sequence[int], room: Callable[[], int], is_enough: Callable[[], bool]
) -> None:
    """As :func:`cohort.kernels.exact_product.ask_ahead`."""
    products = sorted(agreed.products, key=lambda product: product.name(0))
    if not products:
        return
    device = products[0].device
    # passes launch the same kernels meanwhile
    load_kernels_once()
    # on a stream of its own, with priority, an answer does not wait for the passes that were launched before
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device, priority=-1)):
        kept, taken = kept_answers(device), 0
        # a size is settled once all of its products are
        for num_rows in row_counts:
            for product in products:
                if is_enough():
                    return
                if _is_product_settled(product, num_rows=num_rows, agreed=agreed):
                    continue
                wanted = _question_bytes(product, num_rows)
                # the allocator still has what a larger question took
                if wanted <= max(room(), taken):
                    # no memory after all: the passes ask this one; smaller ones are tried
                    with contextlib.suppress(torch.OutOfMemoryError):
                        _settle(product, num_rows=num_rows, kept=kept)
                        taken = max(taken, wanted)


def _settle(product: AskedProduct, *, num_rows: int, kept: KeptAnswers) -> None:
    """Ask about a product that is not settled, or load the kernel of what was answered before."""
    name = product.name(num_rows)
    found = kept.get(name)
    if found is None:
        found = _ask(product, num_rows=num_rows)
        if found is not None:
            kept.add(name, agrees=found)
    else:
        _launch_on_filler(product, num_rows=num_rows)
    if found:
        kept.loaded.add(name)


def _question_bytes(product: AskedProduct, num_rows: int) -> int:
    """Return what :func:`_ask` takes of the device: operands, both products, and their comparison."""
    num_out, num_in = product.weight_shape
    numbers = num_out * num_in + num_rows * (product.inner_width + 2 * product.width)
    return numbers * product.dtype.itemsize + num_rows * product.width


def _launch_on_filler(product: AskedProduct, *, num_rows: int) -> None:
    # in a function of its own: what one product takes is free for the next
    weight_NK = torch.empty(product.weight_shape, dtype=product.dtype, device=product.device)
    x_MI = torch.empty(num_rows, product.inner_width, dtype=product.dtype, device=product.device)
    blas_product(x_MI, weight_NK, x_MI.new_empty(num_rows, product.width), forward=product.forward)


def _is_asked_about(product: AskedProduct, *, num_rows: int) -> bool:
    """Return whether the BLAS may gain time at this number of rows, and passes of it come again."""
    if num_rows % ROW_MULTIPLE or num_rows > MOST_ROWS:
        return False
    return wasted_share(num_rows, product.width, programs=num_multiprocessors(product.device)) >= LEAST_WASTE


def _ask(product: AskedProduct, *, num_rows: int) -> bool | None:
    """Return whether all bits of both products agree; None where kernels are collected and not launched.

    Both operands are drawn: with a weight of zeros any product agrees.
    """
    device, dtype = product.device, product.dtype
    generator = torch.Generator(device).manual_seed(0)
    x_MI, weight_NK = (
        torch.randn(shape, generator=generator, device=device, dtype=dtype)
        for shape in ((num_rows, product.inner_width), product.weight_shape)
    )
    ours_MO = torch.full((num_rows, product.width), float("nan"), device=device, dtype=dtype)
    theirs_MO = torch.empty_like(ours_MO)
    exact_hopper_product(x_MI, weight_NK, ours_MO, forward=product.forward)
    if bool(ours_MO.isnan().any()):
        return None
    blas_product(x_MI, weight_NK, theirs_MO, forward=product.forward)
    return torch.equal(ours_MO.view(torch.int16), theirs_MO.view(torch.int16))
