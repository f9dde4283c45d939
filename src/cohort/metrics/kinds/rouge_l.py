"""ROUGE-L: the longest common subsequence of words, by the package rouge-score."""

from __future__ import annotations

from functools import cache
from typing import Any

from cohort.metrics.metric import MetricKind
from cohort.metrics.normalization import words

__all__ = ["METRIC", "rouge_l"]


class _Words:
    """The tokenizer of rouge-score for every alphabet: its own keeps a to z and 0 to 9 only."""

    def tokenize(self, text: str) -> list[str]:
        return words(text)


@cache
def _scorer() -> Any:
    # an optional package: it is looked for before training, where the metric is built
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], tokenizer=_Words())


def rouge_l(prediction: str, reference: str) -> float:
    """Return the F-measure of ROUGE-L, without stemming."""
    return float(_scorer().score(reference, prediction)["rougeL"].fmeasure)


METRIC = MetricKind(
    name="rouge_l",
    summary="F-measure of the longest common subsequence of words (ROUGE-L)",
    score=rouge_l,
    counts_hits=False,
    package="rouge-score",
    module="rouge_score",
    extra="rouge",
)
