"""From what a user names to metrics: Cohort's own by their names, functions by ``module:function``."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from cohort.core.errors import InputError
from cohort.core.input_values.nearest_value import nearest_word
from cohort.core.setting_fields import Refusal
from cohort.core.source_location import Place
from cohort.metrics.functions import FunctionRefusedError, code_identity, function_path, load_function
from cohort.metrics.kinds import METRIC_KINDS
from cohort.metrics.metric import (
    CHOICE_ACCURACY,
    LOSS,
    REWARD_ACCURACY,
    REWARD_METRICS,
    Metric,
    MetricKind,
    MetricOptions,
    Row,
)
from cohort.metrics.normalization import find_answer, normalized

__all__ = [
    "METRICS_ALLOWED",
    "build_metrics",
    "counts_hits",
    "metric_name",
    "metric_problems",
    "needs_generation",
    "own_metrics",
    "option_problems",
    "pattern_problems",
]

_AS_WRITTEN = MetricOptions()
METRICS_ALLOWED = (
    f"{' | '.join((LOSS, *(kind.name for kind in METRIC_KINDS.built_in()), CHOICE_ACCURACY, *REWARD_METRICS))}"
    " | module:function"
)
"""What a metric may be, of Cohort alone: :func:`own_metrics` has those of installed packages as well."""


def own_metrics() -> tuple[str, ...]:
    """Return all metrics that have a name: more is better of each but the loss.

    Raises:
        InputError: a package offers a name that is taken.
    """
    return (LOSS, *METRIC_KINDS.names(), CHOICE_ACCURACY, *REWARD_METRICS)


def metric_name(spelled: str) -> str:
    """Return the name that evaluations and tables use: of ``my_metrics:score`` it is ``score``."""
    parts = function_path(spelled)
    return spelled if parts is None or spelled in own_metrics() else parts[1]


def needs_generation(spelled: str) -> bool:
    """Return whether texts are generated for a metric; the loss, rewards and choices need none."""
    return spelled not in (LOSS, CHOICE_ACCURACY, *REWARD_METRICS)


def counts_hits(name: str) -> bool:
    """Return whether the metric of this name is a share of rows: a row scores 1 or 0 and nothing between."""
    kind = METRIC_KINDS.known(name)
    return name in (CHOICE_ACCURACY, REWARD_ACCURACY) or (kind is not None and kind.counts_hits)


def metric_problems(spelled: Sequence[str]) -> list[Refusal]:
    """Return what is wrong with the names of metrics; nothing is imported. ``at`` is the position in the list."""
    refusals, own = [], own_metrics()
    counts = Counter(map(metric_name, spelled))
    for place, name in enumerate(spelled):
        if name not in own and function_path(name) is None:
            near = nearest_word(name, own)
            hint = f"Did you mean {near}?" if near else "Choose one of these."
            refusals.append(
                Refusal(found=repr(name), allowed=f"{' | '.join(own)} | module:function", hint=hint, at=(place,))
            )
        elif name not in own and metric_name(name) in own:
            found = f"{name!r}, whose name {metric_name(name)} is that of another metric"
            hint = "Give the function another name."
            refusals.append(Refusal(found=found, allowed="a function with a name of its own", hint=hint, at=(place,)))
        elif counts[metric_name(name)] > 1 and metric_name(name) in map(metric_name, spelled[:place]):
            found = f"{metric_name(name)} twice"
            refusals.append(Refusal(found=found, allowed="each name once", hint="Remove one.", at=(place,)))
    return refusals


def pattern_problems(value: object) -> Iterator[Refusal]:
    """Yield what is wrong with an ``answer_pattern``; None is none."""
    if value is None:
        return
    allowed = "a regular expression, whose first group is the answer (without a group: all it matches)"
    hint = "Write for example '#### (.+)', in single quotes."
    if not isinstance(value, str) or not value:
        yield Refusal(found=repr(value), allowed=allowed, hint=hint)
        return
    try:
        re.compile(value)
    except re.error as error:
        yield Refusal(found=f"{value!r} ({error})", allowed=allowed, hint=hint)
    else:
        if value in ("number", "numbers"):
            hint = "Write metric: number_match, which compares the last numbers."
            yield Refusal(found=repr(value), allowed=allowed, hint=hint)


def option_problems(spelled: Sequence[str], options: MetricOptions) -> list[Refusal]:
    """Return the options that none of the metrics ``spelled`` reads; ``at`` is the option."""
    kinds = {kind.name: kind for kind in METRIC_KINDS.usable()}
    own = [kinds[name] for name in spelled if name in kinds]
    options_read = {
        "normalize": (options.normalize, [kind for kind in kinds.values() if kind.reads_normalize]),
        "answer_pattern": (options.answer_pattern is not None, list(kinds.values())),
    }
    return [
        Refusal(
            found=f"{option} with {', '.join(map(metric_name, spelled)) or LOSS}, which does not read it",
            allowed=f"{option} with {', '.join(kind.name for kind in readers)}",
            hint=f"Remove {option}, or add one of these metrics.",
            at=(option,),
        )
        for option, (is_set, readers) in options_read.items()
        if is_set and not any(kind in readers for kind in own)
    ]


def build_metrics(
    spelled: Sequence[str], *, options: MetricOptions = _AS_WRITTEN, where: Place | None = None
) -> tuple[Metric, ...]:
    """Return the metrics of generated text among ``spelled``, ready for use; ``loss`` and choices are left out.

    Raises:
        InputError: a name is unknown, a function cannot be used, or a package is not installed; lists all of them.
    """
    refusals = metric_problems(spelled)
    metrics = []
    for name in spelled:
        if (kind := METRIC_KINDS.find(name)) is not None:
            refusals += _missing_package(kind)
            is_own = kind in METRIC_KINDS.built_in()
            identity = None if is_own else code_identity(kind.score)
            metrics.append(Metric(name=name, score=_comparing(kind, options), identity=identity, shown=name))
        elif needs_generation(name) and function_path(name) is not None:
            try:
                metrics.append(load_function(name))
            except FunctionRefusedError as error:
                allowed = "a function of a prediction and its row that returns a number"
                refusals.append(Refusal(found=str(error), allowed=allowed, hint=error.hint))
    if refusals:
        place = Place(text="metric") if where is None else where
        raise InputError([replace(refusal, at=()).problem(place) for refusal in refusals])
    return tuple(metrics)


def _missing_package(kind: MetricKind) -> list[Refusal]:
    if not kind.module or importlib.util.find_spec(kind.module) is not None:
        return []
    return [
        Refusal(
            found=f"{kind.name}, but the package {kind.package} is not installed",
            allowed=f"{kind.name} where {kind.package} is installed",
            hint=f"Run `pip install {kind.package}` (or install cohort-lora[{kind.extra}]), or choose another metric.",
        )
    ]


def _comparing(kind: MetricKind, options: MetricOptions) -> Callable[[str, Row], float]:
    def score(prediction: str, row: Row) -> float:
        reference = str(row["completion"])
        # a reference that is written without the pattern's words is the answer itself
        expected = find_answer(reference, options.answer_pattern)
        expected = reference if expected is None else expected
        answer = find_answer(prediction, options.answer_pattern)
        if answer is None:
            return 0.0
        if options.normalize and kind.reads_normalize:
            answer, expected = normalized(answer), normalized(expected)
        return kind.score(answer, expected)

    return score
