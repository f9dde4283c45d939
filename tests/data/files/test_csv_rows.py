"""CSV files: quotes, line breaks and headers, and what spreadsheets make of them."""

from __future__ import annotations

import csv
from pathlib import Path

from tests.data.files.row_files import read, written


def test_csv_with_quotes_line_breaks_and_long_fields(tmp_path: Path) -> None:
    long = "x" * 200_000
    path = written(tmp_path, "a.csv", f'\ufeffprompt,completion\r\n"a,\n""b""",C\r\n{long},D\r\n')
    limit = csv.field_size_limit()
    result, problems = read(path)
    assert [(str(row.where), row.values["prompt"]) for row in result.rows] == [
        ("a.csv:2", 'a,\n"b"'),
        ("a.csv:4", long),
    ]
    assert not problems
    assert csv.field_size_limit() == limit


def test_bad_csv_rows(tmp_path: Path) -> None:
    _, problems = read(written(tmp_path, "a.csv", "a,b\n1\n1,2\n1,2,3\n"))
    assert [(str(problem.where), problem.found) for problem in problems] == [
        ("a.csv:2", "1 field"),
        ("a.csv:4", "3 fields"),
    ]
    result, problems = read(written(tmp_path, "b.csv", 'a,b\n1,2\n\n"1,2\n'))
    assert len(result.rows) == 1
    assert str(problems[0].where) == "b.csv:4"
    assert problems[0].found.startswith("bad CSV")
