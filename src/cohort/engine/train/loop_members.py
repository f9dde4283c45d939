"""The tasks that train in one executor: whose each of its trials is, and whose share each task uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cohort.core.events import StepDone
from cohort.engine.train.supervisor import Supervisor
from cohort.engine.turns.step_turns import ReadyStep, StepTurns
from cohort.scheduling.admission import Capacity, Request

__all__ = ["LoopMembers", "own_events"]


class LoopMembers(list[Supervisor]):
    """In the order in which they joined."""

    def __init__(self) -> None:
        super().__init__()
        self._tenants: dict[Supervisor, str] = {}

    def join(self, member: Supervisor, *, tenant: str) -> None:
        self.append(member)
        self._tenants[member] = tenant

    def leave(self, member: Supervisor) -> None:
        self.remove(member)
        del self._tenants[member]

    def find_owner(self, key: int) -> tuple[Supervisor, int] | None:
        """Return the task of an executor's trial, and the trial's number in it; None if it has ended."""
        for member in self:
            if (trial_id := member.share.trial_of(key)) is not None:
                return member, trial_id
        return None

    def owner(self, key: int) -> tuple[Supervisor, int]:
        found = self.find_owner(key)
        assert found is not None, f"trial {key} of the executor belongs to no task"
        return found

    def ready(self, keys: Iterable[int]) -> list[ReadyStep]:
        """Return what the next step of each resident takes."""
        found = []
        for key in keys:
            member, trial_id = self.owner(key)
            tokens = max(1, round(member.request_of(trial_id).tokens_per_step))
            found.append(ReadyStep(key=key, tenant=self._tenants[member], tokens=tokens))
        return found

    def arranged(
        self, wanting: Sequence[Request], resident: Sequence[Request], *, turns: StepTurns, capacity: Capacity
    ) -> tuple[list[Request], list[Request]]:
        """Return both with the priorities that shares give them."""
        inside = {request.trial_id for request in resident}
        together = [*resident, *(request for request in wanting if request.trial_id not in inside)]
        found = turns.arrange(
            together,
            tenants={request.trial_id: self._tenants[self.owner(request.trial_id)[0]] for request in together},
            residents=frozenset(inside),
            capacity=capacity,
        )
        by_key = {request.trial_id: request for request in found}
        return [by_key[request.trial_id] for request in wanting], [by_key[request.trial_id] for request in resident]


def own_events(member: Supervisor, steps_done: Sequence[StepDone]) -> list[StepDone]:
    """Return the events of a task's trials, by the task's own numbers."""
    found = []
    for event in steps_done:
        if (trial_id := member.share.trial_of(event.trial_id)) is not None:
            found.append(replace(event, trial_id=trial_id))
    return found
