"""What a run shows when it is called from Python."""

from __future__ import annotations

import io
import logging
import sys
from types import SimpleNamespace

import pytest

from cohort.api.watchers import LoggingWatcher, ProgressBar, is_interactive, watching
from cohort.engine.train.watching.progress import RunProgress
from cohort.runs.records import TrialRecord
from cohort.tuning.trial_status import TrialStatus


def progress(*, done: int, status: TrialStatus = TrialStatus.RUNNING) -> RunProgress:
    trials = [
        TrialRecord(trial_id=0, parameters={}, seed=0, status=TrialStatus.RUNNING, steps_done=done, planned_steps=10),
        TrialRecord(
            trial_id=1,
            parameters={},
            status=status,
            steps_done=4,
            planned_steps=10,
            seed=0,
            best_step=4,
            best_value=1.25,
            best_loss=1.25,
        ),
    ]
    return RunProgress(phase="training", trials=tuple(trials))


def test_notes_are_logged_and_warnings_are_warnings(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="cohort"):
        watcher = LoggingWatcher("mine")
        watcher.update(progress(done=1))
        watcher.update(progress(done=2))
        watcher.note("trial 1 completed its 4 steps")
        watcher.note("warning: torch 3 (was 2)")
    own = [record for record in caplog.records if record.name.startswith("cohort")]
    assert [(record.levelname, record.getMessage()) for record in own] == [
        ("INFO", "mine: training"),
        ("INFO", "mine: trial 1 completed its 4 steps"),
        ("WARNING", "mine: torch 3 (was 2)"),
    ]


def test_nothing_is_shown_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with watching(progress=None) as watcher:
        watcher.update(progress(done=1))
        watcher.note("warning: careful")
    assert capsys.readouterr() == ("", "")


def test_the_bar_counts_steps_and_has_no_escape_sequences() -> None:
    stream = io.StringIO()
    bar = ProgressBar("mine", stream=stream)
    bar.update(RunProgress(phase="loading the model"))
    bar.update(progress(done=2))
    bar.update(progress(done=6, status=TrialStatus.STOPPED))
    bar.close()
    shown = stream.getvalue()
    assert "mine: training" in shown
    assert "6/20" in shown
    # the six steps that the stopped trial will not do are off the total
    assert "10/14" in shown
    assert "best validation loss 1.25, trial 1" in shown
    assert "\x1b" not in shown


def test_a_notebook_is_known_by_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_interactive(), "pytest's stderr is no terminal"
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert is_interactive()
    del shell.kernel
    assert not is_interactive(), "IPython in a terminal's pipe"
