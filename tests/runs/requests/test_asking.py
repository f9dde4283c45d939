"""Requests from another process: what is heard of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.runs.directory import RunDirectory
from cohort.runs.requests import asking
from cohort.runs.requests.trial_requests import Answer, RequestKind, RequestSpool, TrialRequest


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
