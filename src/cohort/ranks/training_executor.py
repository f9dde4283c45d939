"""The contract of what trains: what the engine asks for, and how ranks carry it out together.

:class:`~cohort.ranks.local_executor.LocalExecutor` is its definition: one process with the whole model. The other
members call it elsewhere. Replicated: each rank has a whole model and trials of its own. Grouped: ranks hold one model
together, each with a local executor of its part, sharded or staged.

A new verb is a method here, which says how it is divided and what becomes of the answers, and its body in the local
executor. A member has a body of its own only where its ranks do something else.
"""

# a verb has no body here: what its decorator returns calls it elsewhere
# mypy: disable-error-code="empty-body"
# ruff: noqa: B027

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor

from cohort.core.events import StepDone, TrialFailed
from cohort.core.memory_records import MemoryShortage, PassKind
from cohort.core.rank_work import RankWork
from cohort.data.tokenised import TokenisedRows
from cohort.ranks.answers import Prompt
from cohort.ranks.calls import Call, verb
from cohort.ranks.step_window import StepWindow
from cohort.training.device_memory import DeviceMemory
from cohort.training.evaluation_loss import EvaluationLoss
from cohort.training.gradient_checkpointing import GradientCheckpointingPolicy
from cohort.training.objectives import DEFAULT_OBJECTIVE
from cohort.training.objectives.objective import Objective
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["Manner", "Spread", "TrainingExecutor", "TrialExecutor", "spread"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Spread(Enum):
    """Which of several ranks carry out a call, where each has a whole model. Ranks of a group all do."""

    ALL = auto()
    """All of them."""
    ONE = auto()
    """Rank 0: all would answer the same."""
    OWNER = auto()
    """The rank that has the trial of the argument ``trial_id``."""
    TRIALS = auto()
    """Each rank for its own of the trials that the first argument names, or has values for; answers by trial id."""
    ITEMS = auto()
    """Each rank for its own of the first argument's items, which have a trial or None; answers in their order."""


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How several ranks carry out a verb.

    Attributes:
        spread: Which of them do.
        passes: The kind of its passes, for the work of ranks and for what runs short of memory; None for none.
        apart: Makes one answer of those of ranks with trials of their own, unless an argument was divided.
        together: Makes one answer of those of a group's ranks, in their order. The last one's stands for the model.
    """

    spread: Spread
    passes: PassKind | None
    apart: Callable[[Sequence[Any]], Any]
    together: Callable[[Sequence[Any]], Any]


def _first(answers: Sequence[Any]) -> Any:
    return answers[0]


def _last(answers: Sequence[Any]) -> Any:
    return answers[-1]


def spread(
    how: Spread,
    *,
    passes: PassKind | None = None,
    apart: Callable[[Sequence[Any]], Any] = _first,
    together: Callable[[Sequence[Any]], Any] = _last,
) -> Callable[[Callable[Concatenate[Any, _P], _R]], Callable[Concatenate[Any, _P], _R]]:
    """Declare a verb: a class without a body of its own for it has the ranks carry it out in this manner."""
    manner = Manner(spread=how, passes=passes, apart=apart, together=together)

    def declared(method: Callable[Concatenate[Any, _P], _R]) -> Callable[Concatenate[Any, _P], _R]:
        @functools.wraps(method)
        def elsewhere(self: Any, /, *args: _P.args, **named: _P.kwargs) -> _R:
            found: _R = self.call(Call.of(method, *args, **named), manner)
            return found

        return verb(elsewhere)

    return declared


class TrialExecutor(ABC):
    """The trials that are resident: what one task asks of an executor that other tasks may share.

    Methods do what those of :class:`~cohort.training.executor.Executor` do. Which rank a trial is on changes none of
    its bits. Slots are numbered through: those of rank 1 follow those of rank 0.
    """

    def call(self, call: Call, manner: Manner) -> Any:
        """Have others carry out a verb for which this member has no body of its own."""
        raise NotImplementedError(f"{type(self).__name__} has no body for {call.verb} ({manner.spread.name.lower()})")

    @property
    def work(self) -> tuple[RankWork, ...]:
        """What each rank has done so far; empty where there is one."""
        return ()

    @property
    @abstractmethod
    def num_recomputed(self) -> int:
        """Training passes that used gradient checkpointing."""

    @property
    @abstractmethod
    def resident(self) -> tuple[int, ...]:
        """Trials in slot order."""

    @abstractmethod
    def slot_of(self, trial_id: int) -> int: ...

    @abstractmethod
    def rank_of(self, trial_id: int) -> int:
        """Return the rank that a trial is on; 0 where ranks hold every trial together."""

    @abstractmethod
    def steps_of(self, trial_id: int) -> int: ...

    @spread(Spread.ALL, apart=any, together=all)
    def fits(self, spec: TrialSpec) -> bool: ...

    @spread(Spread.OWNER)
    def load(
        self,
        spec: TrialSpec,
        state: TrialState | None = None,
        *,
        rows: TokenisedRows | None = None,
        rank: int | None = None,
    ) -> int:
        """Make a trial resident; on the rank with the least to do that has room where ``rank`` is None."""

    @spread(Spread.OWNER)
    def drop(self, trial_id: int) -> None: ...

    @spread(Spread.OWNER)
    def state(self, trial_id: int, *, on_device: bool = False) -> TrialState: ...

    @spread(Spread.OWNER)
    def weights(self, trial_id: int, *, on_device: bool = False) -> Tensor: ...

    def unload(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        """Take a trial out of the bank and return its state; :meth:`load` continues there bit for bit."""
        state = self.state(trial_id, on_device=on_device)
        self.drop(trial_id)
        return state

    @spread(Spread.TRIALS, passes=PassKind.EVALUATE)
    def evaluate(
        self,
        trial_ids: Sequence[int],
        *,
        rows: TokenisedRows,
        row_ids: Sequence[int],
        objective: Objective | None = None,
    ) -> dict[int, EvaluationLoss]: ...

    @spread(Spread.ONE, passes=PassKind.EVALUATE)
    def evaluate_base(
        self, *, rows: TokenisedRows, row_ids: Sequence[int], objective: Objective = DEFAULT_OBJECTIVE
    ) -> EvaluationLoss: ...

    @spread(Spread.ITEMS, passes=PassKind.EVALUATE)
    def generate(self, prompts: Sequence[Prompt], *, max_new_tokens: int, stop_ids: frozenset[int]) -> list[list[int]]:
        """Return the likeliest continuation of each prompt, without the stop token."""


class TrainingExecutor(TrialExecutor):
    """Steps the trials of all tasks together, within the memory that its ranks have.

    Attributes:
        num_ranks: Among which trials are divided.
        memory, gradient_checkpointing: Those of the caller's process; all ranks have the same sizes.
        notes: For the user: what ranks had to do otherwise than was meant.
        reliefs: Called one after another when a rank is out of memory and has nothing of its own left to free.
    """

    num_ranks: int = 1
    memory: DeviceMemory
    gradient_checkpointing: GradientCheckpointingPolicy
    notes: tuple[str, ...] = ()
    reliefs: list[Callable[[], bool]]

    @property
    def planned_windows(self) -> dict[str, int]:
        """Windows of a pipeline by what planned them; none where the stages plan all of them."""
        return {}

    def expect_window(self, quotas: Mapping[int, int]) -> None:  # noqa: ARG002
        """Learn, before a window runs, which steps the window after it will probably take."""
        return

    def take_failures(self) -> tuple[TrialFailed, ...]:
        """Return the trials that could not take a step since the last call, for a reason of their own."""
        return ()

    @property
    @abstractmethod
    def bank_bytes(self) -> int:
        """Bytes of the bank of the caller's process."""

    @property
    @abstractmethod
    def token_budgets(self) -> dict[PassKind, int]:
        """Most tokens of a micro-batch now, the lowest of all ranks."""

    @abstractmethod
    def take_shortages(self) -> tuple[MemoryShortage, ...]: ...

    @spread(Spread.ALL)
    def lower_token_budgets(self, budgets: Mapping[PassKind, int]) -> None: ...

    @spread(Spread.ALL)
    def lower_kept_tokens(self, keep_tokens: int) -> None:
        """Recompute training passes of more than ``keep_tokens`` tokens as well."""

    @spread(Spread.ALL, apart=any, together=any)
    def make_room(self) -> bool:
        """Free the next of what any rank keeps only to save time; return False if there was nothing."""

    @spread(Spread.TRIALS, passes=PassKind.TRAIN)
    def step(self, trial_ids: Sequence[int] | None = None) -> tuple[StepDone, ...]: ...

    @spread(Spread.TRIALS, passes=PassKind.TRAIN)
    def run(self, quotas: Mapping[int, int]) -> StepWindow:
        """Run up to ``quotas`` steps of each trial."""

    @abstractmethod
    def close(self) -> None:
        """End the other ranks."""
