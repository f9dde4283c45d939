"""Requests are taken up between steps: those of this process at once, those of others with a save before the answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.core.clock import ManualClock
from cohort.core.errors import InputError, Problem, StorageFullError
from cohort.engine.train.requests.trial_control import TrialControl
from cohort.runs.requests.trial_requests import Answer, RequestKind, RequestSpool, TrialRequest
from tests.engine.train.fakes import Notes

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PROBLEM = Problem(where="cohort trials stop", found="trial 9", allowed="0 to 3", hint="List them.")


def stop(trial_id: int, *, who: str = "ada") -> TrialRequest:
    return TrialRequest(kind=RequestKind.STOP, trial_id=trial_id, who=who)


class Controlled:
    """A run of four trials that keeps what is done to it, in order."""

    def __init__(self, folder: Path) -> None:
        self.spool = RequestSpool(folder)
        self.clock, self.watcher = ManualClock(), Notes()
        self.did: list[str] = []
        self.recorded: set[int] = set()
        self.is_full = False
        run: Any = SimpleNamespace(
            clock=self.clock, watcher=self.watcher, directory=SimpleNamespace(requests=folder), store=None
        )
        self.control = TrialControl(
            run, carry_out=self._carry_out, is_done=lambda request: request.trial_id in self.recorded, save=self._save
        )

    def _carry_out(self, request: TrialRequest) -> Answer:
        if request.trial_id == 9:
            raise InputError(PROBLEM)
        self.did.append(request.text)
        return Answer(text=f"did {request.text}", trial_id=request.trial_id)

    def _save(self) -> None:
        if self.is_full:
            raise StorageFullError("the disk is full")
        self.did.append("save")

    def post(self, trial_id: int, *, seconds: float = 0) -> str:
        return self.spool.post(stop(trial_id), at=NOW + timedelta(seconds=seconds))


@pytest.fixture
def run(tmp_path: Path) -> Controlled:
    return Controlled(tmp_path)


def test_requests_of_others_are_saved_before_they_are_answered(run: Controlled) -> None:
    names = [run.post(trial_id, seconds=trial_id) for trial_id in (1, 9, 2)]
    run.control.take_up()
    assert run.did == ["stop trial 1", "stop trial 2", "save"]
    # sorted by time: 1, 2, 9
    assert run.spool.take_answer(names[0]) == Answer(text="did stop trial 1", trial_id=1)
    assert run.spool.take_answer(names[1]) == Answer(problems=(PROBLEM,))
    assert run.spool.waiting() == []


def test_what_was_only_refused_is_not_saved(run: Controlled) -> None:
    name = run.post(9)
    (Path(run.spool._folder) / "b.request").write_text("{")
    run.control.take_up()
    assert run.did == []
    assert run.spool.take_answer(name) == Answer(problems=(PROBLEM,))
    unreadable = run.spool.take_answer("b")
    assert unreadable is not None
    assert "could not be read" in unreadable.problems[0].found


def test_what_is_not_saved_is_not_answered_and_is_taken_up_after_a_resume(run: Controlled, tmp_path: Path) -> None:
    name, run.is_full = run.post(1), True
    with pytest.raises(StorageFullError):
        run.control.take_up()
    assert (run.spool.take_answer(name), run.spool.waiting()) == (None, [name])
    resumed = Controlled(tmp_path)
    resumed.control.take_up()
    assert resumed.did == ["stop trial 1", "save"]


def test_what_was_saved_but_not_answered_is_not_done_twice(run: Controlled) -> None:
    name, run.recorded = run.post(1), {1}
    run.control.take_up()
    assert run.did == ["save"]
    assert run.spool.take_answer(name) == Answer(text="done", trial_id=1)


def test_the_folder_is_looked_into_twice_a_second(run: Controlled) -> None:
    run.control.take_up()
    run.post(1)
    run.clock.advance(0.4)
    run.control.take_up()
    assert run.did == []
    run.clock.advance(0.1)
    run.control.take_up()
    assert run.did == ["stop trial 1", "save"]


def test_requests_of_this_process_are_done_at_each_step_without_a_save(run: Controlled) -> None:
    run.control.take_up()
    for trial_id in (3, 9, 1):
        run.control.submit(stop(trial_id, who="on_step"))
    run.control.take_up()
    assert run.did == ["stop trial 3", "stop trial 1"]
    assert run.watcher.notes == [f"warning: on_step asked to stop trial 9: {PROBLEM}"]
    run.control.take_up()
    assert len(run.did) == 2


def test_what_comes_after_the_last_trial_is_refused_and_old_answers_are_removed(
    run: Controlled, tmp_path: Path
) -> None:
    name = run.post(1)
    run.control.close()
    answer = run.spool.take_answer(name)
    assert answer is not None
    assert "all of its trials have ended" in answer.problems[0].found
    assert run.did == []
    run.spool.answer("left", Answer(text="nobody waits for this"))
    assert Controlled(tmp_path).spool.take_answer("left") is None
