"""The device's memory in a session: passes of all tasks are watched, and each has its part for parked states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cohort.core.clock import Clock
from cohort.engine.session_task import SessionTask
from cohort.engine.train.supervisor import Supervisor
from cohort.memory.watch import MemoryWatch
from cohort.prepare.preparation import Preparation
from cohort.ranks.training_executor import TrainingExecutor
from cohort.runs.fact_groups import PassFacts

__all__ = ["SessionMemory"]


class SessionMemory:
    """Watches passes, and divides what the device has for the states of parked trials."""

    def __init__(
        self,
        executor: TrainingExecutor,
        largest: Preparation,
        training: Mapping[Supervisor, SessionTask],
        ended: Sequence[SessionTask],
        writing: Sequence[SessionTask],
        *,
        clock: Clock,
    ) -> None:
        """Begin without a task.

        Args:
            executor: Whose passes are watched.
            largest: The task for which it was built.
            training, ended, writing: Tasks that train, whose trials have ended, and whose spare checkpoints are on
                their way; these change while the session runs.
            clock: Measures time.
        """
        self._training, self._ended, self._writing = training, ended, writing
        self._device_bytes = largest.sizes.device_state_bytes
        # among which the device's memory was last divided
        self._sharing: Sequence[SessionTask] = ()
        there = [task.run.run for task in training.values()]
        # a resumed run keeps the budgets that an earlier process lowered; new ones have none
        before = there[0].store.reader.facts().passes if len(there) == 1 else PassFacts()
        self._watch = MemoryWatch(
            executor, largest.memory, before=before, record=self._record, note=self._note, clock=clock
        )

    def at_boundary(self) -> None:
        """Take in what the passes of the last steps took, and settle who has how much for parked states."""
        # one whose checkpoints are on their way keeps its part until they are written
        sharing = (*self._training.values(), *self._writing)
        if sharing != self._sharing:
            self._sharing = sharing
            for task in self._training.values():
                task.run.run.state_store.limit_device(self._device_bytes // len(sharing))
        self.took()

    def took(self) -> None:
        """Take in what the passes of the last steps took."""
        self._watch.took()

    def record(self) -> None:
        """Record what passes took up to now."""
        self._watch.record()

    def _record(self, passes: PassFacts) -> None:
        for task in (*self._training.values(), *self._ended):
            task.run.run.store.set_facts(passes=passes)

    def _note(self, line: str) -> None:
        for task in self._training.values():
            task.conditions.watcher.note(line)
