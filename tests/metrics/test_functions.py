"""Metric functions of the user: found, checked, called and told apart."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cohort.metrics import MetricFailedError, ReferenceRow, build_metrics, score_texts
from cohort.metrics.functions import FunctionRefusedError, load_function, spelled_function


def plain(prediction: str, row: Any) -> float:
    return float(prediction == row["completion"])


def _written(folder: Path, code: str, name: str = "mine.py") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code, encoding="utf-8")
    return f"{path}:score"


_ROW = ReferenceRow(where="rows.jsonl:7", prompt="2+2", reference="4", columns='{"level": [3], "prompt": "old"}')


def test_a_function_gets_the_prediction_and_its_own_copy_of_the_row(tmp_path: Path) -> None:
    code = "def score(prediction, row):\n    row['level'].append(1)\n    return sum(row['level']) + len(row['prompt'])"
    metrics = build_metrics([_written(tmp_path, code)])
    assert score_texts(metrics, ["a", "b"], [_ROW, _ROW]) == {"score": [7.0, 7.0]}


def test_two_files_of_one_name_are_two_modules_that_import_what_lies_next_to_them(tmp_path: Path) -> None:
    for number in (1, 2):
        folder = tmp_path / str(number)
        _written(folder, f"VALUE = {number}", f"part{number}.py")
        spelled = _written(folder, f"from part{number} import VALUE\ndef score(prediction, row): return VALUE")
        assert load_function(spelled).score("", {}) == number


def test_an_edited_file_is_read_again(tmp_path: Path) -> None:
    for number in (1, 2):
        place = _written(tmp_path, f"def score(a, b): return {number}")
        # of the same size and in the same second, as when a cell of a notebook is run again at once
        os.utime(place.rpartition(":")[0], (1_700_000_000, 1_700_000_000))
        assert load_function(place).score("", {}) == number


def test_a_module_of_a_package_imports_its_siblings(tmp_path: Path) -> None:
    _written(tmp_path / "own_package", "", "__init__.py")
    _written(tmp_path / "own_package", "VALUE = 5", "part.py")
    spelled = _written(tmp_path / "own_package", "from .part import VALUE\ndef score(prediction, row): return VALUE")
    assert load_function(spelled).score("", {}) == 5


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("def other(prediction, row): return 1", "no score in mine.py"),
        ("def score(prediction): return 1", r"score\(prediction\), which does not take two arguments"),
        ("def score(a, b, *, c): return 1", "does not take two arguments"),
        ("score = 3", "not a function"),
        ("async def score(a, b): return 1", "does not return a number"),
        ("import no_such_module", "cannot be imported .*no_such_module"),
        ("def score(", "cannot be imported .*SyntaxError"),
        ("raise SystemExit(3)", "cannot be imported .*SystemExit"),
    ],
)
def test_what_cannot_be_a_metric_is_refused(tmp_path: Path, code: str, why: str) -> None:
    with pytest.raises(FunctionRefusedError, match=why):
        load_function(_written(tmp_path, code))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("return 1 / 0", r"raised ZeroDivisionError: division by zero \(mine.py:2\)"),
        # the user's line, not that of the library it called
        ("import json; return json.loads(prediction)", r"raised JSONDecodeError: .* \(mine.py:2\)"),
        ("return float(prediction)", "raised ValueError"),
        ("return float('nan')", "returned nan, which is no finite number"),
        ("return None", "returned None"),
        ("return '1'", "returned '1'"),
        ("return 1j", "returned 1j"),
    ],
)
def test_a_failing_function_is_named_with_row_and_message(tmp_path: Path, line: str, why: str) -> None:
    metrics = build_metrics([_written(tmp_path, f"def score(prediction, row):\n    {line}")])
    with pytest.raises(MetricFailedError, match=rf"the metric score .*{why}.*; row rows.jsonl:7, prediction 'four'"):
        score_texts(metrics, ["four"], [_ROW])


@pytest.mark.parametrize("value", [True, 3, np.float32(3), np.int64(3), np.array(3.0)])
def test_numbers_of_other_libraries_are_numbers(monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    monkeypatch.setattr(f"{__name__}.plain", lambda prediction, row: value)
    assert load_function(f"{__name__}:plain").score("", {}) == float(value)


def test_a_function_is_known_by_its_code_not_by_its_comments(tmp_path: Path) -> None:
    identities = [
        load_function(_written(tmp_path / str(place), code)).identity
        for place, code in enumerate(
            [
                "HALF = 0.5\ndef score(prediction, row):\n    return HALF",
                "# a comment\nHALF = 0.5\ndef score(prediction, row): return (HALF)",
                "HALF = 0.6\ndef score(prediction, row):\n    return HALF",
            ]
        )
    ]
    assert identities[0] == identities[1] != identities[2]


def test_a_function_from_python_needs_a_name_that_finds_it_again() -> None:
    assert load_function(spelled_function(plain)).score("4", _ROW.values()) == 1

    def inner(prediction: str, row: Any) -> float:
        return 0.0

    for function in (inner, lambda prediction, row: 0.0):
        with pytest.raises(FunctionRefusedError, match="cannot be found again"):
            spelled_function(function)
    with pytest.raises(FunctionRefusedError) as error:
        load_function("__main__:no_such_function")
    assert "script or notebook" in error.value.hint
