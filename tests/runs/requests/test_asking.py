"""Requests from another process: what is heard of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.core.errors import InputError
from cohort.runs.directory import RunDirectory
from cohort.runs.requests import asking
from cohort.runs.requests.trial_requests import Answer, RequestKind, RequestSpool, TrialRequest
from cohort.runs.store import RunStore


class EndingRun:
    """The lock of a run that answers all requests in its last moment."""

    def __init__(self, spool: RequestSpool) -> None:
        self._spool, self._looks = spool, 0

    def holder(self) -> str | None:
        self._looks += 1
        if self._looks == 1:
            return "process 1"
        for name in self._spool.waiting():
            self._spool.answer(name, Answer(text="trial 3 is stopped", trial_id=3))
        return None


def test_an_answer_of_a_run_s_last_moment_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    directory.database.touch()
    lock = EndingRun(RequestSpool(directory.requests))
    monkeypatch.setattr(asking, "check_all", lambda *_: None)
    monkeypatch.setattr(RunDirectory, "lock", lambda _: lock)
    request = TrialRequest(kind=RequestKind.STOP, trial_id=3)
    asked = asking.ask(directory.root, request, wait_seconds=10.0, clock=ManualClock())
    assert asked.answer == Answer(text="trial 3 is stopped", trial_id=3)
    assert not asked.is_training


def test_a_run_that_has_not_begun_takes_no_request(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    directory.task_file.write_text("")
    request = TrialRequest(kind=RequestKind.STOP, trial_id=0)
    with directory.lock():
        with pytest.raises(InputError, match="has not begun to train"):
            asking.ask(directory.root, request, wait_seconds=0, clock=ManualClock())
        # a kill may leave a record without its trials and its task
        RunStore.create(directory.database).close()
        with pytest.raises(InputError, match="has not begun to train"):
            asking.ask(directory.root, request, wait_seconds=0, clock=ManualClock())
    assert not directory.requests.exists()
