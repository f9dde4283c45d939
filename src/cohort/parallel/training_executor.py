"""What the engine needs of that which trains: one executor, or several on several GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from cohort.adapters.bank import AdapterBank
from cohort.core.events import StepDone
from cohort.core.memory_records import MemoryShortage, PassKind
from cohort.data.tokenised import TokenisedRows
from cohort.parallel.rank_executor import Prompt
from cohort.parallel.step_window import StepWindow
from cohort.training.device_memory import DeviceMemory
from cohort.training.evaluation_loss import EvaluationLoss
from cohort.training.gradient_checkpointing import GradientCheckpointingPolicy
from cohort.training.objectives import DEFAULT_OBJECTIVE
from cohort.training.objectives.objective import Objective
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["TrainingExecutor"]


class TrainingExecutor(Protocol):
    """Trains the trials that are resident on its ranks. Which rank a trial is on changes none of its bits.

    Methods do what those of :class:`~cohort.training.executor.Executor` do. Slots are numbered through: those of rank
    1 follow those of rank 0.

    Attributes:
        bank, memory, gradient_checkpointing: Those of rank 0; all ranks have the same sizes.
        reliefs: Called one after another when a rank is out of memory and has nothing of its own left to free.
    """

    @property
    def num_ranks(self) -> int: ...
    @property
    def bank(self) -> AdapterBank: ...
    @property
    def memory(self) -> DeviceMemory: ...
    @property
    def gradient_checkpointing(self) -> GradientCheckpointingPolicy: ...
    @property
    def reliefs(self) -> list[Callable[[], bool]]: ...
    @property
    def num_recomputed(self) -> int: ...
    @property
    def token_budgets(self) -> dict[PassKind, int]: ...
    @property
    def resident(self) -> tuple[int, ...]: ...

    def lower_token_budgets(self, budgets: Mapping[PassKind, int]) -> None: ...
    def lower_kept_tokens(self, keep_tokens: int) -> None: ...
    def take_shortages(self) -> tuple[MemoryShortage, ...]: ...
    def make_room(self) -> bool: ...
    def fits(self, spec: TrialSpec) -> bool: ...
    def load(
        self,
        spec: TrialSpec,
        state: TrialState | None = None,
        *,
        rows: TokenisedRows | None = None,
        rank: int | None = None,
    ) -> int: ...
    def state(self, trial_id: int, *, on_device: bool = False) -> TrialState: ...
    def weights(self, trial_id: int, *, on_device: bool = False) -> Tensor: ...
    def unload(self, trial_id: int, *, on_device: bool = False) -> TrialState: ...
    def drop(self, trial_id: int) -> None: ...
    def slot_of(self, trial_id: int) -> int: ...
    def rank_of(self, trial_id: int) -> int: ...
    def steps_of(self, trial_id: int) -> int: ...
    def step(self, trial_ids: Sequence[int] | None = None) -> tuple[StepDone, ...]: ...
    def run(self, quotas: Mapping[int, int]) -> StepWindow: ...
    def evaluate(
        self,
        trial_ids: Sequence[int],
        *,
        rows: TokenisedRows,
        row_ids: Sequence[int],
        objective: Objective | None = None,
    ) -> dict[int, EvaluationLoss]: ...
    def evaluate_base(
        self, *, rows: TokenisedRows, row_ids: Sequence[int], objective: Objective = DEFAULT_OBJECTIVE
    ) -> EvaluationLoss: ...
    def generate(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, stop_ids: frozenset[int]
    ) -> list[list[int]]: ...
    def close(self) -> None: ...
