"""How much each hyperparameter matters for reaching the best results, by Optuna's PED-ANOVA.

Source: Watanabe, Bansal, Hutter: PED-ANOVA (IJCAI 2023), in Optuna. It compares where the best tenth of the trials lies
with where all of them lie, parameter by parameter.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["LEAST_TRIALS", "hyperparameter_importances", "import_ahead", "is_importance_available"]

# below it, the best tenth is a single trial
LEAST_TRIALS = 12


def is_importance_available() -> bool:
    """Return whether optuna can be imported."""
    return importlib.util.find_spec("optuna") is not None


def import_ahead() -> None:
    """Import what :func:`hyperparameter_importances` needs, where it is installed: a second or two, in a thread."""
    if is_importance_available():
        with contextlib.suppress(Exception):
            optuna: Any = importlib.import_module("optuna")
            # optuna imports its parts when they are first asked for
            _ = optuna.importance.PedAnovaImportanceEvaluator


def hyperparameter_importances(
    configurations: Sequence[Mapping[str, object]], costs: Sequence[float], *, ranges: Mapping[str, bool]
) -> dict[str, float]:
    """Return the share of each hyperparameter that varies, the largest first; they add up to 1.

    Args:
        configurations: One for each trial, all with the same names; optuna is installed.
        costs: Their finite results; smaller is better.
        ranges: Those that were searched as ranges of numbers, and whether in the logarithm; the others are lists.
    """
    optuna: Any = importlib.import_module("optuna")
    distributions = {
        name: _distribution(optuna.distributions, [one[name] for one in configurations], is_log=ranges.get(name))
        for name in configurations[0]
        if len({repr(one[name]) for one in configurations}) > 1
    }
    with _quiet(optuna):
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        study.add_trials(
            [
                optuna.trial.create_trial(
                    params={
                        name: _entry(one[name], kind, optuna.distributions) for name, kind in distributions.items()
                    },
                    distributions=distributions,
                    value=cost,
                )
                for one, cost in zip(configurations, costs, strict=True)
            ]
        )
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    total = sum(found.values())
    return {name: share / total if total else 0.0 for name, share in found.items()}


@contextlib.contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            # optuna marks parts of its stable behaviour as experimental
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


def _distribution(distributions: Any, values: Sequence[object], *, is_log: bool | None) -> Any:
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if is_log is None or len(numbers) < len(values):
        # as text: lists are no categories of optuna's
        return distributions.CategoricalDistribution(sorted({repr(value) for value in values}))
    return distributions.FloatDistribution(float(min(numbers)), float(max(numbers)), log=is_log)


def _entry(value: Any, distribution: Any, distributions: Any) -> Any:
    is_category = isinstance(distribution, distributions.CategoricalDistribution)
    return repr(value) if is_category else float(value)
