"""Which configurations are tried: the whole grid, random draws, or TPE; the last two by Optuna's ask and tell.

The only file that imports optuna, and only when random or TPE is asked for. The same calls in the same order with the
same seed propose the same configurations, which is how a resumed run rebuilds its sampler.
"""

from __future__ import annotations

import importlib
import itertools
import math
import random
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.core.seeds import derive_seed
from cohort.tuning.space import (
    MOST_POINTS,
    Choice,
    Configuration,
    MultipleOf,
    Range,
    SearchSpace,
    Value,
    configuration_key,
)

__all__ = [
    "GridSampler",
    "OptunaSampler",
    "Proposal",
    "Sampler",
    "SamplerName",
    "build_sampler",
    "count_configurations",
]


class SamplerName(StrEnum):
    """How configurations are chosen."""

    GRID = "grid"
    RANDOM = "random"
    TPE = "tpe"


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A configuration to try; ids count from 0 in the order of proposal."""

    trial_id: int
    configuration: Configuration


class Sampler(ABC):
    """Proposes configurations within a budget of trials and may learn from results.

    All may be proposed in one wave before any result is known, or a few at a time as slots become free.
    """

    @abstractmethod
    def propose(self, num: int) -> tuple[Proposal, ...]:
        """Return up to ``num`` new proposals, none equal to an earlier one; fewer when budget or space is used up."""

    @abstractmethod
    def tell(self, trial_id: int, value: float | None) -> None:
        """Report a trial's objective; None (or a non-finite value) when it failed or diverged.

        A trial that ended early is told the value it reached: leaving it out would hide that its region is poor.
        """


class GridSampler(Sampler):
    """Every configuration of the space once, in grid order."""

    def __init__(self, space: SearchSpace) -> None:
        self._proposals = enumerate(tuple(space.configurations()))

    def propose(self, num: int) -> tuple[Proposal, ...]:
        """Return the next ``num`` of the grid."""
        return tuple(
            Proposal(trial_id=trial_id, configuration=configuration)
            for trial_id, configuration in itertools.islice(self._proposals, num)
        )

    def tell(self, trial_id: int, value: float | None) -> None:
        """Change nothing: a grid does not learn."""


class OptunaSampler(Sampler):
    """Random or TPE draws by Optuna, without repeating a configuration where the space has others.

    Args:
        space: What to draw from. A list is a categorical parameter, a range as Optuna's int and float distributions.
        name: RANDOM or TPE.
        trials: Most proposals over the sampler's life.
        seed: Fixes all draws.
        maximize: Whether told values are better when larger.

    Raises:
        InputError: optuna is not installed, or ``trials`` is not positive.
    """

    # Draws thrown away as repeats, or for a constraint, before the rest of a small space is listed instead.
    _MOST_REPEATS = 50
    _MOST_EVEN_DRAWS = 5_000
    _LARGEST_LISTED_SPACE = 100_000

    def __init__(
        self, space: SearchSpace, *, name: SamplerName, trials: int, seed: int, maximize: bool = False
    ) -> None:
        if trials < 1:
            raise InputError(
                Problem(
                    where="search.trials",
                    found=repr(trials),
                    allowed="an integer >= 1",
                    mend="Write how many configurations to try.",
                )
            )
        self._optuna = _import_optuna(name)
        self._space = space
        self._trials = trials
        self._num_proposed = 0
        self._seen: set[tuple[tuple[str, bool, Value], ...]] = set()
        self._asked: dict[int, Any] = {}
        self._columns = _columns(space)
        self._distributions = self._build_distributions()
        self._study = self._build_study(name, seed=derive_seed("sampler", name.value, seed) % 2**32, maximize=maximize)

    def propose(self, num: int) -> tuple[Proposal, ...]:
        """Ask Optuna for up to ``num`` configurations that were not proposed before."""
        proposals: list[Proposal] = []
        while len(proposals) < num and self._num_proposed < self._trials:
            drawn = self._draw()
            if drawn is None:
                break
            asked, configuration = drawn
            self._seen.add(configuration_key(configuration))
            self._asked[self._num_proposed] = asked
            proposals.append(Proposal(trial_id=self._num_proposed, configuration=configuration))
            self._num_proposed += 1
        return tuple(proposals)

    def tell(self, trial_id: int, value: float | None) -> None:
        """Report a result; a trial is told once, later calls change nothing."""
        if not 0 <= trial_id < self._num_proposed:
            raise ValueError(f"trial {trial_id} was not proposed; ids below {self._num_proposed} were")
        asked = self._asked.pop(trial_id, None)
        if asked is None:
            return
        if value is None or not math.isfinite(value):
            self._study.tell(asked, state=self._optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(asked, value)

    def _draw(self) -> tuple[Any, Configuration] | None:
        """Return a draw that is new; None when the space has no more."""
        size = self._space.size_bound()
        if size is not None and len(self._seen) >= size:
            return None
        for _ in range(self._MOST_REPEATS):
            asked, configuration = self._ask()
            if configuration_key(configuration) not in self._seen and self._space.allows(configuration):
                return asked, configuration
            self._study.tell(asked, state=self._optuna.trial.TrialState.FAIL)
        columns = self._listable_columns()
        if columns is None or math.prod(map(len, columns.values())) > self._LARGEST_LISTED_SPACE:
            return self._draw_anywhere()
        for row in itertools.product(*columns.values()):
            params = dict(zip(columns, row, strict=True))
            configuration = self._space.resolve(self._draws(params))
            if configuration_key(configuration) not in self._seen and self._space.allows(configuration):
                self._study.enqueue_trial(params)
                return self._ask()
        return None

    def _draw_anywhere(self) -> tuple[Any, Configuration] | None:
        """Draw evenly where a sampler that has learned only repeats itself; None when that finds nothing new either."""
        rng = random.Random(derive_seed("sampler", "anywhere", self._num_proposed))
        for _ in range(self._MOST_EVEN_DRAWS):
            params = {name: _drawn(distribution, rng) for name, distribution in self._distributions.items()}
            configuration = self._space.resolve(self._draws(params))
            if configuration_key(configuration) not in self._seen and self._space.allows(configuration):
                self._study.enqueue_trial(params)
                return self._ask()
        return None

    def _ask(self) -> tuple[Any, Configuration]:
        """Let Optuna choose the parameters that are active, those first that decide about others."""
        asked = self._study.ask()
        draws: dict[str, Value | MultipleOf] = {}
        done: set[str] = set()

        def choose(name: str) -> None:
            if name in done:
                return
            done.add(name)
            for other in self._space.controls(name):
                choose(other)
            if name in self._distributions and self._space.is_active(name, draws):
                draws.update(self._draws({name: _suggest(asked, name, self._distributions[name])}))

        for name in (*self._distributions, *self._space.parameters):
            choose(name)
        return asked, self._space.resolve(draws)

    def _listable_columns(self) -> dict[str, range] | None:
        """Return all values of Optuna's parameters by name; None when one is continuous."""
        columns = {}
        for name, parameter in self._space.drawn().items():
            if name in self._columns:
                columns[name] = range(len(self._columns[name]))
            elif isinstance(parameter, Range) and parameter.integer:
                columns[name] = range(int(parameter.min), int(parameter.max) + 1)
            else:
                return None
        return columns

    def _draws(self, params: dict[str, Any]) -> dict[str, Value | MultipleOf]:
        """Return the draws of Optuna's parameters: an index where values are listed, else the value."""
        columns = self._columns
        return {name: columns[name][value] if name in columns else value for name, value in params.items()}

    def _build_distributions(self) -> dict[str, Any]:
        """Lists become categories (by index: entries may be multiples), divided ranges ordered indices."""
        distributions = self._optuna.distributions
        built: dict[str, Any] = {}
        for name, parameter in self._space.drawn().items():
            if isinstance(parameter, Choice):
                built[name] = distributions.CategoricalDistribution(tuple(range(len(parameter.values))))
            elif name in self._columns:
                built[name] = distributions.IntDistribution(0, len(self._columns[name]) - 1)
            elif parameter.integer:
                built[name] = distributions.IntDistribution(int(parameter.min), int(parameter.max), log=parameter.log)
            else:
                low, high = float(parameter.min), float(parameter.max)
                built[name] = distributions.FloatDistribution(low, high, log=parameter.log)
        return built

    def _build_study(self, name: SamplerName, *, seed: int, maximize: bool) -> Any:
        optuna = self._optuna
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            with warnings.catch_warnings():
                # The constant liar, which keeps a wave of proposals apart, was marked experimental before Optuna 5.
                warnings.simplefilter("ignore")
                if name is SamplerName.RANDOM:
                    sampler = optuna.samplers.RandomSampler(seed=seed)
                else:
                    sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
            return optuna.create_study(sampler=sampler, direction="maximize" if maximize else "minimize")
        finally:
            optuna.logging.set_verbosity(verbosity)


