"""The public op: a frozen product whose rows keep their bits in any stream.

A BLAS picks its algorithm by the number of rows, and with it whether sums over K are cut into shares: the same row then
rounds otherwise among more rows. Here each entry is one sum over K from the first column to the last, at every size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend, choose_backend, describe_backend, implementation
from cohort.kernels.exact_product.agreed_shapes import AgreedShapes, AskedProduct

__all__ = ["ask_ahead", "exact_product", "has_exact_product", "is_settled", "load_agreed"]


def exact_product(
    x_MI: Tensor,
    weight_NK: Tensor,
    *,
    bias_N: Tensor | None = None,
    forward: bool,
    agreed: AgreedShapes | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """Return ``x W^T (+ bias)`` [M, N] (``forward``), or ``x W`` [M, K]; outside autograd.

    A row's bits depend on that row and on W alone, on one model of GPU with one version of Triton. They differ between
    models of GPU, and from those of a CPU.

    Args:
        x_MI: Rows, as wide as K (``forward``) or N.
        weight_NK: The weight, of x's dtype.
        bias_N: Added to the sum, by Hopper's product once that is rounded; forward alone.
        agreed: Lets the BLAS compute what it is known to give the same bits for; None never does.
        backend: Forces an implementation (see :mod:`cohort.kernels.backend`).

    Raises:
        ShapeError: x is not as wide as the weight, or there is a bias without ``forward``.
    """
    if x_MI.ndim != 2 or x_MI.shape[1] != weight_NK.shape[1 if forward else 0]:
        raise ShapeError(f"x {tuple(x_MI.shape)} does not fit a weight {tuple(weight_NK.shape)}, forward={forward}")
    if bias_N is not None and not forward:
        raise ShapeError("a bias belongs to the forward product; give none with forward=False")
    chosen = choose_backend(x_MI, backend=backend)
    result: Tensor = implementation("exact_product", chosen).product(
        x_MI, weight_NK, bias_N, forward=forward, agreed=agreed
    )
    return result


def has_exact_product(device: torch.device | str) -> bool:
    """Return whether ``device`` has such a product: a CPU, or a GPU with Triton."""
    device = torch.device(device)
    return device.type == "cpu" or describe_backend(device).backend is Backend.TRITON


def is_settled(num_rows: int, *, agreed: AgreedShapes | None, trains: bool) -> bool:
    """Return whether a pass of ``num_rows`` rows is known to ask the BLAS nothing, and to load none of its kernels.

    Args:
        agreed: Of the linears that the pass runs; None where they never ask.
        trains: Whether the pass computes the gradients of its inputs as well.
    """
    if agreed is None:
        return True
    # before the first pass of each kind it is not known which products there are
    if not agreed.products or (trains and all(product.forward for product in agreed.products)):
        return False
    # where products have been asked about there is Triton
    from cohort.kernels.exact_product import agreed_blas

    return agreed_blas.is_settled(num_rows, agreed=agreed, trains=trains)


def load_agreed(products: Iterable[AskedProduct], *, is_enough: Callable[[], bool] = lambda: False) -> None:
    """Load the kernels of the BLAS that an earlier process has found to give the very bits; a device's memory is used.

    A kernel is loaded by its first launch, which waits until the device has done all that it was given before: within
    training, a step.

    Args:
        products: What may be computed, on one GPU with Hopper's product.
        is_enough: Asked before each; once it is true, products are left to the passes that have them.
    """
    from cohort.kernels.exact_product import agreed_blas

    agreed_blas.load_agreed(products, is_enough=is_enough)


def ask_ahead(
    agreed: AgreedShapes,
    *,
    row_counts: Sequence[int],
    room: Callable[[], int],
    is_enough: Callable[[], bool] = lambda: False,
) -> None:
    """Ask the BLAS about products at numbers of rows that passes may come to have, and load its kernels.

    Each answer is waited for, so call this in a thread of its own. Its kernels run on a stream with priority: an answer
    does not wait for the passes that were launched before, as it would in a pass. Loading a kernel may.

    Args:
        agreed: Of the linears of a model, as far as their products are known.
        row_counts: Rows of passes, in the order in which they are asked about.
        room: Returns the bytes of the device that a question may take now; a larger one is left to the passes.
        is_enough: Asked before each; once it is true, the rest is left to the passes, too.
    """
    if agreed.products:
        # where products have been asked about there is Triton
        from cohort.kernels.exact_product import agreed_blas

        agreed_blas.ask_ahead(agreed, row_counts=row_counts, room=room, is_enough=is_enough)
