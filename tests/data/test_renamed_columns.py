"""Problems of a row name columns as the file does."""

from __future__ import annotations

from typing import Any

import pytest

from cohort.core.errors import Problem
from cohort.core.source_location import Place
from cohort.data.files.formats import parse_rows
from cohort.data.files.rows import RawRow
from cohort.data.problems import ProblemLog
from cohort.data.settings import DatasetSettings

SETTINGS = DatasetSettings(
    train="train.jsonl", format="prompt_completion", columns={"prompt": "question", "completion": "answer"}
)


def problem_of(values: dict[str, Any]) -> Problem:
    good = RawRow(where=Place(file="train.jsonl", line=1), values={"question": "q", "answer": "a"})
    log = ProblemLog()
    parse_rows([good, RawRow(where=Place(file="train.jsonl", line=2), values=values)], settings=SETTINGS, log=log)
    (entry,) = log.entries
    return entry.problem


@pytest.mark.parametrize(
    ("values", "found", "hint"),
    [
        ({"question": "c"}, "no 'answer' among the keys question", "Add 'answer' to the row, or remove the row."),
        ({"question": 3, "answer": "a"}, "question: 3 (int)", "Write the value as text: in JSON in quotes."),
        ({"question": "c", "answer": " "}, "an empty 'answer'", "Fill it in, or remove the row."),
    ],
)
def test_messages_name_the_files_columns(values: dict[str, Any], found: str, hint: str) -> None:
    problem = problem_of(values)
    assert (str(problem.where), problem.found, problem.hint) == ("train.jsonl:2", found, hint)
    assert "completion" not in str(problem)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"chat": [{"role": "usr", "content": "c"}]}, "the role 'usr' in chat[0]"),
        ({"chat": "words"}, "chat: 'words'"),
        ({"turns": []}, "no 'chat' among the keys turns"),
        ({"chat": [{"role": "assistant", "content": "c"}], "functions": "f("}, "functions: 'f('"),
    ],
)
def test_messages_inside_a_list_name_the_files_column(values: dict[str, Any], found: str) -> None:
    settings = DatasetSettings(train="f", format="messages", columns={"messages": "chat", "tools": "functions"})
    log = ProblemLog()
    parse_rows([RawRow(where=Place(file="f", line=1), values=values)], settings=settings, log=log)
    assert found in [entry.problem.found for entry in log.entries if str(entry.problem.where) == "f:1"]
