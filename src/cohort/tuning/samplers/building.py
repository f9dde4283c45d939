"""The sampler that a task asks for, and how many configurations it will propose."""

from __future__ import annotations

from cohort.core.errors import InputError, Problem
from cohort.tuning.parameters import MOST_POINTS
from cohort.tuning.samplers.grid import GridSampler
from cohort.tuning.samplers.optuna_sampler import OptunaSampler
from cohort.tuning.samplers.sampler import Sampler, SamplerName
from cohort.tuning.space import SearchSpace

__all__ = ["build_sampler", "count_configurations"]


def build_sampler(
    name: SamplerName, space: SearchSpace, *, trials: int | None = None, seed: int = 0, maximize: bool = False
) -> Sampler:
    """Return the sampler of a task. A grid takes all its configurations; ``trials`` is for random and TPE.

    Raises:
        InputError: ``trials`` is missing for random or TPE, a range cannot be listed for a grid, or optuna is missing.
    """
    if name is SamplerName.GRID:
        return GridSampler(space)
    if trials is None:
        raise InputError(
            Problem(
                where="search.trials",
                found="nothing",
                allowed=f"an integer >= 1 with sampler: {name.value}",
                mend="Write how many configurations to try.",
            )
        )
    return OptunaSampler(space, name=name, trials=trials, seed=seed, maximize=maximize)


def count_configurations(space: SearchSpace, *, sampler: str, trials: int) -> int:
    """Return how many configurations a sampler will propose at most; 0 where no configuration meets the constraints.

    Raises:
        InputError: a constraint makes no sense, or a grid's range cannot be listed.
    """
    size, is_grid = space.size_bound(), sampler == SamplerName.GRID
    if not space.constraints:
        return size or 0 if is_grid else trials if size is None else min(size, trials)
    if size is not None and size <= MOST_POINTS:
        found = sum(1 for _ in space.configurations())
        return found if is_grid else min(found, trials)
    proposed = build_sampler(SamplerName(sampler), space, trials=trials).propose(1)
    return trials if proposed else 0
