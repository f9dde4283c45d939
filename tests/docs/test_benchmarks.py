"""`make bench` names benchmarks that are there, and result files have what the README's table needs."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from benchmarks.run import QUESTIONS
from tests.conftest import REPOSITORY

RESULTS = sorted((REPOSITORY / "benchmarks" / "results").glob("*.json"))


@pytest.mark.parametrize("name", sorted({name for name, _, _ in QUESTIONS}))
def test_every_benchmark_is_there(name: str) -> None:
    assert (REPOSITORY / "benchmarks" / f"{name}.py").is_file()


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_result_files_are_complete(path: Path) -> None:
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["question"].endswith("?")
    date.fromisoformat(result["date"])
    assert "python" in result["command"]
    assert result["machine"]
    assert "torch" in result["versions"]
    assert result["rows"]
    assert all(isinstance(value, int | float) for value in result["headline"].values())
