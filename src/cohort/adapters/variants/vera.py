"""VeRA: two frozen random projections that all linears of all adapters share, and trained vectors around them.

An adapted weight is ``W + diag(lambda_b) B diag(lambda_d) A``. A and B are the first columns and rows of one drawn
pair, as wide as the widest adapted linear. Products read ``diag(lambda_d) A`` and ``diag(lambda_b) B`` as factors of a
LoRA adapter with scale 1, so every kernel computes VeRA as it is; the gradients of both factors are turned into those
of the vectors before the optimizer steps. Only the vectors are trained, parked, saved as a state and clipped. They
stand in one rank row: lambda_b in the columns of B, lambda_d in the first r columns of A.

Shapes:  r rank · K input width · N output width of one linear · K* and N* the largest in the layout · D rank row

Source: VeRA (Kopiczko et al. 2024), section 3; PEFT's VeraModel and VeraLayer, whose draw this is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.adapters.layout import AdapterLayout, FactorColumns
from cohort.adapters.variants.vera_settings import VectorAdapter

__all__ = [
    "Projections",
    "ScalingVectors",
    "drawn_projections",
    "initial_vectors",
    "lambda_d_columns",
    "layout_projections",
    "projection_widths",
    "plain_factors",
]


@dataclass(frozen=True, kw_only=True)
class Projections:
    """The shared pair, A [r, K*] and B [N*, r]."""

    a_rK: Tensor
    b_Nr: Tensor


def drawn_projections(*, r: int, in_features: int, out_features: int, prng_key: int) -> Projections:
    """Return the projections that PEFT draws, float32 on the host: Kaiming-uniform for ReLU, A before B.

    Args:
        in_features: The largest input width of the adapted linears.
        out_features: Their largest output width.
    """
    generator = torch.Generator().manual_seed(prng_key)
    pair = []
    for shape in ((r, in_features), (out_features, r)):
        bound = math.sqrt(3.0) * math.sqrt(2.0) / math.sqrt(shape[1])
        pair.append(torch.empty(shape).uniform_(-bound, bound, generator=generator))
    return Projections(a_rK=pair[0], b_Nr=pair[1])


def lambda_d_columns(columns: FactorColumns, *, r: int) -> slice:
    """Return the columns of the vectors' rank row that hold a linear's lambda_d; those of its B hold lambda_b."""
    return slice(columns.a.start, columns.a.start + r)


def projection_widths(layout: AdapterLayout) -> tuple[int, int]:
    """Return K* and N*, the largest input and output width of the adapted linears."""
    widths = zip(*layout.linears.values(), strict=True)
    in_features, out_features = map(max, widths)
    return in_features, out_features


def layout_projections(layout: AdapterLayout, adapter: VectorAdapter, *, r: int) -> Projections:
    """Return the projections of an adapter of all linears of ``layout``."""
    in_features, out_features = projection_widths(layout)
    return drawn_projections(
        r=r, in_features=in_features, out_features=out_features, prng_key=adapter.projection_prng_key
    )


def initial_vectors(layout: AdapterLayout, adapter: VectorAdapter, *, r: int, dtype: torch.dtype) -> Tensor:
    """Return the vectors of a new adapter as a rank row [1, D].

    Raises:
        ValueError: a linear has fewer inputs than the adapter has ranks.
    """
    row_1D = torch.zeros(1, layout.width, dtype=dtype)
    for name, columns in layout.columns.items():
        if r > layout.linears[name][0]:
            raise ValueError(f"{name}: VeRA's r {r} is more than its {layout.linears[name][0]} inputs")
        row_1D[0, lambda_d_columns(columns, r=r)] = adapter.d_initial
    return row_1D


def plain_factors(
    projections: Projections, *, lambda_d_r: Tensor, lambda_b_N: Tensor, in_features: int
) -> tuple[Tensor, Tensor]:
    """Return A [r, K] and B [N, r] of the LoRA adapter with scale 1 that a linear of VeRA is."""
    a_rK = lambda_d_r[:, None] * projections.a_rK[:, :in_features].to(lambda_d_r)
    return a_rK, lambda_b_N[:, None] * projections.b_Nr[: len(lambda_b_N)].to(lambda_b_N)


class ScalingVectors:
    """What a bank computes with the vectors of its VeRA adapters; the projections of each kind are kept once."""

    def __init__(self, layout: AdapterLayout, *, weights_RD: Tensor, grads_RD: Tensor) -> None:
        """Read vectors from ``weights`` and write their gradients to ``grads``, both the bank's."""
        self._layout, self._weights_RD, self._grads_RD = layout, weights_RD, grads_RD
        self._projections: dict[tuple[int, int], Projections] = {}

    def write_factors(self, adapter: VectorAdapter, compute_RD: Tensor, *, rank_rows: slice, row: int) -> None:
        """Make what products read in ``rank_rows`` from the vectors in rank row ``row``."""
        for columns, a_rK, b_rN in self._of_linears(adapter, r=rank_rows.stop - rank_rows.start):
            vectors_D = self._weights_RD[row]
            lambda_d_r = vectors_D[lambda_d_columns(columns, r=len(a_rK))]
            compute_RD[rank_rows, columns.a] = (lambda_d_r[:, None] * a_rK).to(compute_RD.dtype)
            compute_RD[rank_rows, columns.b] = (vectors_D[columns.b] * b_rN).to(compute_RD.dtype)

    def turn_gradients(self, adapter: VectorAdapter, *, rank_rows: slice, row: int) -> None:
        """Write the vectors' gradients from those of the factors, which become zero."""
        for columns, a_rK, b_rN in self._of_linears(adapter, r=rank_rows.stop - rank_rows.start):
            grads_D = self._grads_RD[row]
            grads_D[lambda_d_columns(columns, r=len(a_rK))] = (self._grads_RD[rank_rows, columns.a] * a_rK).sum(1)
            grads_D[columns.b] = (self._grads_RD[rank_rows, columns.b] * b_rN).sum(0)
        self._grads_RD[rank_rows].zero_()

    def _of_linears(self, adapter: VectorAdapter, *, r: int) -> Iterator[tuple[FactorColumns, Tensor, Tensor]]:
        """Yield columns, A [r, K] and B transposed [r, N] of every linear."""
        key = adapter.projection_prng_key, r
        if key not in self._projections:
            drawn = layout_projections(self._layout, adapter, r=r)
            self._projections[key] = Projections(
                a_rK=drawn.a_rK.to(self._weights_RD), b_Nr=drawn.b_Nr.to(self._weights_RD)
            )
        pair = self._projections[key]
        for name, (in_features, out_features) in self._layout.linears.items():
            yield self._layout.columns[name], pair.a_rK[:, :in_features], pair.b_Nr[:out_features].T
