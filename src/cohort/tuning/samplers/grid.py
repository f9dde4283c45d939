"""The whole grid, in its order."""

from __future__ import annotations

import itertools

from cohort.tuning.samplers.sampler import Proposal, Sampler, SamplerKind
from cohort.tuning.space import SearchSpace

__all__ = ["SAMPLER", "GridSampler"]


class GridSampler(Sampler):
    """Every configuration of the space once, in grid order."""

    def __init__(self, space: SearchSpace) -> None:
        # Listed at once, so that a range without values is refused before anything runs.
        self._proposals = enumerate(tuple(space.configurations()))

    def propose(self, num: int) -> tuple[Proposal, ...]:
        return tuple(
            Proposal(trial_id=trial_id, configuration=configuration)
            for trial_id, configuration in itertools.islice(self._proposals, num)
        )

    def tell(self, trial_id: int, value: float | None, *, depth: int = 0) -> None:
        """Change nothing: a grid does not learn."""


SAMPLER = SamplerKind(
    name="grid",
    summary="All combinations, in their order.",
    build=lambda space, budget: GridSampler(space),  # noqa: ARG005 - a grid has neither draws nor a budget
    takes_whole_space=True,
)
