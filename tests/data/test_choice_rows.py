"""Rows with choices: each row once for every answer it could have."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from cohort.core.errors import InputError
from cohort.data.choice_rows import ChoiceRows, choice_rows
from cohort.data.loading import load_dataset
from cohort.data.settings import DatasetSettings

Write = Callable[..., Path]


def _row(number: int, **more: Any) -> dict[str, Any]:
    return {"prompt": f"Q{number}:", "completion": " yes", "choices": ["no", "yes", "perhaps so"], **more}


def _choices(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Mapping[str, Any]], path: Path, **settings: Any
) -> ChoiceRows:
    path.write_text("\n".join(map(json.dumps, [_row(0), _row(1)])))
    validation = path.with_name("validation.jsonl")
    validation.write_text("\n".join(map(json.dumps, rows)))
    own = DatasetSettings(train=str(path), validation=str(validation), **settings)
    data = load_dataset(own, tokenizer=tokenizer, use_cache=False)
    return choice_rows(
        data.validation,
        range(len(data.validation)),
        settings=own,
        data_format=data.report.format,
        tokenizer=tokenizer,
    )


def test_a_choice_is_tokenised_as_the_answer_would_be(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    found = _choices(tokenizer, [_row(2), _row(3, choices=["yes", "no"])], tmp_path / "train.jsonl")
    assert (found.starts, found.expected) == ((0, 3, 5), (1, 0))
    rows = found.rows
    first, second = rows.sample(1), rows.sample(3)
    # the white space before the answer stays: the model was taught to write it
    assert tokenizer.decode(first.tokens[first.trained], skip_special_tokens=True) == " yes"
    assert tokenizer.decode(second.tokens[second.trained], skip_special_tokens=True) == " yes"
    assert rows.sample(0).tokens[0] == first.tokens[0]


def test_accuracy_takes_the_lowest_loss_and_the_first_of_equal_ones(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    found = _choices(tokenizer, [_row(2), _row(3, choices=["yes", "no"])], tmp_path / "train.jsonl")
    assert found.accuracy_of([2, 1, 3, 1, 1]) == (1, 1)
    assert found.accuracy_of([1, 1, 3, 2, 1]) == (0, 0)
    assert found.accuracy_of([math.nan, 1, 3, math.nan, math.nan]) == (1, 0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"choices": None}, "no 'choices' in the row"),
        ({"choices": {"text": ["yes"]}}, "Write a list of strings"),
        ({"choices": ["yes", "yes "]}, "Write each choice once"),
        ({"choices": ["yes"]}, "Write each choice once"),
        ({"choices": ["no", "never"]}, "the answer ' yes'"),
        ({"choices": ["yes", "no " * 60]}, "max_length"),
    ],
)
def test_a_row_without_a_usable_choice_is_named(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    with pytest.raises(InputError, match=rf"validation.jsonl:1.*{why}"):
        _choices(tokenizer, [_row(2, **change)], tmp_path / "train.jsonl", max_length=48)


def test_a_fault_of_many_rows_is_told_once(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        _choices(tokenizer, [_row(number, choices=None) for number in range(12)], tmp_path / "train.jsonl")
    (problem,) = caught.value.problems
    assert problem.found == "no 'choices' in the row (the first of 12 such rows)"
    # the rows are asked for their choices whatever on_bad_rows says
    assert "on_bad_rows" not in problem.hint


def test_the_column_may_have_another_name(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    row = {"prompt": "Q", "completion": "yes", "options": ["yes", "no"]}
    found = _choices(tokenizer, [row], tmp_path / "train.jsonl", columns={"choices": "options"})
    assert found.expected == (0,)
    assert len(found.rows) == 2


def test_only_validation_rows_keep_their_columns_and_the_cache_has_them(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, write_jsonl: Write
) -> None:
    path = write_jsonl([_row(number, level=number) for number in range(8)])
    for _ in range(2):
        data = load_dataset(
            DatasetSettings(train=str(path), validation=0.5), tokenizer=tokenizer, cache_dir=tmp_path / "cache"
        )
        assert data.train.columns == ()
        assert all("level" in json.loads(columns) for columns in data.validation.columns)
    assert data.cache_status == "hit"
