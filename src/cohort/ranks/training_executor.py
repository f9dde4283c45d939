"""What the engine needs of that which trains: one executor, or several on several GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cohort.core.rank_work import RankWork
from cohort.data.tokenised import TokenisedRows
from cohort.ranks.commands import ServedExecutor
from cohort.training.device_memory import DeviceMemory
from cohort.training.gradient_checkpointing import GradientCheckpointingPolicy
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["TrainingExecutor"]


class TrainingExecutor(ServedExecutor, Protocol):
    """Trains the trials that are resident on its ranks. Which rank a trial is on changes none of its bits.

    Methods do what those of :class:`~cohort.training.executor.Executor` do. Slots are numbered through: those of rank
    1 follow those of rank 0.

    Attributes:
        bank_bytes, memory, gradient_checkpointing: Those of the caller's process; all ranks have the same sizes.
        notes: For the user: what ranks had to do otherwise than was meant.
        work: What each rank has done so far; empty where there is one.
        reliefs: Called one after another when a rank is out of memory and has nothing of its own left to free.
    """

    @property
    def num_ranks(self) -> int: ...
    @property
    def bank_bytes(self) -> int: ...
    @property
    def memory(self) -> DeviceMemory: ...
    @property
    def gradient_checkpointing(self) -> GradientCheckpointingPolicy: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def work(self) -> tuple[RankWork, ...]: ...
    @property
    def reliefs(self) -> list[Callable[[], bool]]: ...
    @property
    def resident(self) -> tuple[int, ...]: ...

    def load(
        self,
        spec: TrialSpec,
        state: TrialState | None = None,
        *,
        rows: TokenisedRows | None = None,
        rank: int | None = None,
    ) -> int: ...
    def unload(self, trial_id: int, *, on_device: bool = False) -> TrialState: ...
    def slot_of(self, trial_id: int) -> int: ...
    def rank_of(self, trial_id: int) -> int: ...
    def steps_of(self, trial_id: int) -> int: ...
    def close(self) -> None: ...
