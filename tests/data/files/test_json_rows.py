"""JSON lines and JSON documents: each row has its line, and each bad one its own problem."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.data.files.row_files import read, written


def test_json_lines_keep_their_line_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", b'\xef\xbb\xbf{"text": "1"}\r\n\n  \n{"text": "\xc3\xa9"}')
    result, problems = read(path)
    assert [(str(row.where), row.values) for row in result.rows] == [
        ("a.jsonl:1", {"text": "1"}),
        ("a.jsonl:4", {"text": "é"}),
    ]
    assert not problems


def test_every_bad_line_is_reported_with_its_number_and_a_hint(tmp_path: Path) -> None:
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


def test_json_nested_too_deep_is_a_problem_not_a_crash(tmp_path: Path) -> None:
    _, problems = read(written(tmp_path, "a.jsonl", "[" * 200_000))
    assert problems[0].found.startswith("bad JSON")


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


@pytest.mark.parametrize(
    ("name", "content", "hint"),
    [
        # as an old Mac ends lines, and as Python's str writes a dict
        ("a.jsonl", b'{"text": "1"}\r{"text": "2"}\r', "these end in carriage returns alone: `tr "),
        ("a.jsonl", b"{'text': '1'}\n", "in Python json.dumps(row), not str(row)."),
        ("a.json", b'{"train": [{"text": "1"}]}', "Rename 'train' to 'data', or write its list alone."),
        ("a.json", b'{"a": 1}', "Put the rows into a list."),
    ],
)
def test_what_other_programs_write_is_told_by_its_cause(tmp_path: Path, name: str, content: bytes, hint: str) -> None:
    _, problems = read(written(tmp_path, name, content))
    assert hint in problems[0].hint
