from __future__ import annotations

from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.core.source_location import Place
from cohort.data.files.formats import DataFormat, detect_format, guess_columns, note_other_format, parse_rows
from cohort.data.files.rows import RawRow
from cohort.data.problems import ProblemKind, ProblemLog
from cohort.data.settings import DatasetSettings


def raw(*rows: dict[str, Any]) -> list[RawRow]:
    return [RawRow(where=Place(file="f", line=line), values=row) for line, row in enumerate(rows, start=1)]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("messages", DataFormat.MESSAGES),
        ("messages prompt prompt_id", DataFormat.MESSAGES),
        ("conversations id", DataFormat.SHAREGPT),
        ("instruction input output text", DataFormat.ALPACA),
        ("instruction output", DataFormat.ALPACA),
        ("prompt completion id", DataFormat.PROMPT_COMPLETION),
        ("text id", DataFormat.TEXT),
        ("prompt chosen rejected messages", DataFormat.PREFERENCE),
        ("chosen rejected", DataFormat.PREFERENCE),
        ("input preferred_completion non_preferred_completion", DataFormat.PREFERENCE),
        ("question answer", None),
        ("prompt", None),
    ],
)
def test_detection_by_keys(keys: str, expected: DataFormat | None) -> None:
    assert detect_format(dict.fromkeys(keys.split(), "x")) is expected


def test_a_null_column_is_absent() -> None:
    assert detect_format({"messages": None, "text": "T"}) is DataFormat.TEXT


def test_columns_are_renamed_and_no_longer_seen_under_their_old_name() -> None:
    settings = DatasetSettings(train="f", columns={"prompt": "text", "completion": "label"})
    log = ProblemLog()
    data_format, parsed = parse_rows(raw({"text": "P", "label": "C"}), settings=settings, log=log)
    assert data_format is DataFormat.PROMPT_COMPLETION
    assert parsed[0].example.prompt == "P"  # type: ignore[union-attr]


def test_renamed_alpaca_columns_are_not_alpaca() -> None:
    settings = DatasetSettings(train="f", columns={"prompt": "instruction", "completion": "output"})
    data_format, _ = parse_rows(raw({"instruction": "I", "output": "O"}), settings=settings, log=ProblemLog())
    assert data_format is DataFormat.PROMPT_COMPLETION


def test_a_template_stands_for_the_prompt() -> None:
    settings = DatasetSettings(train="f", columns={"completion": "answer"}, prompt_template="Q: {question}\n")
    data_format, parsed = parse_rows(raw({"question": "2+2", "answer": "4"}), settings=settings, log=ProblemLog())
    assert data_format is DataFormat.PROMPT_COMPLETION
    assert parsed[0].example.prompt == "Q: 2+2\n"  # type: ignore[union-attr]


def test_mixed_formats_name_the_line_and_how_many() -> None:
    log = ProblemLog()
    text = {"text": "T"}
    parse_rows(raw({"prompt": "P", "completion": "C"}, text, text), settings=DatasetSettings(train="f"), log=log)
    (problem,) = log.of(ProblemKind.INPUT)
    assert str(problem.where) == "f:2"
    assert problem.found == "a row in the text format (and 1 more rows)"
    assert problem.allowed == "prompt_completion as in f:1: one format for all rows"


def test_a_row_that_lacks_a_key_is_bad_not_another_format() -> None:
    log = ProblemLog()
    rows = raw({"prompt": "P", "completion": "C"}, {"prompt": "P"})
    _, parsed = parse_rows(rows, settings=DatasetSettings(train="f"), log=log)
    assert len(parsed) == 1
    (problem,) = log.of(ProblemKind.MALFORMED)
    assert str(problem.where) == "f:2"


def test_an_extra_column_in_some_rows_does_not_make_them_mixed() -> None:
    log = ProblemLog()
    both = {"text": "T", "messages": [{"role": "user", "content": "Q"}]}
    data_format, parsed = parse_rows(raw({"text": "T"}, both), settings=DatasetSettings(train="f"), log=log)
    assert data_format is DataFormat.TEXT
    assert len(parsed) == 2
    assert not log.entries


def test_unknown_keys_are_listed_with_the_formats() -> None:
    log = ProblemLog()
    parse_rows(raw({"question": "Q", "answer": "A"}), settings=DatasetSettings(train="f"), log=log)
    (problem,) = log.of(ProblemKind.INPUT)
    assert problem.found == "the keys question, answer"
    assert "prompt + completion (prompt_completion)" in problem.allowed
    assert "columns" in problem.hint


