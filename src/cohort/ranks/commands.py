"""What rank 0 asks of the other ranks. A command says what the rank that receives it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from cohort.core.events import StepDone
from cohort.core.memory_records import MemoryShortage, PassKind
from cohort.data.tokenised import TokenisedRows
from cohort.ranks.answers import Prompt
from cohort.ranks.rank_executor import RankExecutor
from cohort.ranks.rank_group import RankGroupPlan
from cohort.ranks.rank_weights import ALL_RESIDENT, RankWeights
from cohort.ranks.shared_bytes import BytesHandle
from cohort.ranks.step_window import StepWindow
from cohort.scheduling.pipelines.simulation import PassTime
from cohort.training.evaluation_loss import EvaluationLoss
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.objectives import DEFAULT_OBJECTIVE
from cohort.training.objectives.objective import Objective
from cohort.training.trial import TrialSpec, TrialState

__all__ = [
    "Command",
    "ConnectParts",
    "Drop",
    "Evaluate",
    "EvaluateBase",
    "Fits",
    "Generate",
    "Load",
    "LowerBudgets",
    "MakeRoom",
    "PassTimes",
    "RankSetup",
    "Release",
    "Reply",
    "Rows",
    "Run",
    "ServedExecutor",
    "ShareParts",
    "State",
    "Step",
    "Weights",
]


@dataclass(frozen=True, kw_only=True)
class RankSetup:
    """Everything a rank needs to build its executor; all ranks build the same.

    Attributes:
        rank: Its number.
        gpu: The number of its GPU on its host; that of the rank when None.
        model_directory: Local files of the base model.
        device: ``cpu`` or ``cuda``.
        dtype: In what the frozen model computes, by torch's name.
        quantization: How the weights of its linears are kept.
        room_bytes: What it may take of its GPU; None for all of it.
        optimizers: Those that trials may have, by name.
        target_linears: ``(in_features, out_features)`` of the adapted linears by full module path.
        settings: The executor's.
        memory_limit_bytes: As an executor's.
        train_rows: Training rows of the first task; number 0 among the rows that the rank keeps.
        threads: CPU threads of torch; another number would give other last bits.
        weights: Which layers are not resident, and where their weights are.
        group: How the ranks hold one model together; None where each has a whole one, or parts of layers.
        rendezvous: Where the ranks of a group find each other, an address of :mod:`~cohort.ranks.rendezvous`.
    """

    rank: int
    model_directory: str
    device: str
    dtype: str
    target_linears: Mapping[str, tuple[int, int]]
    settings: ExecutorSettings
    memory_limit_bytes: int | None
    train_rows: TokenisedRows
    threads: int
    gpu: int | None = None
    quantization: str = "none"
    room_bytes: int | None = None
    optimizers: tuple[str, ...] = ("adamw",)
    weights: RankWeights = ALL_RESIDENT
    group: RankGroupPlan | None = None
    rendezvous: str = ""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a rank answers.

    Attributes:
        value: What the command returned; None where it raised.
        error, cause: What it raised, and what led to that.
        shortages: The rank's memory shortages since its last answer.
        token_budgets: Most tokens of a micro-batch of the rank now.
        num_recomputed: Its training passes that used gradient checkpointing, up to now.
        seconds: What the command took.
    """

    value: Any = None
    error: BaseException | None = None
    cause: BaseException | None = None
    shortages: tuple[MemoryShortage, ...] = ()
    token_budgets: Mapping[PassKind, int] = field(default_factory=dict)
    num_recomputed: int = 0
    seconds: float = 0.0


class ServedExecutor(Protocol):
    """What the commands need of a rank's executor: of one that has the whole model, or of a part of a group."""

    @property
    def token_budgets(self) -> dict[PassKind, int]: ...
    @property
    def num_recomputed(self) -> int: ...
    def lower_token_budgets(self, budgets: Mapping[PassKind, int]) -> None: ...
    def lower_kept_tokens(self, keep_tokens: int) -> None: ...
    def take_shortages(self) -> tuple[MemoryShortage, ...]: ...
    def make_room(self) -> bool: ...
    def fits(self, spec: TrialSpec) -> bool: ...
    def load(self, spec: TrialSpec, state: TrialState | None = None, *, rows: TokenisedRows | None = None) -> int: ...
    def drop(self, trial_id: int) -> None: ...
    def state(self, trial_id: int, *, on_device: bool = False) -> TrialState: ...
    def weights(self, trial_id: int, *, on_device: bool = False) -> Tensor: ...
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


@dataclass(kw_only=True)
class Rank:
    """A rank that serves: its executor, and the rows it was sent, by number."""

    executor: ServedExecutor
    rows: dict[int, TokenisedRows] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Release:
    """Drop the executor and wait for another setup; it has no answer."""


