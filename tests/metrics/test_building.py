"""From names to metrics: patterns and options, what is missing, what is wrong."""

from __future__ import annotations

import sys

import pytest

from cohort.core.discovery import modules_of
from cohort.core.errors import InputError
from cohort.core.source_location import Place
from cohort.metrics import METRIC_KINDS, MetricOptions, ReferenceRow, build_metrics, counts_hits, score_texts
from cohort.metrics.building import metric_name, needs_generation, option_problems, pattern_problems


def _score(
    name: str, prediction: str, reference: str, *, normalize: bool = False, answer_pattern: str | None = None
) -> float:
    options = MetricOptions(normalize=normalize, answer_pattern=answer_pattern)
    row = ReferenceRow(where="a.jsonl:1", prompt="?", reference=reference)
    ((score,),) = score_texts(build_metrics([name], options=options), [prediction], [row]).values()
    return score


FILES = modules_of("cohort.metrics.kinds")


def test_a_kind_is_named_after_its_file() -> None:
    assert [kind.name for kind in METRIC_KINDS.built_in()] == ["exact_match", *sorted(set(FILES) - {"exact_match"})]
    assert all(kind.summary for kind in METRIC_KINDS.built_in())
    names = (*METRIC_KINDS.names(), "choice_accuracy", "loss", "mine")
    assert [name for name in names if not counts_hits(name)] == ["rouge_l", "token_f1", "loss", "mine"]


def test_a_pattern_serves_every_own_metric() -> None:
    pattern = r"#### (.+)"
    assert _score("exact_match", "6*7\n#### 42", "as 7*6\n#### 42", answer_pattern=pattern) == 1
    assert _score("exact_match", "42", "#### 42", answer_pattern=pattern) == 0
    # a reference that is the bare answer needs no pattern
    assert _score("exact_match", "#### 42", "42", answer_pattern=pattern) == 1
    assert _score("number_match", "#### 42 or 43", "#### 43", answer_pattern=pattern) == 1


def test_normalize_reaches_the_metrics_that_read_it() -> None:
    assert _score("exact_match", "the paris.", "Paris") == 0
    assert _score("exact_match", "the paris.", "Paris", normalize=True) == 1
    assert _score("contains", "it is paris", "Paris!", normalize=True) == 1
    # a number has no case and no article
    assert _score("number_match", "-3", "3", normalize=True) == 0


def test_options_that_no_metric_reads_are_named() -> None:
    both = MetricOptions(normalize=True, answer_pattern=r"\d+")
    assert [problem.at for problem in option_problems(["loss"], both)] == [("normalize",), ("answer_pattern",)]
    (unread,) = option_problems(["number_match", "mine:score"], both)
    assert unread.at == ("normalize",)
    assert "normalize with number_match, score, which does not read it" in unread.found
    assert "exact_match" in unread.allowed
    assert option_problems(["contains"], both) == []
    assert option_problems([], MetricOptions()) == []


@pytest.mark.parametrize(
    ("pattern", "words"), [("(", "unterminated subpattern"), ("", "''"), (3, "3"), ("number", "'number'")]
)
def test_a_wrong_pattern_is_refused_with_an_example(pattern: object, words: str) -> None:
    (problem,) = pattern_problems(pattern)
    assert words in problem.found
    assert ("number_match" if pattern == "number" else "'#### (.+)'") in problem.hint


def test_a_function_is_called_by_its_last_part() -> None:
    assert metric_name("my_metrics:score") == "score"
    assert metric_name("folder/mine.py:score") == "score"
    assert metric_name("exact_match") == "exact_match"
    assert [name for name in ("loss", "choice_accuracy", "contains", "mine:score") if not needs_generation(name)] == [
        "loss",
        "choice_accuracy",
    ]
    assert list(pattern_problems(None)) == []


def test_a_missing_package_is_named_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(
        InputError, match=r"task.yaml: evaluation.metric: .*rouge-score is not installed.*cohort-lora\[r"
    ):
        build_metrics(["rouge_l"], where=Place(file="task.yaml", key=("evaluation", "metric")))


def test_all_wrong_names_are_listed() -> None:
    with pytest.raises(InputError) as found:
        build_metrics(["exact-match", "no_such:thing", "x:loss", "contains", "contains"])
    texts = [str(problem) for problem in found.value.problems]
    assert len(texts) == 5
    assert "Did you mean exact_match?" in texts[0]
    assert any("no module 'no_such'" in text for text in texts)