def test_a_column_no_row_has() -> None:
    log = ProblemLog()
    settings = DatasetSettings(
        train="f", columns={"prompt": "qestion"}, where=Place(file="task.yaml", key=("dataset",))
    )
    parse_rows(raw({"question": "Q", "answer": "A"}), settings=settings, log=log)
    (problem,) = log.of(ProblemKind.INPUT)
    assert str(problem.where) == "task.yaml: dataset.columns.prompt"
    assert problem.allowed == "question, answer"


def test_a_template_for_chat_rows_is_refused() -> None:
    log = ProblemLog()
    settings = DatasetSettings(train="f", prompt_template="Q: {question}\n")
    parse_rows(raw({"text": "T", "question": "Q"}), settings=settings, log=log)
    (problem,) = log.of(ProblemKind.INPUT)
    assert str(problem.where) == "dataset.prompt_template"


def test_a_wrong_name_in_a_template_is_one_problem_of_the_template() -> None:
    log = ProblemLog()
    settings = DatasetSettings(train="f", columns={"completion": "answer"}, prompt_template="Q: {qestion}\n")
    row = {"question": "2+2", "answer": "4"}
    parse_rows(raw(row, row, row), settings=settings, log=log)
    (problem,) = log.of(ProblemKind.INPUT)
    assert str(problem.where) == "dataset.prompt_template"
    assert problem.found == "{qestion}, a column no row has"
    assert (problem.allowed, problem.hint) == ("question, answer", "Did you mean {question}?")
    assert not log.of(ProblemKind.TEMPLATE)
    assert not log.of(ProblemKind.MALFORMED)


def test_settings_list_every_problem_at_once() -> None:
    with pytest.raises(InputError) as caught:
        DatasetSettings(
            train="f",
            validation=1.0,
            format="mesages",  # type: ignore[arg-type]
            columns={"promt": "x"},
            prompt_template="{a.b}",
            on_long_rows="cut",  # type: ignore[arg-type]
            on_bad_rows="ignore",  # type: ignore[arg-type]
            max_length=1,
        )
    found = {str(problem.where): problem for problem in caught.value.problems}
    assert set(found) == {
        "dataset.validation",
        "dataset.format",
        "dataset.columns.promt",
        "dataset.prompt_template",
        "dataset.on_long_rows",
        "dataset.on_bad_rows",
        "dataset.max_length",
    }
    assert "messages" in found["dataset.format"].hint
    assert "prompt" in found["dataset.columns.promt"].hint


def test_rows_of_another_format_than_the_task_names_are_one_problem() -> None:
    rows = raw(*[{"prompt": "P", "completion": "C"}] * 3)
    log = ProblemLog()
    assert note_other_format(rows, settings=DatasetSettings(train="f", format="alpaca"), log=log)
    (problem,) = log.of(ProblemKind.INPUT)
    assert (str(problem.where), problem.hint) == (
        "dataset.format",
        "Write format: prompt_completion, or give other rows.",
    )
    for fine in ("auto", "prompt_completion"):
        assert not note_other_format(rows, settings=DatasetSettings(train="f", format=fine), log=log)
    # rows that differ have problems of their own
    mixed = [*rows, *raw({"text": "T"})]
    assert not note_other_format(mixed, settings=DatasetSettings(train="f", format="alpaca"), log=log)
    misspelt = DatasetSettings(train="f", format="prompt_completion", columns={"completion": "answr"})
    assert not note_other_format(raw({"prompt": "Q", "answer": "A", "text": "T"}), settings=misspelt, log=log)


def test_column_names_are_found_whatever_space_is_around_them() -> None:
    assert guess_columns(["prompt ", " Completion"]) == {"prompt": "prompt ", "completion": " Completion"}


@pytest.mark.parametrize(
    ("row", "hint"),
    [
        ({"prompt": "P", "chosen": "C"}, "There is 'chosen' without 'rejected': add it, or write dataset.columns: "),
        ({"instruction": "I"}, "There is 'instruction' without 'output': "),
    ],
)
def test_a_row_with_half_of_a_format_is_told_the_other_half(row: dict[str, str], hint: str) -> None:
    log = ProblemLog()
    parse_rows(raw(row), settings=DatasetSettings(train="f"), log=log)
    (problem,) = log.of(ProblemKind.INPUT)
    assert problem.hint.startswith(hint)
