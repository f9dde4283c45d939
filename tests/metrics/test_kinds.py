"""Cohort's own metrics: what counts as right."""

from __future__ import annotations

import sys

import pytest

from cohort.core.errors import InputError
from cohort.core.place import Place
from cohort.metrics import METRIC_KINDS, MetricOptions, ReferenceRow, build_metrics, counts_hits, score_texts
from cohort.metrics.answers import find_answer, last_number, normalized


def _score(
    name: str, prediction: str, reference: str, *, normalize: bool = False, answer_pattern: str | None = None
) -> float:
    options = MetricOptions(normalize=normalize, answer_pattern=answer_pattern)
    row = ReferenceRow(where="a.jsonl:1", prompt="?", reference=reference)
    ((score,),) = score_texts(build_metrics([name], options=options), [prediction], [row]).values()
    return score


def test_a_kind_is_named_after_its_file() -> None:
    assert all(kind.name == name and kind.summary for name, kind in METRIC_KINDS.items())
    assert "exact_match" in METRIC_KINDS
    names = (*METRIC_KINDS, "choice_accuracy", "loss", "mine")
    assert [name for name in names if not counts_hits(name)] == ["rouge_l", "token_f1", "loss", "mine"]


@pytest.mark.parametrize(
    ("prediction", "reference", "normalize", "expected"),
    [
        (" Paris\n", "Paris", False, 1),
        ("paris.", "Paris", False, 0),
        ("the paris.", "Paris", True, 1),
        # an answer that consists of an article alone stays what it is
        ("A", "A", True, 1),
        ("The", "A", True, 0),
        ("?", "!", True, 0),
        ("\uff30aris", "Paris", True, 1),
    ],
)
def test_exact_match(prediction: str, reference: str, normalize: bool, expected: float) -> None:
    assert _score("exact_match", prediction, reference, normalize=normalize) == expected


def test_contains() -> None:
    assert _score("contains", "It is Paris, of course", "Paris") == 1
    assert _score("contains", "it is paris", "Paris") == 0
    assert _score("contains", "it is paris", "Paris!", normalize=True) == 1


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12 + 30 = 42.", "42"),
        ("#### 1,234.50", "1234.5"),
        ("it costs $-3", "-3"),
        ("-$3", "-3"),
        ("\u22127 degrees", "-7"),
        ("from 3-4", "4"),
        ("gives 1e3", "1000"),
        (".5", "0.5"),
        ("1,2,3", "3"),
        ("2 eggs", "2"),
        ("none", None),
    ],
)
def test_the_last_number(text: str, number: str | None) -> None:
    found = last_number(text)
    assert (found is None) == (number is None)
    assert found is None or found == type(found)(str(number))


def test_number_match_compares_values() -> None:
    assert _score("number_match", "so 3.0", "#### 3") == 1
    assert _score("number_match", "so 3 or 4", "#### 3") == 0
    # a reference without a number is met by nothing, least of all by a text without one
    assert _score("number_match", "none", "none") == 0


def test_the_answer_is_the_last_match_and_its_first_group() -> None:
    assert find_answer("A: 1\nA: 2 ", r"A: (\d)") == "2"
    assert find_answer("x=1 y=2", r"x=(\d)|y=(\d)") == "2"
    assert find_answer("so 17", r"\d+") == "17"
    assert find_answer("so", r"\d+") is None


def test_a_pattern_serves_every_own_metric() -> None:
    pattern = r"#### (.+)"
    assert _score("exact_match", "6*7\n#### 42", "as 7*6\n#### 42", answer_pattern=pattern) == 1
    assert _score("exact_match", "42", "#### 42", answer_pattern=pattern) == 0
    # a reference that is the bare answer needs no pattern
    assert _score("exact_match", "#### 42", "42", answer_pattern=pattern) == 1
    assert _score("number_match", "#### 42 or 43", "#### 43", answer_pattern=pattern) == 1


def test_token_f1_is_that_of_squad() -> None:
    # 2 shared of 3 and 2 words: 2 * (2/3) * 1 / (2/3 + 1)
    assert _score("token_f1", "the big red fox", "Red fox.") == pytest.approx(0.8)
    assert _score("token_f1", "a cat", "dogs") == 0
    assert _score("token_f1", "", "dogs") == 0
    assert normalized(" The  Cat's ") == "cats"


def test_rouge_l_is_that_of_rouge_score_in_every_alphabet() -> None:
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rougeL"])
    prediction, reference = "the cat sat on a mat, 12 times", "The cat was on the mat 12 times!"
    expected = scorer.score(reference, prediction)["rougeL"].fmeasure
    assert _score("rouge_l", prediction, reference) == expected
    assert _score("rouge_l", "кошка сидит", "кошка спит") == 0.5


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
