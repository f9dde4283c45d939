"""What all executors share whose trials are on other ranks: where each trial is, and how far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cohort.core.events import StepDone
from cohort.ranks.training_executor import TrainingExecutor
from cohort.training.trial import TrialSpec

__all__ = ["Place", "RemoteExecutor"]


@dataclass(kw_only=True)
class Place:
    """Where a resident is.

    Attributes:
        rank, slot: Its rank, and its slot there; 0 and its slot on every rank where ranks hold it together.
        step: The steps it has done.
        unreported: A step that was done while another trial's failed; reported when it is asked for again.
    """

    spec: TrialSpec
    rank: int
    slot: int
    step: int
    unreported: StepDone | None = None


class RemoteExecutor(TrainingExecutor):
    """Keeps the places of trials. Members say on which ranks a call is carried out."""

    def __init__(self, *, slots_per_rank: int) -> None:
        """Begin without a trial; the bank of each rank has ``slots_per_rank`` slots."""
        self._places: dict[int, Place] = {}
        self._slots_per_rank = slots_per_rank

    @property
    def resident(self) -> tuple[int, ...]:
        return tuple(sorted(self._places, key=self.slot_of))

    def slot_of(self, trial_id: int) -> int:
        place = self._places[trial_id]
        return place.rank * self._slots_per_rank + place.slot

    def rank_of(self, trial_id: int) -> int:
        return self._places[trial_id].rank

    def steps_of(self, trial_id: int) -> int:
        return self._places[trial_id].step

    def drop(self, trial_id: int) -> None:
        super().drop(trial_id)
        del self._places[trial_id]

    def _count(self, rounds: Iterable[Iterable[StepDone]]) -> None:
        for event in (event for events in rounds for event in events):
            self._places[event.trial_id].step = event.step
