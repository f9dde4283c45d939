"""Commands a group of ranks that hold one model together: shards of every linear, or stages of some layers.

Every rank is a process of its own, also where the user's process is: that one computes nothing, so it never waits in a
collective, and can end the others when one is lost. All ranks carry out every command together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import RankLostError
from cohort.core.events import StepDone
from cohort.core.memory_records import MemoryShortage, PassKind
from cohort.core.rank_work import RankWork
from cohort.data.tokenised import TokenisedRows
from cohort.ranks.answers import Prompt
from cohort.ranks.commands import (
    Drop,
    Evaluate,
    EvaluateBase,
    Fits,
    Generate,
    Load,
    LowerBudgets,
    MakeRoom,
    PassTimes,
    Run,
    State,
    Step,
    Weights,
)
from cohort.ranks.group_ranks import GroupRanks
from cohort.ranks.moved_state import state_on
from cohort.ranks.pipeline.pass_clock import joined_times
from cohort.ranks.rank_group import RankGroupPlan, join_states
from cohort.ranks.rank_link import RankLink
from cohort.ranks.rendezvous import Rendezvous
from cohort.ranks.sent_rows import SentRows
from cohort.ranks.step_window import StepWindow
from cohort.scheduling.pipelines.simulation import PipelineTimes
from cohort.training.device_memory import DeviceMemory, is_out_of_memory
from cohort.training.evaluation_loss import EvaluationLoss
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.gradient_checkpointing import GradientCheckpointingPolicy
from cohort.training.objectives import DEFAULT_OBJECTIVE
from cohort.training.objectives.objective import Objective
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["GroupExecutor"]


@dataclass(kw_only=True)
class _Place:
    """A resident: what it is, its slot on every rank, and the steps it has done."""

    spec: TrialSpec
    slot: int
    step: int


class GroupExecutor:
    """Satisfies :class:`~cohort.ranks.training_executor.TrainingExecutor` with one model over several ranks.

    An error that all ranks raise leaves the group as it was. After any other, ranks may have passed each other what
    others never took: the group is ended and :class:`RankLostError` raised, and the run goes on from its last
    checkpoint.
    """

    num_ranks = 1
    notes: tuple[str, ...] = ()

    def __init__(
        self,
        processes: Sequence[RankLink],
        plan: RankGroupPlan,
        *,
        layout: AdapterLayout,
        settings: ExecutorSettings,
        train_rows: TokenisedRows,
        rendezvous: Rendezvous,
    ) -> None:
        """Wait until all ranks, started in their order, have built their parts.

        Args:
            layout: The adapted linears of the whole model.
            settings, train_rows: Those of the ranks.

        Raises:
            RankLostError: one of them ended.
            Exception: one of them could not build its executor.
        """
        self._ranks = GroupRanks(processes, failed=self._note_shortage)
        self._plan, self._layout, self._rendezvous = plan, layout, rendezvous
        self._places: dict[int, _Place] = {}
        self._rows = SentRows(train_rows, send=self._ranks.ask)
        self._budgets = {
            PassKind.TRAIN: settings.token_budget,
            PassKind.EVALUATE: settings.evaluation_token_budget,
        }
        self._shortages: list[MemoryShortage] = []
        self.reliefs: list[Callable[[], bool]] = []
        # of this process, which runs no pass
        self.memory = DeviceMemory("cpu")
        self.gradient_checkpointing = GradientCheckpointingPolicy(
            settings.gradient_checkpointing, keep_tokens=settings.keep_tokens, device="cpu"
        )
        try:
            self._ranks.wait_until_ready()
        except BaseException:
            self.close()
            raise

    @property
    def bank_bytes(self) -> int:
        return 0

    @property
    def work(self) -> tuple[RankWork, ...]:
        return self._ranks.work

    @property
    def num_recomputed(self) -> int:
        return self._ranks.num_recomputed

    @property
    def token_budgets(self) -> dict[PassKind, int]:
        return dict(self._budgets)

    def lower_token_budgets(self, budgets: Mapping[PassKind, int]) -> None:
        if budgets:
            self._budgets = {kind: min(most, budgets.get(kind, most)) for kind, most in self._budgets.items()}
            self._ranks.ask(LowerBudgets(token_budgets=dict(budgets)))

    def lower_kept_tokens(self, keep_tokens: int) -> None:
        self.gradient_checkpointing.lower(keep_tokens)
        self._ranks.ask(LowerBudgets(token_budgets={}, keep_tokens=keep_tokens))

    def take_shortages(self) -> tuple[MemoryShortage, ...]:
        found, self._shortages = tuple(self._shortages), []
        return found

    def make_room(self) -> bool:
        """Free the next of what the ranks keep only to save time; return False if there was nothing."""
        return any(self._ranks.ask(MakeRoom()))

    @property
    def resident(self) -> tuple[int, ...]:
        """Trials in slot order."""
        return tuple(sorted(self._places, key=self.slot_of))

    def fits(self, spec: TrialSpec) -> bool:
        return all(self._ranks.ask(Fits(spec=spec)))

    def load(
        self,
        spec: TrialSpec,
        state: TrialState | None = None,
        *,
        rows: TokenisedRows | None = None,
        rank: int | None = None,
    ) -> int:
        """Make a trial resident on all ranks; each takes its part of ``state``."""
        if rank not in (None, 0):
            raise ValueError(f"rank {rank} of a group, whose ranks hold every trial together")
        number = self._rows.number(self._rows.first if rows is None else rows)
        slot = self._ranks.ask(
            Load(spec=spec, state=None if state is None else state_on(state, torch.device("cpu")), rows=number)
        )[0]
        self._places[spec.trial_id] = _Place(spec=spec, slot=slot, step=0 if state is None else state.step)
        return int(slot)

    def state(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        """Return a copy of a resident's whole state, on the host: no rank has it all."""
        del on_device
        spec = self._places[trial_id].spec
        # opened where they are and copied from there, not through the connection
        parts = [state_on(part, torch.device("cpu")) for part in self._ranks.ask(State(trial_id=trial_id))]
        return join_states(self._plan, self._layout, spec, parts)

    def weights(self, trial_id: int, *, on_device: bool = False) -> Tensor:
        """Return a copy of a resident's whole weights [r, D], on the host."""
        del on_device
        parts = [part.cpu() for part in self._ranks.ask(Weights(trial_id=trial_id))]
        return self._plan.join(self._layout, self._places[trial_id].spec, parts)

    def unload(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        state = self.state(trial_id, on_device=on_device)
        self.drop(trial_id)
        return state

    def drop(self, trial_id: int) -> None:
        self._ranks.ask(Drop(trial_id=trial_id))
        del self._places[trial_id]

    def slot_of(self, trial_id: int) -> int:
        return self._places[trial_id].slot

    def rank_of(self, trial_id: int) -> int:
        """Return 0: a trial is on all ranks."""
        del trial_id
        return 0

    def steps_of(self, trial_id: int) -> int:
        return self._places[trial_id].step

    def step(self, trial_ids: Sequence[int] | None = None) -> tuple[StepDone, ...]:
        """Run one optimizer step of each of ``trial_ids``.

        Raises:
            RankLostError: a rank ended, or raised what the others did not.
            Exception: what all ranks raised; nothing has stepped.
        """
        wanted = tuple(self.resident if trial_ids is None else (key for key in self.resident if key in set(trial_ids)))
        events: tuple[StepDone, ...] = self._ranks.ask(Step(trial_ids=wanted))[-1]
        self._count(events)
        return events

    def run(self, quotas: Mapping[int, int]) -> StepWindow:
        """Run up to ``quotas`` steps of each trial.

        Raises:
            RankLostError: a rank ended, or raised what the others did not.
        """
        try:
            window: StepWindow = self._ranks.ask(Run(quotas=dict(quotas)))[-1]
        except RankLostError:
            raise
        except Exception as error:
            return StepWindow(rounds=(), error=error)
        for events in window.rounds:
            self._count(events)
        return StepWindow(rounds=_without_ended(window.rounds), error=window.error, broken=window.broken)

    def evaluate(
        self,
        trial_ids: Sequence[int],
        *,
        rows: TokenisedRows,
        row_ids: Sequence[int],
        objective: Objective | None = None,
    ) -> dict[int, EvaluationLoss]:
        found: dict[int, EvaluationLoss] = self._ranks.ask(
            Evaluate(
                trial_ids=tuple(trial_ids), rows=self._rows.number(rows), row_ids=tuple(row_ids), objective=objective
            )
        )[-1]
        return found

    def evaluate_base(
        self, *, rows: TokenisedRows, row_ids: Sequence[int], objective: Objective = DEFAULT_OBJECTIVE
    ) -> EvaluationLoss:
        found: EvaluationLoss = self._ranks.ask(
            EvaluateBase(rows=self._rows.number(rows), row_ids=tuple(row_ids), objective=objective)
        )[-1]
        return found

    def generate(self, prompts: Sequence[Prompt], *, max_new_tokens: int, stop_ids: frozenset[int]) -> list[list[int]]:
        found: list[list[int]] = self._ranks.ask(
            Generate(prompts=tuple(prompts), max_new_tokens=max_new_tokens, stop_ids=stop_ids)
        )[-1]
        return found

    def pipeline_times(self) -> PipelineTimes:
        """Return when the passes of the last window ran on each stage; none of a group that is no pipeline."""
        return joined_times(self._ranks.ask(PassTimes()))

    def close(self) -> None:
        """End the ranks."""
        self._ranks.close()
        self._rendezvous.remove()

    def _count(self, events: Sequence[StepDone]) -> None:
        for event in events:
            self._places[event.trial_id].step = event.step

    def _note_shortage(self, errors: Iterable[BaseException], kind: PassKind) -> None:
        """Halve the passes of the run where memory ran out, for the process that resumes it."""
        short = next((error for error in errors if is_out_of_memory(error)), None)
        if short is None:
            return
        before = self._budgets[kind]
        self._budgets[kind] = max(1, before // 2)
        self._shortages.append(
            MemoryShortage(
                kind=kind,
                num_tokens=before,
                budget_before=before,
                budget_after=self._budgets[kind],
                message=str(short),
                was_recomputed=self.gradient_checkpointing.is_for(before),
                keep_tokens=None,
            )
        )


def _without_ended(rounds: Sequence[Sequence[StepDone]]) -> tuple[tuple[StepDone, ...], ...]:
    """Return the rounds without the steps of trials after one whose loss is no number: these trials have ended."""
    ended: set[int] = set()
    kept = []
    for events in rounds:
        kept.append(tuple(event for event in events if event.trial_id not in ended))
        ended |= {event.trial_id for event in events if not math.isfinite(event.loss)}
    return tuple(events for events in kept if events)
