"""Requests on their way: in order, whole, answered once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cohort.core.errors import Problem
from cohort.runs.requests.trial_requests import Answer, RequestKind, RequestSpool, TrialRequest

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_requests_are_taken_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    spool = RequestSpool(tmp_path / "requests")
    assert spool.waiting() == []
    clone = TrialRequest(kind=RequestKind.CLONE, trial_id=7, values={"r": 8}, warm_start=True, who="ada", at="now")
    later = spool.post(clone, at=NOW + timedelta(seconds=1))
    first = spool.post(TrialRequest(kind=RequestKind.STOP, trial_id=3), at=NOW)
    assert spool.waiting() == [first, later]
    assert spool.read(later) == clone


def test_an_answer_removes_the_request_and_is_taken_once(tmp_path: Path) -> None:
    spool = RequestSpool(tmp_path)
    name = spool.post(TrialRequest(kind=RequestKind.STOP, trial_id=3), at=NOW)
    assert spool.take_answer(name) is None
    problem = Problem(where="cohort trials stop", found="trial 3", allowed="another", hint="Choose one.")
    spool.answer(name, Answer(problems=(problem,)))
    assert spool.waiting() == []
    assert spool.take_answer(name) == Answer(problems=(problem,))
    assert spool.take_answer(name) is None
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_request_is_read_as_none(tmp_path: Path) -> None:
    (tmp_path / "a.request").write_text("{")
    (tmp_path / "b.request").write_text('{"kind": "fly"}')
    (tmp_path / ".c.request.partial").write_text("")
    spool = RequestSpool(tmp_path)
    assert spool.waiting() == ["a", "b"]
    assert [spool.read(name) for name in spool.waiting()] == [None, None]
