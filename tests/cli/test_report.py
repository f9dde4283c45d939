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


def test_a_watched_page_of_a_finished_run_is_written_once_and_never_loads_itself_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = cohort(capsys, "report", str(folder / "run"), "--watch")
    assert code == 0
    assert 'http-equiv="refresh"' not in Path(out.strip()).read_text()
