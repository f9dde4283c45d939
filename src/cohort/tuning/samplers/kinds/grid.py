"""The whole grid, in its order."""

from __future__ import annotations

import itertools

from cohort.tuning.parameters import Configuration
from cohort.tuning.samplers.sampler import Sampler, SamplerKind
from cohort.tuning.space import SearchSpace

__all__ = ["SAMPLER", "GridSampler"]


class GridSampler(Sampler):
    """Every configuration of the space once, in grid order."""

    def __init__(self, space: SearchSpace) -> None:
        # Listed at once, so that a range without values is refused before anything runs.
        self._left = iter(tuple(space.configurations()))

    def propose(self, num: int) -> tuple[Configuration, ...]:
        return tuple(itertools.islice(self._left, num))

    def tell(self, trial_id: int, value: float | None, *, depth: int = 0) -> None:
        """Change nothing: a grid does not learn."""


SAMPLER = SamplerKind(
    name="grid",
    summary="All combinations, in their order.",
    build=lambda space, budget: GridSampler(space),  # noqa: ARG005 - a grid has neither draws nor a budget
    takes_whole_space=True,
)
