"""Whether the whole answer is right."""

from __future__ import annotations

from cohort.metrics.metric import MetricKind

__all__ = ["METRIC", "exact_match"]


def exact_match(prediction: str, reference: str) -> float:
    """Return 1 for texts that are equal except for white space at their ends, else 0."""
    return float(prediction.strip() == reference.strip())


METRIC = MetricKind(
    name="exact_match",
    summary="the answer equals the expected one, white space at the ends apart",
    score=exact_match,
    reads_normalize=True,
)
