"""``cohort generate`` on a tiny run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import cohort


def test_generate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("generate", str(folder / "run"), "--prompt", "1+1=", "--max-new-tokens", "5", "--json")
    code, out, _ = cohort(capsys, *words)
    assert code == 0
    assert json.loads(out)[0]["prompt"] == "1+1="
    assert cohort(capsys, *words)[1] == out, "the likeliest tokens are the same each time"
