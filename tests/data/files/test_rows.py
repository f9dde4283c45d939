"""Rows of files know their line; what cannot be read is noted there and the rest is kept."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from cohort.core.errors import Problem
from cohort.core.place import Place
from cohort.data.files.rows import ReadSource, content_digest, read_source
from cohort.data.files.sources import SourceFile
from cohort.data.problems import ProblemKind, ProblemLog


def read(path: Path) -> tuple[ReadSource, list[Problem]]:
    log = ProblemLog()
    result = read_source(
        SourceFile(path=path, shown=path.name), split="train", where=Place(key=("dataset", "train")), log=log
    )
    return result, log.of(*ProblemKind)


def written(tmp_path: Path, name: str, content: bytes | str) -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_json_lines_keep_their_line_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", b'\xef\xbb\xbf{"text": "1"}\r\n\n  \n{"text": "\xc3\xa9"}')
    result, problems = read(path)
    assert [(str(row.where), row.values) for row in result.rows] == [
        ("a.jsonl:1", {"text": "1"}),
        ("a.jsonl:4", {"text": "é"}),
    ]
    assert not problems


def test_every_bad_line_is_reported_with_its_number_and_mend(tmp_path: Path) -> None:
    lines = [b'{"text": "fine"}'] * 30
    lines[16] = b'{"text": "no end'
    lines[18] = b'{"text": "\xff"}'
    lines[20] = b'["a list"]'
    lines[22] = b'"a string"'
    lines[24] = b'{"text": "\\ud83e"}'
    lines[26] = b"null"
    result, problems = read(written(tmp_path, "a.jsonl", b"\n".join(lines)))
    assert len(result.rows) == 24
    assert result.num_unreadable == 6
    assert [str(problem.where) for problem in problems] == [f"a.jsonl:{n}" for n in (17, 19, 21, 23, 25, 27)]
    found = [problem.found for problem in problems]
    assert found[0].startswith("bad JSON (Unterminated string")
    assert found[1] == "the byte 0xff at place 11 of the line"
    assert found[2] == "a JSON array"
    assert found[3] == "a JSON string"
    assert found[4].startswith("half of a surrogate pair")
    assert found[5] == "a JSON null"
    assert problems[1].hint.startswith("Save the file as UTF-8")
    assert all(problem.allowed and problem.hint for problem in problems)


def test_a_document_named_jsonl_says_so(tmp_path: Path) -> None:
    for indent in (None, 1):
        (problem,) = read(written(tmp_path, "a.jsonl", json.dumps([{"text": "T"}, {"text": "U"}], indent=indent)))[1]
        assert problem.found == "one JSON array"
        assert problem.hint == "Name the file .json."


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


def test_json_nested_too_deep_is_a_problem_not_a_crash(tmp_path: Path) -> None:
    _, problems = read(written(tmp_path, "a.jsonl", "[" * 200_000))
    assert problems[0].found.startswith("bad JSON")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_an_empty_file_is_an_input_problem(tmp_path: Path, name: str) -> None:
    for content in ("", "\n \n"):
        _, problems = read(written(tmp_path, name, content))
        assert [(str(problem.where), problem.found) for problem in problems] == [(name, "no rows")]


def test_json_list_knows_the_lines_of_its_rows(tmp_path: Path) -> None:
    path = written(tmp_path, "a.json", '[\n {"text":\n  "[1]"},\n\n {"text": "2"}, 3]')
    result, problems = read(path)
    texts = [(str(row.where), row.values["text"]) for row in result.rows]
    assert texts == [("a.json:2", "[1]"), ("a.json:5: [1]", "2")]
    assert [(str(problem.where), problem.found) for problem in problems] == [("a.json:5: [2]", "a JSON number")]


def test_json_object_with_data(tmp_path: Path) -> None:
    path = written(tmp_path, "a.json", '{"version": ["data", {"data": 1}],\n"data": [\n{"text": "1"}]}')
    result, _ = read(path)
    assert [(str(row.where), row.values) for row in result.rows] == [("a.json:3", {"text": "1"})]


@pytest.mark.parametrize(
    ("content", "line", "found"),
    [
        ('[\n{"text": "1"},\n{"text" "2"}]', 3, "bad JSON (Expecting ':' delimiter"),
        ('{"rows": []}', 1, "an object without a list `data`"),
        ("3", 1, "a JSON number"),
        (b'[\n"\xff"]', 2, "the byte 0xff at place 2 of the line"),
    ],
)
def test_a_bad_json_document(tmp_path: Path, content: str | bytes, line: int, found: str) -> None:
    result, problems = read(written(tmp_path, "a.json", content))
    assert not result.rows
    assert str(problems[0].where) == f"a.json:{line}"
    assert problems[0].found.startswith(found)


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
        ("a.csv:2", "1 fields"),
        ("a.csv:4", "3 fields"),
    ]
    result, problems = read(written(tmp_path, "b.csv", 'a,b\n1,2\n\n"1,2\n'))
    assert len(result.rows) == 1
    assert str(problems[0].where) == "b.csv:4"
    assert problems[0].found.startswith("bad CSV")


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    one, two = written(tmp_path, "a.jsonl", "x"), written(tmp_path, "b.jsonl", "x")
    digests = [content_digest(SourceFile(path=path, shown=path.name)) for path in (one, two)]
    assert digests[0] == digests[1]
    two.write_text("y")
    assert content_digest(SourceFile(path=two, shown="b.jsonl")) != digests[0]


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    lines = ['{"prompt": "a", "completion": "b"}', '{"prompt": "a", "completion": "b", "prompt": "c"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "b.json").write_text(f"[{lines[0]},\n{lines[1]}]")
    for name in ("a.jsonl", "b.json"):
        found, problems = read(tmp_path / name)
        assert [row.values for row in found.rows] == [{"prompt": "a", "completion": "b"}]
        assert [(problem.where.line, problem.found) for problem in problems] == [
            (2, "the key 'prompt' twice in one object")
        ]


def test_rows_of_a_list_on_one_line_are_told_by_their_place(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"text": "a"}, 7, {"text": "b"}]\n')
    found, problems = read(tmp_path / "a.json")
    assert [str(row.where).rpartition("/")[2] for row in found.rows] == ["a.json:1: [0]", "a.json:1: [2]"]
    assert [str(problem.where).rpartition("/")[2] for problem in problems] == ["a.json:1: [1]"]
