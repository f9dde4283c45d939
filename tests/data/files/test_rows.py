"""Rows of files know their line; what cannot be read is noted there and the rest is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.data.files.rows import content_digest
from cohort.data.files.sources import SourceFile
from tests.data.files.row_files import read, written


@pytest.mark.parametrize(
    ("name", "content", "found", "hint"),
    [
        ("a.csv", b"prompt;completion\nP;C\n", "a header separated by semicolons", "delimiter=';'"),
        ("a.csv", b"prompt\tcompletion\nP\tC\n", "a header separated by tabs", "delimiter='\\t'"),
        ("a.jsonl", '{"text": "é"}\n'.encode("utf-16"), "UTF-16 text", "iconv -f UTF-16"),
        ("a.json", '[{"text": "é"}]'.encode("utf-16"), "UTF-16 text", "iconv -f UTF-16"),
    ],
)
def test_a_file_of_another_kind_is_one_problem(
    tmp_path: Path, name: str, content: bytes, found: str, hint: str
) -> None:
    (problem,) = read(written(tmp_path, name, content))[1]
    assert problem.found == found
    assert hint in problem.hint


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_an_empty_file_is_an_input_problem(tmp_path: Path, name: str) -> None:
    for content in ("", "\n \n"):
        _, problems = read(written(tmp_path, name, content))
        assert [(str(problem.where), problem.found) for problem in problems] == [(name, "no rows")]


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    one, two = written(tmp_path, "a.jsonl", "x"), written(tmp_path, "b.jsonl", "x")
    digests = [content_digest(SourceFile(path=path, shown=path.name)) for path in (one, two)]
    assert digests[0] == digests[1]
    two.write_text("y")
    assert content_digest(SourceFile(path=two, shown="b.jsonl")) != digests[0]
