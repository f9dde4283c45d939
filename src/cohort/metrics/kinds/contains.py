"""Whether the expected answer occurs in the text."""

from __future__ import annotations

from cohort.metrics.metric import MetricKind

__all__ = ["METRIC", "contains"]


def contains(prediction: str, reference: str) -> float:
    """Return 1 where ``reference`` is part of ``prediction``, else 0; 1 is part of 10."""
    return float(reference.strip() in prediction)


METRIC = MetricKind(
    name="contains", summary="the expected answer is part of the text", score=contains, reads_normalize=True
)
