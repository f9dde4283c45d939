"""Tasks of a session whose trials have all ended: their results are written, and then what no result needs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from cohort.core.errors import RankLostError, StorageFullError
from cohort.engine.session_task import SessionTask

__all__ = ["EndedTasks"]


class EndedTasks:
    """The tasks of one session that train no more.

    Attributes:
        waiting: Their results are to be written.
        writing: They have results, and their spare checkpoints are on their way.
    """

    def __init__(self, on_done: Callable[[SessionTask], None]) -> None:
        """Call ``on_done`` with each task whose spare checkpoints are written."""
        self._on_done = on_done
        self.waiting: list[SessionTask] = []
        self.writing: list[SessionTask] = []

    def settle_spares(self) -> None:
        """Let go of tasks whose spare checkpoints are written."""
        for task in [*self.writing]:
            if task.spares.is_done():
                self.writing.remove(task)
                self._on_done(task)

    def wait_for_spares(self) -> None:
        # one Ctrl-C is for all tasks
        if not all(task.spares.wait() for task in self.writing):
            self.give_up_spares()

    def give_up_spares(self) -> None:
        for task in self.writing:
            task.spares.give_up()

    @contextlib.contextmanager
    def completing(self) -> Iterator[None]:
        """Complete the last checkpoints of tasks that an error inside keeps from being finished."""
        try:
            yield
        except BaseException:
            for task in self.waiting:
                # neither a full disk nor a rank that had a part of a state is a reason to hide the error
                with contextlib.suppress(StorageFullError, RankLostError):
                    task.run.supervisor.complete_last_checkpoint()
            raise
