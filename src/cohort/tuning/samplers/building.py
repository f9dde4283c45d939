"""The sampler that a task asks for, and how many configurations it will propose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cohort.core.errors import InputError, Problem
from cohort.core.input_values.nearest_value import nearest_word
from cohort.core.registry import Registry
from cohort.core.source_location import Place
from cohort.tuning.parameters import MOST_POINTS, Configuration
from cohort.tuning.samplers.sampler import EarlierResult, Sampler, SamplerKind, SearchBudget
from cohort.tuning.space import SearchSpace

__all__ = ["SAMPLERS", "build_sampler", "count_configurations", "sampler_kind"]

SAMPLERS = Registry(
    kind=SamplerKind,
    noun="sampler",
    package="cohort.tuning.samplers.kinds",
    constant="SAMPLER",
    group="cohort.samplers",
    default="grid",
)


# Draws for which the constraints of a space that cannot be listed are worked out before anything runs.
_TRIED = 500


def sampler_kind(name: str) -> SamplerKind:
    """Return the choice that a task file names.

    Raises:
        InputError: there is none of that name, or another package's cannot be used.
    """
    kind = SAMPLERS.find(name)
    if kind is None:
        where, allowed = Place(key=("search", "sampler")), ", ".join(SAMPLERS.names())
        near = nearest_word(name, SAMPLERS.names())
        hint = f"Did you mean {near}?" if near else "Choose one of these samplers."
        raise InputError(Problem(where=where, found=repr(name), allowed=allowed, hint=hint))
    return kind


def build_sampler(
    name: str,
    space: SearchSpace,
    *,
    trials: int | None = None,
    seed: int = 0,
    maximize: bool = False,
    earlier: Sequence[EarlierResult] = (),
) -> Sampler:
    """Return the sampler of a task. One that takes the whole space ignores ``trials``.

    Raises:
        InputError: there is no such sampler, ``trials`` is missing, a range cannot be listed for a grid, or optuna is
            not installed.
    """
    kind = sampler_kind(name)
    if trials is None and not kind.takes_whole_space:
        raise InputError(
            Problem(
                where=Place(key=("search", "trials")),
                found="nothing",
                allowed=f"an integer >= 1 with sampler: {name}",
                hint="Write how many configurations to try.",
            )
        )
    budget = SearchBudget(trials=1 if trials is None else trials, seed=seed, maximize=maximize, earlier=tuple(earlier))
    return kind.build(space, budget)


def count_configurations(space: SearchSpace, *, sampler: str, trials: int) -> int:
    """Return how many configurations a sampler will propose at most; 0 where no configuration meets the constraints.

    Raises:
        InputError: a constraint cannot be worked out for a configuration, or a grid's range cannot be listed. Where
            there are too many configurations to try all, many draws are tried.
    """
    size, is_grid = space.size_bound(), sampler_kind(sampler).takes_whole_space
    # Small enough to list: an exact count, as constraints, conditions and multiples may leave little of the product.
    if size is not None and size <= MOST_POINTS:
        found = sum(1 for _ in space.configurations())
        return found if is_grid else min(found, trials)
    if not space.constraints:
        return size or 0 if is_grid else trials if size is None else min(size, trials)
    if not is_grid:
        _try_constraints(space.constrained())
    # Too many to list: whether there is any configuration at all is what a task is refused for.
    proposed = build_sampler(sampler, space, trials=trials).propose(1)
    return trials if proposed else 0


def _try_constraints(space: SearchSpace) -> None:
    """Meet now what would otherwise stop a search late: a constraint that cannot be worked out for some values."""
    size = space.size_bound()
    if size is not None and size <= MOST_POINTS:
        tried: Iterable[Configuration] = replace(space, constraints=()).configurations()
    else:
        tried = build_sampler("random", replace(space, constraints=()), trials=_TRIED).propose(_TRIED)
    for configuration in tried:
        space.allows(configuration)
