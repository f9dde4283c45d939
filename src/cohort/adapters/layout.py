"""Where every linear's factors stand within one rank row of the bank.

A rank row holds, for every adapted linear, one row of A (K entries) and one row of B^T (N entries): everything of an
adapter that one unit of rank owns. An adapter of rank r is r consecutive rank rows, one contiguous block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from cohort.adapters.expert_names import parameter_of

__all__ = ["AdapterLayout", "FactorColumns"]


@dataclass(frozen=True, kw_only=True)
class FactorColumns:
    """Columns of one linear's A row and B^T row within a rank row."""

    a: slice
    b: slice


@dataclass(frozen=True)
class AdapterLayout:
    """The adapted linears of a model, in a fixed order.

    Attributes:
        linears: ``(in_features, out_features)`` by full module path; experts of a stacked parameter one by one
            (:mod:`cohort.adapters.expert_names`).
        first_features: Number of the first input of linears that are a shard of others; 0 for those that are absent.
    """

    linears: Mapping[str, tuple[int, int]]
    first_features: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def columns(self) -> dict[str, FactorColumns]:
        found, start = {}, 0
        for name, (in_features, out_features) in self.linears.items():
            middle, stop = start + in_features, start + in_features + out_features
            found[name] = FactorColumns(a=slice(start, middle), b=slice(middle, stop))
            start = stop
        return found

    @property
    def targets(self) -> tuple[str, ...]:
        """Full paths of the adapted linears, and of the parameters whose experts are adapted, each once."""
        return tuple(dict.fromkeys(map(parameter_of, self.linears)))

    @property
    def width(self) -> int:
        """Entries of one rank row: trainable parameters per unit of rank."""
        return sum(in_features + out_features for in_features, out_features in self.linears.values())
