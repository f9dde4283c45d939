"""The log of a queue: everything the dispatcher decides, written to the database and shown to its watcher."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cohort.core.clock import Clock
from cohort.core.units import format_duration
from cohort.scheduling.placement.records import PlacementPlan, SolverStatus
from cohort.scheduling.placement.sharing import Joined
from cohort.task_queue.last_seen import last_seen_seconds
from cohort.task_queue.progress import QueueWatcher
from cohort.task_queue.records import TaskDecision
from cohort.task_queue.replanner import Changes
from cohort.task_queue.store import QueueStore

__all__ = ["QueueLog", "plan_as_json", "plan_in_words"]

# how far off the end of a killed dispatcher may be recorded; each note is a synchronous write
_PRESENCE_SECONDS = 5.0


class QueueLog:
    """The queue's own clock and its log."""

    def __init__(self, store: QueueStore, *, clock: Clock, watcher: QueueWatcher, directory: Path) -> None:
        """Continue the log of a queue.

        Args:
            clock: The queue's seconds count from its first dispatcher on, pauses included.
            watcher: Shown every decision, but no details of plans.
            directory: The queue's.
        """
        self._store, self._clock, self._watcher = store, clock, watcher
        self._opened = clock.monotonic()
        self._planned = {task.name for task in store.tasks() if task.planned_start is not None}
        facts = store.facts()
        began_at = facts.began_at
        if began_at is None:
            began_at = clock.now()
            store.set_facts(began_at=began_at)
        # the wall clock bridges the time between two dispatchers, the monotonic clock measures within one
        self._before = max((clock.now() - began_at).total_seconds(), 0.0)
        # None for a queue's first dispatcher; a file that was copied since has the time of its copy
        last = last_seen_seconds(facts, store.tasks(), directory=directory)
        self.last_dispatcher_seconds = None if last is None else min(last, self._before)
        self._noted_presence = float("-inf")

    @property
    def now(self) -> float:
        """Seconds of the queue's clock."""
        return self._before + self._clock.monotonic() - self._opened

    def note_presence(self, *, at_once: bool = False) -> None:
        """Write every few seconds that a dispatcher is there: the next one knows from it how long there was none."""
        if at_once or self.now - self._noted_presence >= _PRESENCE_SECONDS:
            self._noted_presence = self.now
            self._store.set_facts(last_dispatcher_seconds=self.now)

    def decide(
        self, kind: str, *, task: str = "", text: str, numbers: Mapping[str, Any] | None = None, is_shown: bool = True
    ) -> None:
        """Record a decision, and show it unless it is of no interest to those who watch."""
        self._store.record(TaskDecision(seconds=self.now, kind=kind, task=task, text=text, numbers=numbers or {}))
        if is_shown:
            self._watcher.note(f"[{format_duration(self.now)}] {task + ': ' if task else ''}{text}")

    def planned(self, changes: Changes, *, is_shown: bool = True) -> None:
        """Record a plan with all its numbers; show it unless it only moves times."""
        plan = changes.plan
        if plan is None:
            return
        for placement in plan.placements:
            # the first plan that held a task is the one its real times are compared with
            if placement.task_id not in self._planned:
                self._planned.add(placement.task_id)
                self._store.update(
                    placement.task_id,
                    planned_slot=placement.gpu_ids[0],
                    planned_start=self.now + placement.start_seconds,
                    planned_end=self.now + placement.end_seconds,
                )
        text = f"{changes.reason}: {plan_in_words(plan)}"
        self.decide("plan", text=text, numbers=plan_as_json(plan, now=self.now), is_shown=is_shown)

    def joined(self, joined: Joined) -> None:
        """Record that a task joins the executor of others, and what that is predicted to save."""
        saved = max(joined.seconds_apart - joined.seconds, 0.0)
        self.decide(
            "share",
            task=joined.task.request.task_id,
            text=f"trains in the passes of {', '.join(joined.hosts)}, which have room: all end in "
            f"{format_duration(joined.seconds)}, {format_duration(saved)} sooner than one after the other",
            numbers={
                "with": list(joined.hosts),
                "seconds": joined.seconds,
                "seconds_apart": joined.seconds_apart,
            },
        )


def plan_in_words(plan: PlacementPlan) -> str:
    """Return in one line when a plan ends, and how good it is."""
    proven = {
        SolverStatus.OPTIMAL: "no other order or placement ends sooner",
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
