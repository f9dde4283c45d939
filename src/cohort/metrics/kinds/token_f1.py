"""How many words a text shares with the expected answer."""

from __future__ import annotations

from collections import Counter

from cohort.metrics.metric import MetricKind
from cohort.metrics.normalization import normalized

__all__ = ["METRIC", "token_f1"]


def token_f1(prediction: str, reference: str) -> float:
    """Return the harmonic mean of precision and recall of the words, normalized as SQuAD does."""
    found, expected = normalized(prediction).split(), normalized(reference).split()
    if not found or not expected:
        return float(found == expected)
    num_shared = sum((Counter(found) & Counter(expected)).values())
    return 2 * num_shared / (len(found) + len(expected))


METRIC = MetricKind(
    name="token_f1",
    summary="F1 of the words shared with the expected answer, normalized as in SQuAD",
    score=token_f1,
    counts_hits=False,
)
