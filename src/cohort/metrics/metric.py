"""What a metric is, what it is given, and what it is called when it fails."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.core.errors import RunStateError

__all__ = [
    "CHOICE_ACCURACY",
    "LOSS",
    "Metric",
    "MetricFailedError",
    "MetricKind",
    "MetricOptions",
    "REWARD",
    "REWARD_ACCURACY",
    "REWARD_MARGIN",
    "REWARD_METRICS",
    "ReferenceRow",
    "Row",
    "score_texts",
]

LOSS = "loss"
"""The validation loss: it is always measured, and no text is generated for it."""
CHOICE_ACCURACY = "choice_accuracy"
"""How often the expected choice is the likeliest of a row's: measured by losses, so no text is generated for it."""

REWARD_ACCURACY = "reward_accuracy"
"""How often the better answer has the higher reward: measured with the loss by objectives that compare answers."""
REWARD_MARGIN = "reward_margin"
"""By how much, on average; no share of rows, whatever its values."""
REWARD = "reward"
"""The mean reward of answers that are drawn to the rows' prompts: measured by objectives that reward answers."""
REWARD_METRICS = (REWARD_ACCURACY, REWARD_MARGIN, REWARD)
"""What objectives that compare or reward answers measure together with the loss."""

Row = Mapping[str, Any]
"""A row as its file has it, with ``prompt`` and ``completion`` as the model is asked and expected to answer."""


class MetricFailedError(RunStateError):
    """A user's metric function raised, or returned something that is no finite number."""


@dataclass(frozen=True, kw_only=True)
class MetricOptions:
    """What changes how texts are compared.

    Attributes:
        normalize: Compare without case, punctuation and the articles a, an and the.
        answer_pattern: A regular expression that finds the answer in a text; None takes the whole text.
    """

    normalize: bool = False
    answer_pattern: str | None = None

    def __post_init__(self) -> None:
        if self.answer_pattern is not None:
            re.compile(self.answer_pattern)


@dataclass(frozen=True, kw_only=True)
class MetricKind:
    """A metric of generated text that has a name. More is better, and a score is a share in [0, 1].

    Attributes:
        name: What users write.
        summary: Its meaning in one line.
        score: Compares a prediction with what was expected.
        counts_hits: Whether a row scores 1 or 0 and nothing between.
        reads_normalize: Whether ``normalize`` changes it; others compare texts in a way of their own.
        package: The package it needs that Cohort does not, as pip calls it.
        module: How that package is imported.
        extra: The extra of Cohort that installs it.
    """

    name: str
    summary: str
    score: Callable[[str, str], float]
    counts_hits: bool = True
    reads_normalize: bool = False
    package: str = ""
    module: str = ""
    extra: str = ""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric that is ready for use.

    Attributes:
        name: The key of its values in evaluations and tables.
        score: Takes the generated text and the row, returns a number.
        identity: SHA-256 (hex) of what a user's function is made of; None for Cohort's own metrics.
        shown: How messages name it.
    """

    name: str
    score: Callable[[str, Row], float]
    identity: str | None = None
    shown: str = ""


@dataclass(frozen=True, kw_only=True)
class ReferenceRow:
    """What a generated text is compared with.

    Attributes:
        where: ``file:line``, for messages.
        prompt: What the text was generated from.
        reference: The expected text.
        columns: The row as its file has it, as a JSON object.
    """

    where: str
    prompt: str
    reference: str
    columns: str = "{}"

    def values(self) -> dict[str, Any]:
        """Return what a metric function is given, made fresh: one that changes its row changes nothing else."""
        return {**json.loads(self.columns), "prompt": self.prompt, "completion": self.reference}


def score_texts(
    metrics: Sequence[Metric], predictions: Sequence[str], rows: Sequence[ReferenceRow]
) -> dict[str, list[float]]:
    """Return the score of each row by metric; prediction i answers row i. A metric's value is the mean over the rows.

    Raises:
        MetricFailedError: a user's function raised or returned no finite number; names function, row and message.
    """
    found: dict[str, list[float]] = {}
    for metric in metrics:
        scores = found[metric.name] = []
        for prediction, row in zip(predictions, rows, strict=True):
            try:
                scores.append(metric.score(prediction, row.values()))
            except MetricFailedError as error:
                raise MetricFailedError(
                    f"the metric {metric.shown} {error}; row {row.where}, prediction {prediction!r:.80}"
                ) from error
    return found
