"""ROUGE-L is that of rouge-score, in every alphabet."""

from __future__ import annotations

import pytest

from cohort.metrics.kinds.rouge_l import METRIC, rouge_l


def test_it_is_that_of_rouge_score() -> None:
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rougeL"])
    prediction, reference = "the cat sat on a mat, 12 times", "The cat was on the mat 12 times!"
    assert rouge_l(prediction, reference) == scorer.score(reference, prediction)["rougeL"].fmeasure


def test_words_of_every_alphabet_count() -> None:
    pytest.importorskip("rouge_score")
    assert (
        rouge_l(
            "кошка сидит",
            "кошка спит",
        )
        == 0.5
    )
    assert rouge_l("b a", "a b") == 0.5
    assert rouge_l("", "a b") == rouge_l("a", "") == 0


def test_its_package_and_extra_are_named() -> None:
    assert (METRIC.package, METRIC.module, METRIC.extra) == ("rouge-score", "rouge_score", "rouge")
    assert not METRIC.counts_hits
