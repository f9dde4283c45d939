"""``cohort evaluate`` on a tiny run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import cohort

Capture = pytest.CaptureFixture[str]


def test_the_best_beside_the_base(folder: Path, capsys: Capture) -> None:
    words = ("evaluate", folder / "run", "--data", folder / "train.jsonl", "--metric", "exact_match")
    code, out, err = cohort(capsys, *words, "--max-new-tokens", "3")
    assert (code, "Traceback" in err) == (0, False)
    assert f"24 of {folder / 'train.jsonl'}" in out
    assert "exact_match 0 (95 %: 0 to 0.138, 24 rows)" in out
    assert "minus base" in out
    code, out, _ = cohort(capsys, *words, "--max-new-tokens", "3", "--trials", "0,1", "--json")
    found = json.loads(out)
    assert [entry["trial"] for entry in found["results"]] == [0, 1, None]
    assert found["results"][0]["values"]["loss"]["num_rows"] == found["rows"] == 24
    assert set(found["results"][1]["first_minus_this"]) == {"loss", "exact_match"}


def test_what_is_wrong_is_named(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    code, _, err = cohort(capsys, "evaluate", folder / "run", "--data", tmp_path / "no.jsonl")
    assert (code, "Traceback" in err) == (2, False)
    assert "command line --data" in err
    code, _, err = cohort(capsys, "evaluate", folder / "run", "--data", folder / "train.jsonl", "--trials", "7")
    assert code == 2
    assert "best, all, or some of 0, 1, 2, 3" in err
