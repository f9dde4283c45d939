"""Random draws and TPE by Optuna's ask and tell: the only file that imports optuna.

The same calls in the same order with the same seed propose the same configurations, which is how a resumed run
rebuilds its sampler.
"""

from __future__ import annotations

import importlib
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.core.seeds import derive_seed
from cohort.core.source_location import Place
from cohort.tuning.parameters import Choice, Configuration, MultipleOf, Range, Value
from cohort.tuning.samplers.sampler import EarlierResult, Sampler, SearchBudget
from cohort.tuning.space import SearchSpace, configuration_key

__all__ = ["OptunaSampler"]


class OptunaSampler(Sampler):
    """Random or TPE draws by Optuna, without repeating a configuration where the space has others.

    Args:
        space: What to draw from. A list is a categorical parameter, a range as Optuna's int and float distributions.
        name: In the task file.
        budget: Trials, seed and direction.
        make: Returns Optuna's sampler from Optuna and a seed.

    Raises:
        InputError: optuna is not installed, or ``trials`` is not positive.
    """

    # Draws thrown away as repeats, or for a constraint, before the rest of a small space is listed instead. TPE that
    # has learned repeats itself: the limit is reached often near the end of a small space.
    _MOST_REPEATS = 50
    _MOST_EVEN_DRAWS = 5_000
    _LARGEST_LISTED_SPACE = 100_000

    def __init__(self, space: SearchSpace, *, name: str, budget: SearchBudget, make: Callable[[Any, int], Any]) -> None:
        if budget.trials < 1:
            raise InputError(
                Problem(
                    where=Place(key=("search", "trials")),
                    found=repr(budget.trials),
                    allowed="an integer >= 1",
                    hint="Write how many configurations to try.",
                )
            )
        self._optuna = _import_optuna(name)
        self._space = space
        self._trials = budget.trials
        self._num_proposed = 0
        self._seen: set[tuple[tuple[str, bool, Value], ...]] = set()
        # Kept for good: a study is built again from what was asked, with the results that are known by then.
        self._asked: dict[int, Any] = {}
        self._told: dict[int, tuple[int, float]] = {}
        self._columns = _columns(space)
        self._distributions = self._build_distributions()
        # Optuna minimises here: a maximised metric is reported with its sign flipped.
        self._sign = -1.0 if budget.maximize else 1.0
        self._sampler = make(self._optuna, derive_seed("sampler", name, budget.seed) % 2**32)
        self._study: Any = None
        self._earlier = self._fitting(budget.earlier)

    def propose(self, num: int) -> tuple[Configuration, ...]:
        """Ask Optuna for up to ``num`` configurations that were not proposed before."""
        proposals: list[Configuration] = []
        # A run asks after every step whether a trial has ended: building costs 13 ms with 60 trials
        if num > 0:
            self._study = self._build_study()
        while len(proposals) < num and self._num_proposed < self._trials:
            drawn = self._draw()
            if drawn is None:
                break
            asked, configuration = drawn
            # By what results, not by the draws: two draws may resolve to one configuration (conditions, multiples).
            self._seen.add(configuration_key(configuration))
            self._asked[self._num_proposed] = asked
            proposals.append(configuration)
            self._num_proposed += 1
        return tuple(proposals)

    def tell(self, trial_id: int, value: float | None, *, depth: int = 0) -> None:
        """Report a result; what was not finite is the worst at its depth."""
        if not 0 <= trial_id < self._num_proposed:
            raise ValueError(f"trial {trial_id} was not proposed; ids below {self._num_proposed} were")
        is_finite = value is not None and math.isfinite(value)
        self._told[trial_id] = (-depth, self._sign * value if value is not None and is_finite else math.inf)

    def _draw(self) -> tuple[Any, Configuration] | None:
        """Return a draw that is new; None when the space has no more."""
        size = self._space.size_bound()
        if size is not None and len(self._seen) >= size:
            return None
        for _ in range(self._MOST_REPEATS):
            asked, configuration = self._ask()
            if configuration_key(configuration) not in self._seen and self._space.allows(configuration):
                return asked, configuration
            # Reported as failed, or Optuna would keep it as running and lie about its result (constant liar).
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
        # Seeded by the number of proposals, so that a resumed run draws the same.
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

        # Drawn parameters in declared order first: another order would give other draws for the same seed.
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

    def _fitting(self, results: Sequence[EarlierResult]) -> list[tuple[dict[str, Any], float]]:
        """Return (Optuna's parameters, value to minimise) of the results that lie in the space."""
        found = []
        for result in results:
            params = {name: self._param(name, result.values) for name in self._distributions}
            if None not in params.values():
                found.append((params, self._sign * result.value))
        return found

    def _param(self, name: str, values: Mapping[str, Value]) -> Any:
        """Return the value that Optuna's parameter has where the hyperparameters have ``values``; None if none."""
        value = values.get(name)
        if name in self._columns:
            entries: list[Any] = [
                self._multiple(entry, values) if isinstance(entry, MultipleOf) else entry
                for entry in self._columns[name]
            ]
            return entries.index(value) if value in entries else None
        distribution = self._distributions[name]
        is_inside = isinstance(value, int | float) and distribution.low <= value <= distribution.high
        return type(distribution.low)(value) if is_inside else None

    @staticmethod
    def _multiple(entry: MultipleOf, values: Mapping[str, Value]) -> Value | None:
        base = values.get(entry.parameter)
        return entry.of(base) if isinstance(base, int | float) else None

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

    def _build_study(self) -> Any:
        """Return a study of all results so far, ordered by depth and value."""
        # Built again each time: a study of Optuna cannot replace a result by a later one of the same trial.
        optuna = self._optuna
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            study = optuna.create_study(sampler=self._sampler)
        finally:
            optuna.logging.set_verbosity(verbosity)
        # TPE only asks which trials are better than which, so a value is its place: deeper first, then by value. Optuna
        # orders pruned trials so, and BOHB (Falkner et al. 2018, section 3.3) learns from the deepest comparison.
        # Earlier results are those of whole trials: they stand with the deepest.
        deepest = min((depth for depth, _ in self._told.values()), default=0)
        earlier = [(params, (deepest, value)) for params, value in self._earlier]
        known_values = {*self._told.values(), *(told for _, told in earlier)}
        places = {told: float(place) for place, told in enumerate(sorted(known_values))}
        for params, told in earlier:
            study.add_trial(
                optuna.trial.create_trial(value=places[told], params=params, distributions=self._distributions)
            )
        running = optuna.trial.TrialState.RUNNING
        for trial_id, asked in self._asked.items():
            known = {"params": asked.params, "distributions": asked.distributions}
            if trial_id in self._told:
                study.add_trial(optuna.trial.create_trial(value=places[self._told[trial_id]], **known))
            else:
                study.add_trial(optuna.trial.create_trial(state=running, **known))
        return study


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


def _columns(space: SearchSpace) -> dict[str, tuple[Value | MultipleOf, ...]]:
    """Return the values of every drawn parameter whose values can be listed."""
    columns: dict[str, tuple[Value | MultipleOf, ...]] = {}
    for name, parameter in space.drawn().items():
        points = parameter.values if isinstance(parameter, Choice) else parameter.points()
        if points is not None:
            columns[name] = points
    return columns


def _import_optuna(name: str) -> Any:
    try:
        return importlib.import_module("optuna")
    except ImportError as error:
        raise InputError(
            Problem(
                where=Place(key=("search", "sampler")),
                found=f"{name}, which needs the package optuna",
                allowed="grid on a machine without optuna",
                hint="Install it with: pip install optuna, or choose sampler: grid.",
            )
        ) from error
