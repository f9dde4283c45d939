"""The note that an adapter is of an unfinished run."""

from __future__ import annotations

import pytest

from cohort.adapter_files.choose import BestSoFar
from cohort.cli.arguments.options import report_so_far


def test_an_unfinished_run_is_reported_on_stderr_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_so_far(BestSoFar(trial_id=3, step=40, note="not finished")) == {"trial_id": 3, "step": 40}
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "note: not finished\n")


def test_a_finished_run_is_not_remarked_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_so_far(None) is None
    assert capsys.readouterr().err == ""