class Command(Protocol):
    """Something a rank can be asked to do."""

    def run(self, rank: Rank) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Keep rows under a number, for commands to come."""

    number: int
    rows: TokenisedRows

    def run(self, rank: Rank) -> None:
        rank.rows[self.number] = self.rows


@dataclass(frozen=True, kw_only=True)
class Load:
    """Make a trial resident; return its slot."""

    spec: TrialSpec
    state: TrialState | None
    rows: int

    def run(self, rank: Rank) -> int:
        return rank.executor.load(self.spec, self.state, rows=rank.rows[self.rows])


@dataclass(frozen=True, kw_only=True)
class Fits:
    """Return whether there is room for a trial."""

    spec: TrialSpec

    def run(self, rank: Rank) -> bool:
        return rank.executor.fits(self.spec)


@dataclass(frozen=True, kw_only=True)
class Drop:
    """Take a trial out of the bank."""

    trial_id: int

    def run(self, rank: Rank) -> None:
        rank.executor.drop(self.trial_id)


@dataclass(frozen=True, kw_only=True)
class State:
    """Return a copy of a trial's state, on the rank's device while there is room."""

    trial_id: int

    def run(self, rank: Rank) -> TrialState:
        return rank.executor.state(self.trial_id, on_device=True)


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Return a copy of a trial's weights, on the rank's device while there is room."""

    trial_id: int

    def run(self, rank: Rank) -> Any:
        return rank.executor.weights(self.trial_id, on_device=True)


@dataclass(frozen=True, kw_only=True)
class Step:
    """Run one optimizer step of each of these residents; return their events."""

    trial_ids: Sequence[int]

    def run(self, rank: Rank) -> Any:
        return rank.executor.step(self.trial_ids)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Run a window of steps; return what it brought."""

    quotas: Mapping[int, int]

    def run(self, rank: Rank) -> StepWindow:
        return rank.executor.run(self.quotas)


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Return the validation losses of residents."""

    trial_ids: Sequence[int]
    rows: int
    row_ids: Sequence[int]
    objective: Objective | None = None

    def run(self, rank: Rank) -> Any:
        return rank.executor.evaluate(
            self.trial_ids, rows=rank.rows[self.rows], row_ids=self.row_ids, objective=self.objective
        )


@dataclass(frozen=True, kw_only=True)
class EvaluateBase:
    """Return the validation loss of the frozen model."""

    rows: int
    row_ids: Sequence[int]
    objective: Objective

    def run(self, rank: Rank) -> EvaluationLoss:
        return rank.executor.evaluate_base(rows=rank.rows[self.rows], row_ids=self.row_ids, objective=self.objective)


@dataclass(frozen=True, kw_only=True)
class Generate:
    """Return what residents answer."""

    prompts: Sequence[Prompt]
    max_new_tokens: int
    stop_ids: frozenset[int]

    def run(self, rank: Rank) -> list[list[int]]:
        return rank.executor.generate(self.prompts, max_new_tokens=self.max_new_tokens, stop_ids=self.stop_ids)


@dataclass(frozen=True, kw_only=True)
class LowerBudgets:
    """Lower what passes may take."""

    token_budgets: Mapping[PassKind, int]
    keep_tokens: int | None = None

    def run(self, rank: Rank) -> None:
        rank.executor.lower_token_budgets(self.token_budgets)
        if self.keep_tokens is not None:
            rank.executor.lower_kept_tokens(self.keep_tokens)


@dataclass(frozen=True, kw_only=True)
class MakeRoom:
    """Free the next of what the rank keeps only to save time; return whether there was anything."""

    def run(self, rank: Rank) -> bool:
        return rank.executor.make_room()


@dataclass(frozen=True, kw_only=True)
class PassTimes:
    """Return when the passes of a stage's last window ran; none of a rank that is no stage."""

    def run(self, rank: Rank) -> tuple[PassTime, ...]:
        return getattr(rank.executor, "pass_times", ())


@dataclass(frozen=True, kw_only=True)
class ShareParts:
    """Return the handle to the rank's parts of divided layers."""

    def run(self, rank: Rank) -> BytesHandle:
        return _whole(rank).share_parts()


@dataclass(frozen=True, kw_only=True)
class ConnectParts:
    """Open the parts of divided layers of all ranks; return what had to be done instead, in words."""

    handles: Sequence[BytesHandle]

    def run(self, rank: Rank) -> tuple[str, ...]:
        return _whole(rank).connect_parts(self.handles)


def _whole(rank: Rank) -> RankExecutor:
    assert isinstance(rank.executor, RankExecutor), "ranks of a group share no layers"
    return rank.executor
