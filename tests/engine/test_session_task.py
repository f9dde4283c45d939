"""A task that does not join gives its run back, and an error of it can be carried by results."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cohort.core.errors import CohortError, RunStateError
from cohort.engine.session_task import SessionTask, task_error


def test_a_run_that_was_to_continue_is_unlocked_and_a_new_one_holds_nothing() -> None:
    left: list[str] = []

    @contextlib.contextmanager
    def held() -> Iterator[None]:
        yield
        left.append("unlocked")

    nothing: Any = None
    new = SessionTask(name="a", directory=Path("runs/a"), preparation=nothing, conditions=nothing)
    new.give_back()
    assert left == []
    assert new.threads is None
    ready: Any = held()
    going_on = SessionTask(name="a", directory=Path("runs/a"), preparation=nothing, conditions=nothing, ready=ready)
    assert not going_on.has_joined
    assert left == []
    going_on.give_back()
    assert left == ["unlocked"]


def test_an_error_of_another_library_is_named_with_its_run_and_stays_the_cause() -> None:
    own = CohortError("the disk is full")
    assert task_error(Path("runs/a"), own, "begin") is own
    other = ValueError("no\nsuch thing")
    found = task_error(Path("runs/a"), other, "go on")
    assert isinstance(found, RunStateError)
    assert str(found).startswith("runs/a: the task could not go on: ")
    assert found.__cause__ is other
