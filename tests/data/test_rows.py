from __future__ import annotations

import csv
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError, Problem
from cohort.core.place import Place
from cohort.data.columnar import hub_rows
from cohort.data.problems import ProblemKind, ProblemLog
from cohort.data.rows import ReadSource, content_digest, read_source
from cohort.data.sources import HubSource, SourceFile


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
    assert [(row.where, row.values) for row in result.rows] == [
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
    assert problems[1].hint == "Save the file as UTF-8."
    assert all(problem.allowed and problem.hint for problem in problems)


def test_a_document_named_jsonl_says_so(tmp_path: Path) -> None:
    _, problems = read(written(tmp_path, "a.jsonl", json.dumps([{"text": "T"}], indent=1)))
    assert "name the file .json" in problems[0].hint


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
    assert [(row.where, row.values["text"]) for row in result.rows] == [("a.json:2", "[1]"), ("a.json:5", "2")]
    assert [(str(problem.where), problem.found) for problem in problems] == [("a.json:5", "a JSON number")]


def test_json_object_with_data(tmp_path: Path) -> None:
    path = written(tmp_path, "a.json", '{"version": ["data", {"data": 1}],\n"data": [\n{"text": "1"}]}')
    result, _ = read(path)
    assert [(row.where, row.values) for row in result.rows] == [("a.json:3", {"text": "1"})]


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
    assert [(row.where, row.values["prompt"]) for row in result.rows] == [("a.csv:2", 'a,\n"b"'), ("a.csv:4", long)]
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


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is optional")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    rows = [{"messages": [{"role": "user", "content": "Q"}]}, {"messages": [{"role": "assistant", "content": "A"}]}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    result, problems = read(path)
    assert [(row.where, dict(row.values)) for row in result.rows] == [
        ("a.parquet:1", rows[0]),
        ("a.parquet:2", rows[1]),
    ]
    assert not problems
    path.write_bytes(path.read_bytes()[:-20])
    _, problems = read(path)
    assert problems[0].found.startswith("bad parquet")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError) as caught:
        read(written(tmp_path, "a.parquet", b"PAR1"))
    assert caught.value.problems[0].hint == "Run: pip install pyarrow"


def fake_datasets(load: Callable[..., Any]) -> types.ModuleType:
    module = types.ModuleType("datasets")
    module.load_dataset = load  # type: ignore[attr-defined]
    return module


def test_hub_rows_come_from_the_split_that_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load(name: str, config: str | None) -> dict[str, list[dict[str, str]]]:
        calls.append((name, config))
        return {"train": [{"text": "1"}, {"text": "2"}], "test": [{"text": "3"}]}

    monkeypatch.setitem(sys.modules, "datasets", fake_datasets(load))
    source = HubSource(name="openai/gsm8k", config="main")
    assert list(hub_rows(source, split="train", where=Place(text="w"), log=ProblemLog())) == [
        (1, {"text": "1"}),
        (2, {"text": "2"}),
    ]
    log = ProblemLog()
    assert list(hub_rows(source, split="validation", where=Place(text="w"), log=log)) == [(1, {"text": "3"})]
    (note,) = log.entries
    assert (note.kind, str(note.problem.where)) == (ProblemKind.VALIDATED_ON_TEST_SPLIT, "openai/gsm8k:main")
    assert calls == [("openai/gsm8k", "main")] * 2


def test_hub_problems_name_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    source = HubSource(name="org/name", config=None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="Run: pip install datasets"):
        list(hub_rows(source, split="train", where=Place(text="w"), log=ProblemLog()))

    def refuse(name: str, config: str | None) -> None:
        raise FileNotFoundError("no such data set")

    monkeypatch.setitem(sys.modules, "datasets", fake_datasets(refuse))
    with pytest.raises(InputError, match=r"FileNotFoundError: no such data set") as caught:
        list(hub_rows(source, split="train", where=Place(key=("dataset", "train")), log=ProblemLog()))
    assert str(caught.value.problems[0].where) == "dataset.train"
    monkeypatch.setitem(sys.modules, "datasets", fake_datasets(lambda name, config: {"test": []}))
    with pytest.raises(InputError, match="with the splits test"):
        list(hub_rows(source, split="train", where=Place(text="w"), log=ProblemLog()))


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    one, two = written(tmp_path, "a.jsonl", "x"), written(tmp_path, "b.jsonl", "x")
    digests = [content_digest(SourceFile(path=path, shown=path.name)) for path in (one, two)]
    assert digests[0] == digests[1]
    two.write_text("y")
    assert content_digest(SourceFile(path=two, shown="b.jsonl")) != digests[0]
