"""What the head notices and decides: written to the queue's database, and told to those who watch."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from cohort.core.clock import Clock
from cohort.core.units import format_duration
from cohort.scheduling.placement.records import PlacementPlan, SolverStatus
from cohort.task_queue.progress import QueueWatcher
from cohort.task_queue.records import TaskDecision
from cohort.task_queue.replanner import Changes
from cohort.task_queue.store import QueueStore

__all__ = ["QueueLog"]

# fact of the queue: its clock when a head last was there
_LAST_HEAD = "last_head_seconds"
_PRESENCE_SECONDS = 5.0


class QueueLog:
    """The queue's own clock and its log."""

    def __init__(self, store: QueueStore, *, clock: Clock, watcher: QueueWatcher) -> None:
        """Take up the log of a queue.

        Args:
            store: Of the queue.
            clock: The queue's seconds count from its first head on, stops included.
            watcher: Told of every decision but plans' details.
        """
        self._store, self._clock, self._watcher = store, clock, watcher
        self._opened = clock.monotonic()
        self._planned = {task.name for task in store.tasks() if task.planned_start is not None}
        facts = store.facts()
        if "began_at" not in facts:
            facts["began_at"] = clock.now().isoformat()
            store.set_facts(facts)
        self._before = max((clock.now() - datetime.fromisoformat(facts["began_at"])).total_seconds(), 0.0)
        # None on a queue's first head
        self.last_head_seconds: float | None = facts.get(_LAST_HEAD)
        self._noted_presence = float("-inf")

    @property
    def now(self) -> float:
        """Seconds of the queue's clock."""
        return self._before + self._clock.monotonic() - self._opened

    def note_presence(self, *, at_once: bool = False) -> None:
        """Write that a head is there, every few seconds: the next one knows from it how long there was none."""
        if at_once or self.now - self._noted_presence >= _PRESENCE_SECONDS:
            self._noted_presence = self.now
            self._store.set_facts({_LAST_HEAD: self.now})

    def decide(
        self,
        kind: str,
        *,
        task: str = "",
        text: str,
        numbers: Mapping[str, Any] | None = None,
        is_told: bool = True,
    ) -> None:
        """Record a decision, and tell it unless it is of no interest to those who watch."""
        self._store.record(TaskDecision(seconds=self.now, kind=kind, task=task, text=text, numbers=numbers or {}))
        if is_told:
            self._watcher.note(f"[{format_duration(self.now)}] {task + ': ' if task else ''}{text}")

    def planned(self, changes: Changes, *, is_told: bool = True) -> None:
        """Record a plan with all its numbers; tell it unless it only moves times."""
        plan = changes.plan
        if plan is None:
            return
        for placement in plan.placements:
            if placement.task_id not in self._planned:
                self._planned.add(placement.task_id)
                self._store.update(
                    placement.task_id,
                    planned_slot=placement.gpu_ids[0],
                    planned_start=self.now + placement.start_seconds,
                    planned_end=self.now + placement.end_seconds,
                )
        text = f"{changes.reason}: {plan_in_words(plan)}"
        self._store.record(
            TaskDecision(seconds=self.now, kind="plan", task="", text=text, numbers=plan_as_json(plan, now=self.now))
        )
        if is_told:
            self._watcher.note(f"[{format_duration(self.now)}] {text}")


def plan_in_words(plan: PlacementPlan) -> str:
    """Return what a plan promises, in one line."""
    proven = {
        SolverStatus.OPTIMAL: "no plan is shorter",
        SolverStatus.FEASIBLE: f"at most {100 * plan.gap:.0f} % above the best",
        SolverStatus.HEURISTIC: f"{plan.policy}, at most {100 * plan.gap:.0f} % above the best",
    }[plan.status]
    return f"all tasks end in {format_duration(plan.makespan_seconds)} ({proven})"


def plan_as_json(plan: PlacementPlan, *, now: float) -> dict[str, Any]:
    """Return a plan in seconds of the queue's clock."""
    return {
        "status": plan.status.value,
        "policy": plan.policy,
        "end_seconds": now + plan.makespan_seconds,
        "lower_bound_seconds": now + plan.lower_bound_seconds,
        "placements": [
            {
                "task": placement.task_id,
                "slots": list(placement.gpu_ids),
                "start_seconds": now + placement.start_seconds,
                "end_seconds": now + placement.end_seconds,
            }
            for placement in plan.placements
        ],
    }
