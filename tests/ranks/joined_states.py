"""Whole states of the parts that ranks have, for tests that ask each rank for its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.ranks.rank_group import RankGroupPlan
from cohort.training.trial import TrialSpec, TrialState


def join_states(plan: RankGroupPlan, layout: AdapterLayout, spec: TrialSpec, parts: Sequence[TrialState]) -> TrialState:
    """Return a trial's whole state from the parts of all ranks, in their order."""
    first = parts[0].adapter

    def whole(name: str) -> Tensor:
        return plan.join(layout, spec, [part.adapter.tensors[name] for part in parts])

    moments = {name: whole(name) for name in first.moments}
    return replace(parts[0], adapter=replace(first, weights=whole("weights"), moments=moments))
