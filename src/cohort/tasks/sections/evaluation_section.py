"""The ``evaluation`` section of a task file: when trials are compared, on what, and by which metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema, model_validator

from cohort.core.setting_fields import MOST_COUNT, Refusal, count_words
from cohort.metrics import (
    LOSS,
    METRIC_KINDS,
    METRICS_ALLOWED,
    REWARD_METRICS,
    MetricOptions,
    function_path,
    metric_name,
    metric_problems,
    needs_generation,
    option_problems,
    own_metrics,
    pattern_problems,
)
from cohort.tasks.fields import SchemaOnDemand, Whole, refuse, section_with, setting
from cohort.tuning.evaluation_times import EvaluationSettings

__all__ = ["EvaluationSection"]

_EXAMPLE = "Write for example [exact_match, token_f1]."


def _metric(value: object) -> object:
    if not isinstance(value, str) or not value:
        hint = "Write one name; further metrics go to evaluation.metrics." if isinstance(value, list) else "Write loss."
        refuse(Refusal(found=repr(value), allowed=_allowed(), hint=hint))
    if problems := metric_problems([value]):
        # problems name a place in a list, and this key holds one name
        refuse(*(replace(problem, at=()) for problem in problems))
    return value


def _metrics(value: object) -> object:
    names = [value] if isinstance(value, str) else value
    allowed = f"a list of {_allowed()}"
    if names is None:
        return ()
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        refuse(Refusal(found=repr(value), allowed=allowed, hint=_EXAMPLE))
    if problems := metric_problems(names):
        refuse(*problems)
    return tuple(names)


def _pattern(value: object) -> object:
    if problems := tuple(pattern_problems(value)):
        refuse(*problems)
    return value


if TYPE_CHECKING:
    _EvaluationKeys = EvaluationSettings
else:
    _EvaluationKeys = section_with(EvaluationSettings)

_NORMALIZED = ", ".join(kind.name for kind in METRIC_KINDS.built_in() if kind.reads_normalize)


def _allowed() -> str:
    return f"{' | '.join(own_metrics())} | module:function"


def _name_schema() -> dict[str, Any]:
    return {"anyOf": [{"enum": list(own_metrics())}, {"type": "string", "pattern": ":"}]}


class EvaluationSection(_EvaluationKeys):
    """When and on what trials are compared."""

    metric: Annotated[str, BeforeValidator(_metric), SchemaOnDemand(_name_schema)] = setting(
        LOSS, allowed=METRICS_ALLOWED, description="what the best trial is best at"
    )
    metrics: Annotated[
        tuple[str, ...],
        BeforeValidator(_metrics),
        PlainSerializer(list),
        SchemaOnDemand(lambda: {"type": "array", "items": _name_schema()}),
    ] = setting(
        (),
        allowed=f"a list of {METRICS_ALLOWED}",
        description="further metrics that are measured and shown",
    )
    normalize: bool = setting(
        False,
        allowed="true | false",
        description=f"{_NORMALIZED}: compare without case, punctuation and the articles a, an, the",
    )
    answer_pattern: Annotated[
        str | None, BeforeValidator(_pattern), WithJsonSchema({"type": ["string", "null"], "format": "regex"})
    ] = setting(
        None,
        allowed="a regular expression",
        description="finds the answer in a text: first group of the last match (null: the whole text)",
    )
    greater_is_better: bool = setting(
        True, allowed="true | false", description="metric: module:function: whether more of it is better"
    )
    max_new_tokens: Whole = setting(
        64, ge=1, le=MOST_COUNT, allowed=count_words(), description="most tokens generated for a prompt"
    )
    num_generations: Whole = setting(
        0,
        ge=0,
        le=4096,
        allowed=count_words(minimum=0, most=4096),
        description="grpo: answers drawn to each validation prompt, whose mean reward counts; 0: its likeliest answer",
    )

    @property
    def measured(self) -> tuple[str, ...]:
        """What is measured besides the loss: ``metric``, then ``metrics``; what comes with the loss is left out."""
        asked = dict.fromkeys((self.metric, *self.metrics))
        return tuple(name for name in asked if name not in (LOSS, *REWARD_METRICS))

    @property
    def metric_name(self) -> str:
        """The name that evaluations and tables use for ``metric``."""
        return metric_name(self.metric)

    @property
    def maximize(self) -> bool:
        """Whether more of ``metric`` is better."""
        # the direction of a function is known to its author alone, that of all others to us
        return self.metric != LOSS and (self.greater_is_better or function_path(self.metric) is None)

    @property
    def generates(self) -> bool:
        """Whether evaluations generate text: once for all metrics."""
        return any(map(needs_generation, self.measured))

    @property
    def options(self) -> MetricOptions:
        return MetricOptions(normalize=self.normalize, answer_pattern=self.answer_pattern)

    @property
    def function_files(self) -> tuple[Path, ...]:
        """The files that the metric functions among ``measured`` are in, as far as they are named by their files."""
        # their content is recorded: a resumed run says where a function is no longer the same
        return tuple(Path(name.rpartition(":")[0]) for name in self.measured if ".py:" in name)

    @model_validator(mode="after")
    def _keys_fit_together(self) -> EvaluationSection:
        refusals = _repeated(self.measured) + option_problems(self.measured, self.options)
        if not self.greater_is_better and (self.metric == LOSS or function_path(self.metric) is None):
            refusals.append(
                Refusal(
                    found=f"greater_is_better: false with metric: {self.metric}, whose direction is known",
                    allowed="greater_is_better: false with metric: module:function",
                    hint="Remove greater_is_better.",
                    at=("greater_is_better",),
                )
            )
        if refusals:
            refuse(*refusals)
        return self


def _repeated(names: Sequence[str]) -> list[Refusal]:
    # each key is right alone; together they may hold two functions of one name
    return [replace(problem, at=("metrics",)) for problem in metric_problems(names)]
