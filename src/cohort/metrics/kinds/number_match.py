"""Whether the last number of a text is the expected one."""

from __future__ import annotations

from cohort.metrics.metric import MetricKind
from cohort.metrics.normalization import last_number

__all__ = ["METRIC", "number_match"]


def number_match(prediction: str, reference: str) -> float:
    """Return 1 where both texts have a last number and the two are equal, else 0; 3, 3.0 and $3.00 are equal."""
    expected = last_number(reference)
    return float(expected is not None and last_number(prediction) == expected)


METRIC = MetricKind(
    name="number_match", summary="the last number equals the last one of the expected answer", score=number_match
)
