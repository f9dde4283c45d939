"""Parquet files and hub data sets through optional packages, which are named where they are missing."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.data.files.columnar import hub_rows
from cohort.data.files.rows import ReadSource, read_source
from cohort.data.files.sources import HubSource, SourceFile
from cohort.data.problems import ProblemKind, ProblemLog


def read(path: Path) -> tuple[ReadSource, list[Problem]]:
    log = ProblemLog()
    result = read_source(
        SourceFile(path=path, shown=path.name), split="train", where=Place(key=("dataset", "train")), log=log
    )
    return result, log.of(*ProblemKind)


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is optional")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    rows = [{"messages": [{"role": "user", "content": "Q"}]}, {"messages": [{"role": "assistant", "content": "A"}]}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    result, problems = read(path)
    assert [(str(row.where), dict(row.values)) for row in result.rows] == [
        ("a.parquet:1", rows[0]),
        ("a.parquet:2", rows[1]),
    ]
    assert not problems
    path.write_bytes(path.read_bytes()[:-20])
    _, problems = read(path)
    assert problems[0].found.startswith("bad parquet")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(InputError) as caught:
        read(path)
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
