"""The public ops: rotate queries and keys by their positions."""

from __future__ import annotations

from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend, choose_backend
from cohort.kernels.rope.autograd import RopeFunction, SplitRopeFunction

__all__ = ["apply_rope", "split_rope"]


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


def split_rope(
    qkv_TF: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int,
    cos_TE: Tensor,
    sin_TE: Tensor,
    rows_P: Tensor | None = None,
    places_T: Tensor | None = None,
    backend: Backend | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split a fused product ``[q, k, v]`` [T, (H + 2 G) E] into heads and rotate queries and keys, in one pass.

    Equal to splitting and :func:`apply_rope`; it saves the concatenation of three gradients in backward. The three
    results are contiguous, so nothing keeps the fused product alive. With ``rows_P`` the pass also lays the rows out
    for padded attention, [P, heads, E].

    Args:
        qkv_TF: The fused product.
        num_heads: Query heads H.
        num_kv_heads: Key-value heads G.
        cos_TE: Cosines of each stream row's angles, both halves written out as transformers does.
        sin_TE: Sines, likewise.
        rows_P: int64 stream row of each result row; a row may be named again to fill padding. None keeps the stream.
        places_T: int64 result row whose gradient is the stream row's, -1 where there is none (gradient 0). Goes with
            ``rows_P``. Result rows that nobody names are padding whose gradient is zero by the caller's construction.
        backend: Forces an implementation (see :mod:`cohort.kernels.backend`).

    Raises:
        ShapeError: the widths or rows disagree, a head's width is odd, or only one of the row maps is given.
    """
    num_all = num_heads + 2 * num_kv_heads
    if qkv_TF.ndim != 2 or qkv_TF.shape[1] % (2 * num_all):
        raise ShapeError(f"[q, k, v] {tuple(qkv_TF.shape)} is not [T, {num_all} heads of one even width]")
    angles_shape = (qkv_TF.shape[0], qkv_TF.shape[1] // num_all)
    if cos_TE.shape != angles_shape or sin_TE.shape != angles_shape:
        raise ShapeError(f"cos {tuple(cos_TE.shape)} and sin {tuple(sin_TE.shape)} must be {angles_shape}")
    if (rows_P is None) != (places_T is None) or (places_T is not None and places_T.shape != qkv_TF.shape[:1]):
        raise ShapeError("rows_P and places_T come together, places_T with one entry per stream row")
    result: tuple[Tensor, Tensor, Tensor] = SplitRopeFunction.apply(
        qkv_TF, num_heads, num_kv_heads, cos_TE, sin_TE, rows_P, places_T, choose_backend(qkv_TF, backend=backend)
    )
    return result
