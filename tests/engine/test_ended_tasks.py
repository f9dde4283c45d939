"""Tasks of a session whose trials have all ended: what is still to be written, and when it is left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cohort.engine.ended_tasks import EndedTasks


def test_one_ctrl_c_leaves_out_what_is_still_to_be_written_of_all_tasks() -> None:
    ended, given_up = EndedTasks(lambda _: None), list[int]()

    class Spares:
        def __init__(self, number: int) -> None:
            self.number = number

        def wait(self) -> bool:
            assert self.number == 0, "the others are not waited for"
            return False

        def give_up(self) -> None:
            given_up.append(self.number)

    tasks: Any = [SimpleNamespace(spares=Spares(number)) for number in range(3)]
    ended.writing += tasks
    ended.wait_for_spares()
    assert set(given_up) == {0, 1, 2}


def test_a_task_is_let_go_of_once_its_spares_are_written() -> None:
    done: list[Any] = []
    ended = EndedTasks(done.append)
    first, second = (SimpleNamespace(spares=SimpleNamespace(is_done=lambda own=own: own)) for own in (True, False))
    ended.writing += [first, second]  # type: ignore[list-item]
    ended.settle_spares()
    assert done == [first]
    assert ended.writing == [second]
