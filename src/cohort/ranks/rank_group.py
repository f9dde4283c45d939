"""How several ranks hold one model together: in shards of every linear, or in stages of some layers each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.sharding import join_rank_rows, local_layout
from cohort.scheduling.pipelines.stage_balance import divide_head
from cohort.training.trial import TrialSpec

__all__ = ["PipelineGroup", "RankGroupPlan", "TensorGroup"]


class RankGroupPlan(Protocol):
    """One model over the ranks of a group; what a rank holds of an adapter is a part of its whole state."""

    @property
    def name(self) -> str:
        """What a task file calls it."""
        ...

    @property
    def size(self) -> int:
        """Ranks of the group."""
        ...

    def local_layout(self, layout: AdapterLayout, rank: int) -> AdapterLayout:
        """Return the adapted linears as a rank has them."""
        ...

    def join(self, layout: AdapterLayout, spec: TrialSpec, parts: Sequence[Tensor]) -> Tensor:
        """Return whole rank rows [r, D] from those of all ranks."""
        ...


@dataclass(frozen=True, kw_only=True)
class TensorGroup:
    """Each rank has a shard of every linear, and of every adapter the factors of its shard."""

    size: int

    @property
    def name(self) -> str:
        return "tensor"

    def local_layout(self, layout: AdapterLayout, rank: int) -> AdapterLayout:
        return local_layout(layout, rank=rank, size=self.size)

    def join(self, layout: AdapterLayout, spec: TrialSpec, parts: Sequence[Tensor]) -> Tensor:
        return join_rank_rows(layout, spec.adapter, dict(enumerate(parts)), size=self.size)


@dataclass(frozen=True, kw_only=True)
class PipelineGroup:
    """Each rank is a stage: it has some consecutive layers, and of every adapter the factors of their linears.

    Attributes:
        cuts: The first layer of each stage, and the number of all layers behind the last.
        head_layers: How many layers take as long as the loss head, where all stages have it and may share its rows; 0
            where the last stage alone has it.
    """

    cuts: tuple[int, ...]
    head_layers: float = 0.0

    @property
    def name(self) -> str:
        return "pipeline"

    @property
    def size(self) -> int:
        return len(self.cuts) - 1

    @property
    def shares_head(self) -> bool:
        """Whether windows may divide the rows of the loss head over the stages."""
        return self.head_layers > 0

    @property
    def head_shares(self) -> tuple[float, ...]:
        """The share of the rows of the loss head of each stage, where they are divided."""
        return divide_head([len(self.layers(rank)) for rank in range(self.size)], self.head_layers)

    def slowest(self, *, shares_head: bool) -> float:
        """Return how many layers take as long as the slowest stage, with and without a shared head."""
        own = [float(len(self.layers(rank))) for rank in range(self.size)]
        if shares_head:
            return max(a + b * self.head_layers for a, b in zip(own, self.head_shares, strict=True))
        return max(*own[:-1], own[-1] + self.head_layers) if len(own) > 1 else own[0]

    def layers(self, rank: int) -> range:
        """Return the layers of a stage."""
        return range(self.cuts[rank], self.cuts[rank + 1])

    def local_layout(self, layout: AdapterLayout, rank: int) -> AdapterLayout:
        own = self.layers(rank)
        return AdapterLayout({name: shape for name, shape in layout.linears.items() if _layer_of(name) in own})

    def columns(self, layout: AdapterLayout, rank: int) -> slice:
        """Return the columns of a whole rank row that a stage has; they stand side by side."""
        names = list(self.local_layout(layout, rank).linears)
        return slice(layout.columns[names[0]].a.start, layout.columns[names[-1]].b.stop)

    def join(self, layout: AdapterLayout, spec: TrialSpec, parts: Sequence[Tensor]) -> Tensor:
        del layout, spec
        return torch.cat(list(parts), dim=1)


def _layer_of(module: str) -> int:
    """Return the layer of a linear, from its full path such as ``model.layers.3.self_attn.q_proj``."""
    return int(module.split("layers.", 1)[1].split(".", 1)[0])
