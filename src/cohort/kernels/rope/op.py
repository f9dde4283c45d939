"""The public op: rotate queries and keys by their positions."""

from __future__ import annotations

from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend, choose_backend
from cohort.kernels.rope.autograd import RopeFunction

__all__ = ["apply_rope"]


def apply_rope(
    q_THE: Tensor, k_TGE: Tensor, *, cos_TE: Tensor, sin_TE: Tensor, backend: Backend | None = None
) -> tuple[Tensor, Tensor]:
    """Return ``(q, k)`` with ``x * cos + [-x2, x1] * sin`` over the last axis, x1 and x2 being its halves.

    Differentiable in ``q`` and ``k``. They may be views into one fused product: any strides of the first two axes.

    Args:
        q_THE: Queries [T, query heads, E].
        k_TGE: Keys [T, key-value heads, E].
        cos_TE: Cosines of each row's angles, both halves written out as transformers does.
        sin_TE: Sines, likewise.
        backend: Forces an implementation (see :mod:`cohort.kernels.backend`).

    Raises:
        ShapeError: heads and angles disagree in width or rows, or the width is odd.
    """
    num_rows, width = q_THE.shape[0], q_THE.shape[-1]
    if q_THE.ndim != 3 or k_TGE.ndim != 3 or k_TGE.shape[0] != num_rows or k_TGE.shape[-1] != width:
        raise ShapeError(f"queries {tuple(q_THE.shape)} and keys {tuple(k_TGE.shape)} must be [T, H, E] and [T, G, E]")
    if cos_TE.shape != (num_rows, width) or sin_TE.shape != (num_rows, width) or width % 2:
        raise ShapeError(
            f"cos {tuple(cos_TE.shape)} and sin {tuple(sin_TE.shape)} must be [{num_rows}, {width}], the width even"
        )
    result: tuple[Tensor, Tensor] = RopeFunction.apply(
        q_THE, k_TGE, cos_TE, sin_TE, choose_backend(q_THE, backend=backend)
    )
    return result
