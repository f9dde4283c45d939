"""S-LoRA's division of plain LoRA over ranks, a baseline: it exchanges between the factors of every linear.

Forward only, in plain torch, adapter by adapter. Siblings (q, k and v; gate and up) share one exchange.

Source: S-LoRA (Sheng et al. 2023), section 6, as BD-LoRA's section 2 restates it.

Shapes:  T rows of the stream · r rank · K input width · N output width, of this rank's shard
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.linear import LoraContext, PackedLinear
from cohort.adapters.sharding import Parallelism, ShardingError, parallelism_of, slora_slices
from cohort.adapters.spec import AdapterSpec
from cohort.kernels.fp8_product import Fp8Rows
from cohort.kernels.packed_linear import PaddedRows
from cohort.models.decoder import Decoder
from cohort.ranks.tensor.groups import RankGroup

__all__ = ["SloraAdapter", "attach_slora"]


@dataclass(frozen=True, kw_only=True)
class SloraAdapter:
    """One adapter as S-LoRA divides it.

    Attributes:
        factors: By linear, this rank's A, B [outputs, r] and, for row-parallel linears, the outputs that B gives.
        scale: Factor on the product.
    """

    factors: Mapping[str, tuple[Tensor, Tensor, slice]]
    scale: float

    @classmethod
    def of(cls, layout: AdapterLayout, spec: AdapterSpec, weights_rD: Tensor, *, rank: int, size: int) -> SloraAdapter:
        """Return a rank's part of whole rank rows.

        Raises:
            ShardingError: ``size`` does not divide the rank or a width, or the adapter is a variant whose rank rows are
                not A and B alone.
        """
        if spec.has_frozen_rows or spec.has_patterns or not spec.has_only_factors:
            raise ShardingError(f"adapters are divided with one rank and scale, without magnitudes; found {spec}")
        factors = {}
        for name, columns in layout.columns.items():
            own = slora_slices(name, layout.linears[name], r=spec.r, rank=rank, size=size)
            a = weights_rD[own.rows, columns.a][:, own.ins].contiguous()
            b = weights_rD[:, columns.b].T[own.outs].contiguous()
            factors[name] = (a, b, own.outs)
        return cls(factors=factors, scale=spec.scale)


class _SloraLinear(PackedLinear):
    """A packed linear whose adapters are divided as S-LoRA does; the slots of ``lora`` say whose rows are whose."""

    def __init__(self, plain: PackedLinear, group: RankGroup, adapters: Sequence[SloraAdapter]) -> None:
        super().__init__(plain.frozen, parts=plain.parts)
        self._group, self._adapters = group, adapters

    @torch.no_grad()
    def __call__(
        self,
        x_TK: Tensor,
        lora: LoraContext | None,
        *,
        room: PaddedRows | None = None,
        codes: Fp8Rows | None = None,
    ) -> Tensor:
        del room
        y_TN = self.reading(codes).forward(x_TK)
        if lora is None:
            return y_TN
        kind = parallelism_of(self.parts[0].name)
        for slot, adapter in enumerate(self._adapters):
            rows = lora.segments.rows(slot)
            if rows.stop > rows.start:
                self._add(y_TN[rows], x_TK[rows], adapter, kind)
        return y_TN

    def apart(self, x_TK: Tensor, lora: LoraContext | None, *, codes: Fp8Rows | None = None) -> Tensor:
        return self(x_TK, lora, codes=codes)

    def input_room(self, like: Tensor, lora: LoraContext | None) -> PaddedRows | None:
        del like, lora
        return None

    def _add(self, y_TN: Tensor, x_TK: Tensor, adapter: SloraAdapter, kind: Parallelism) -> None:
        named = [(part, start) for part, start in zip(self.parts, self._column_starts, strict=True)]
        factors = [(adapter.factors[part.name], part, start) for part, start in named if part.name in adapter.factors]
        if not factors:
            return
        z_PTr = torch.stack([x_TK @ a.T for (a, _, _), _, _ in factors])
        if kind is Parallelism.COLUMN:
            z_PTr = torch.cat(self._group.all_gather(z_PTr), dim=2)
        else:
            z_PTr = self._group.all_reduce(z_PTr)
        for z_Tr, ((_, b, outs), part, start) in zip(z_PTr, factors, strict=True):
            # the outputs of a row-parallel linear are partial sums: each rank adds the term of its own slice
            own = slice(0, part.out_features) if kind is Parallelism.COLUMN else outs
            y_TN[:, start + own.start : start + own.stop].add_(z_Tr @ b.T, alpha=adapter.scale)


def attach_slora(decoder: Decoder, group: RankGroup, adapters: Sequence[SloraAdapter]) -> None:
    """Let the linears of a rank's decoder add these adapters, one for each slot, instead of a bank's."""
    for layer in decoder.layers:
        layer.replace_linears(lambda linear: _SloraLinear(linear, group, adapters))