def _suggest(asked: Any, name: str, distribution: Any) -> Any:
    """Ask for one parameter, as Optuna's own fixed distributions do."""
    if hasattr(distribution, "choices"):
        return asked.suggest_categorical(name, distribution.choices)
    if isinstance(distribution.low, float):
        return asked.suggest_float(name, distribution.low, distribution.high, log=distribution.log)
    return asked.suggest_int(name, distribution.low, distribution.high, log=distribution.log)


def _drawn(distribution: Any, rng: random.Random) -> Any:
    """Return an even draw from a distribution of Optuna's."""
    if hasattr(distribution, "choices"):
        return rng.choice(distribution.choices)
    low, high = distribution.low, distribution.high
    if distribution.log:
        value = math.exp(rng.uniform(math.log(low), math.log(high)))
        return value if isinstance(low, float) else min(high, max(low, round(value)))
    return rng.uniform(low, high) if isinstance(low, float) else rng.randint(low, high)


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


def _columns(space: SearchSpace) -> dict[str, tuple[Value | MultipleOf, ...]]:
    """Return the values of every drawn parameter whose values can be listed."""
    columns: dict[str, tuple[Value | MultipleOf, ...]] = {}
    for name, parameter in space.drawn().items():
        points = parameter.values if isinstance(parameter, Choice) else parameter.points()
        if points is not None:
            columns[name] = points
    return columns


def _import_optuna(name: SamplerName) -> Any:
    try:
        return importlib.import_module("optuna")
    except ImportError as error:
        raise InputError(
            Problem(
                where="search.sampler",
                found=f"{name.value}, which needs the package optuna",
                allowed="grid on a machine without optuna",
                mend="Install it with: pip install optuna, or choose sampler: grid.",
            )
        ) from error
