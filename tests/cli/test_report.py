"""``cohort report`` writes the page again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import cohort


def test_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run" / "report.html").unlink()
    code, out, _ = cohort(capsys, "report", str(folder / "run"))
    assert code == 0
    page = Path(out.strip()).read_text()
    assert page.startswith("<!")
    assert page.count("moves with it") == page.count("(lora_alpha moves with it)") == 1, "the task writes it as 2r"
