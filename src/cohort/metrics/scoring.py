"""All metrics of one set of generated texts."""

from __future__ import annotations

from collections.abc import Sequence

from cohort.metrics.metric import Metric, MetricFailedError, ReferenceRow

__all__ = ["score_texts"]


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
