"""Rows that cannot be used: named all at once, left out or cut as the settings say, and counted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from cohort.core.errors import InputError
from cohort.data.loading import load_dataset
from cohort.data.settings import DatasetSettings
from tests.data.loading import MakeTokenizer, Write, load, pairs, problems_of


def test_all_problems_of_all_files_at_once(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    rows: list[Any] = pairs(20)
    rows[2] = {"prompt": "no answer"}
    path = write_jsonl(rows)
    path.write_text("".join(line if n != 16 else "{bad\n" for n, line in enumerate(path.read_text().splitlines(True))))
    validation = write_jsonl([{"prompt": "P", "completion": ""}], name="validation.jsonl")
    problems = problems_of(
        tokenizer, train=[str(path), "missing.jsonl"], validation=str(validation), on_long_rows="error", max_length=8
    )
    where = {str(problem.where) for problem in problems}
    assert {"dataset.train", f"{path}:3", f"{path}:17", f"{validation}:1"} <= where
    assert all(problem.hint for problem in problems)


def test_bad_rows_can_be_skipped_and_are_counted(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    path = write_jsonl([*pairs(10), {"prompt": "no answer"}, ["list"]])
    report = load(tokenizer, train=path, on_bad_rows="skip").report
    assert report.counts == {"unreadable": 1, "malformed": 1}
    assert report.num_rows_read == 12
    assert report.num_train_rows + report.num_validation_rows == 10
    assert "no 'completion'" in report.samples["malformed"][0]
    assert f"malformed: 1 ({path}:11)" in report.summary()


def test_a_long_list_of_problems_is_cut_and_says_so(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    # one in each file: the rows of a file with the same problem are one problem
    paths = [write_jsonl([*pairs(1), {"prompt": "P"}], name=f"train-{number}.jsonl") for number in range(30)]
    problems = problems_of(tokenizer, train=paths)
    assert len(problems) == 21
    assert problems[-1].found == "10 more problems like these"
    with pytest.raises(InputError) as caught:
        load_dataset(DatasetSettings(train=paths), tokenizer=tokenizer, use_cache=False, max_problems=None)
    assert len(caught.value.problems) == 30


def test_what_many_rows_have_alike_is_one_problem(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    empty = {"prompt": "P", "completion": ""}
    path = write_jsonl([*pairs(5), *[empty] * 20, *pairs(2), empty, {"prompt": "P"}])
    grouped, single = problems_of(tokenizer, train=path)
    assert str(grouped.where) == f"{path}:6-25, 28"
    assert grouped.found == "an empty 'completion' (the first of 21 such rows)"
    assert "on_bad_rows: skip" in grouped.hint
    assert str(single.where) == f"{path}:29"


@pytest.mark.parametrize("rule", ["drop", "truncate", "error"])
def test_long_rows(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write, rule: str) -> None:
    rows = [*pairs(9), {"prompt": "Q\n", "completion": "word " * 50}]
    settings: dict[str, Any] = {"train": write_jsonl(rows), "on_long_rows": rule, "max_length": 40}
    if rule == "error":
        (problem,) = problems_of(tokenizer, **settings)
        assert str(problem.where).endswith("train.jsonl:10")
        assert "at most max_length = 40" in problem.allowed
        return
    data = load(tokenizer, **settings)
    assert max(data.train.lengths.max(), data.validation.lengths.max()) <= 40
    kind, kept = ("too_long", 9) if rule == "drop" else ("truncated", 10)
    assert data.report.counts == {kind: 1}
    assert data.report.num_train_rows + data.report.num_validation_rows == kept
    assert data.report.lengths.maximum > 40
    if rule == "truncate":
        longest = data.train if data.train.lengths.max() == 40 else data.validation
        tokens = longest.sample(int(np.argmax(longest.lengths))).tokens
        # the text does not end here, so nothing may say that it does
        assert tokens[-1] != tokenizer.eos_token_id


def test_a_row_of_exactly_max_length_is_kept(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    path = write_jsonl([*pairs(10), {"prompt": "Question\n", "completion": "a longer answer than the others"}])
    longest = load(tokenizer, train=path).report.lengths.maximum
    assert not load(tokenizer, train=path, max_length=longest).report.counts
    assert load(tokenizer, train=path, max_length=longest - 1).report.counts == {"too_long": 1}


def test_a_row_whose_answer_is_cut_off_is_dropped(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    rows = [*pairs(9), {"prompt": "word " * 50, "completion": "answer"}]
    report = load(tokenizer, train=write_jsonl(rows), on_long_rows="truncate", max_length=40).report
    assert report.counts["empty_after_masking"] == 1
    assert report.lines["empty_after_masking"][0].endswith("train.jsonl:10")
    assert report.num_train_rows + report.num_validation_rows == 9


@pytest.mark.parametrize(("count", "share"), [(4, 0.1), (3, 0.9)])
def test_a_share_that_leaves_nothing(
    tokenizer: PreTrainedTokenizerBase, write_jsonl: Write, count: int, share: float
) -> None:
    (problem,) = problems_of(tokenizer, train=write_jsonl(pairs(count)), validation=share)
    assert str(problem.where) == "dataset.validation"
    assert f"a share of {share} of {count} usable rows, which leaves no row" in problem.found


def test_equal_rows_leave_nothing_to_validate(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    (problem,) = problems_of(tokenizer, train=write_jsonl(pairs(1) * 20))
    assert problem.found.endswith("leaves no row for validation; all of them have the same content")


def test_rows_that_all_fall_out(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    (problem,) = problems_of(tokenizer, train=write_jsonl(pairs(5)), max_length=3)
    assert problem.found == "no usable row (too long: 5)"


def test_an_empty_file(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.touch()
    (problem,) = problems_of(tokenizer, train=path)
    assert (str(problem.where), problem.found) == (str(path), "no rows")


def test_a_conversation_without_a_trained_answer_is_dropped_and_counted(
    make_tokenizer: MakeTokenizer, templates: Mapping[str, str], write_jsonl: Write
) -> None:
    def row(number: int, weight: int) -> dict[str, Any]:
        answer = {"role": "assistant", "content": "A", "weight": weight}
        return {"messages": [{"role": "user", "content": f"Q{number}"}, answer]}

    path = write_jsonl([*[row(number, 1) for number in range(10)], row(10, 0)])
    report = load(make_tokenizer(chat_template=templates["chatml"]), train=path).report
    assert report.counts == {"empty_after_masking": 1}
    assert report.lines["empty_after_masking"] == (f"{path}:11",)


def test_chat_rows_need_a_chat_template(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    rows = [{"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]}] * 3
    (problem,) = problems_of(tokenizer, train=write_jsonl(rows))
    assert "without a chat template" in problem.found


def test_templates_that_rewrite_are_refused_by_line(
    make_tokenizer: MakeTokenizer, templates: Mapping[str, str], write_jsonl: Write
) -> None:
    tokenizer = make_tokenizer(chat_template=templates["drops_reasoning"])
    single = [
        {"messages": [{"role": "user", "content": f"Q{n}"}, {"role": "assistant", "content": "<think>t</think>A"}]}
        for n in range(10)
    ]
    double = {"messages": [*single[0]["messages"], *single[1]["messages"]]}
    path = write_jsonl([*single, double])
    (problem,) = problems_of(tokenizer, train=path)
    assert str(problem.where) == f"{path}:11"
    assert "rewrites earlier text" in problem.found
    assert load(tokenizer, train=path, on_bad_rows="skip").report.counts == {"template": 1}


def test_prompt_and_completion_in_two_forms_are_mixed(
    make_tokenizer: MakeTokenizer, templates: Mapping[str, str], write_jsonl: Write
) -> None:
    messages = {"prompt": [{"role": "user", "content": "Q"}], "completion": [{"role": "assistant", "content": "A"}]}
    path = write_jsonl([*pairs(3), messages])
    (problem,) = problems_of(make_tokenizer(chat_template=templates["chatml"]), train=path)
    assert str(problem.where) == f"{path}:4"


def test_a_tokenizer_without_eos_or_offsets_is_refused(make_tokenizer: MakeTokenizer, write_jsonl: Write) -> None:
    tokenizer = make_tokenizer()
    tokenizer.eos_token = None
    (problem,) = problems_of(tokenizer, train=write_jsonl(pairs(5)))
    assert "without an end-of-sequence token" in problem.found


def test_a_border_inside_a_token_is_reported(gpt2: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    rows = [{"prompt": "Answer: ", "completion": f"yes {n}"} for n in range(10)]
    report = load(gpt2, train=write_jsonl(rows)).report
    assert report.counts == {"border_inside_token": 10}


def test_max_train_samples_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="max_train_samples"):
        DatasetSettings(train="x.jsonl", max_train_samples=0)
