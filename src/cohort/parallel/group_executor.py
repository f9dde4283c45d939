"""Commands a group of ranks that hold one model together: shards of every linear, or stages of some layers.

Every rank is a process of its own, also where the user's process is: that one computes nothing, so it never waits in a
collective, and can end the others when one is lost. All ranks carry out every command together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import Any

import torch
from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import RankLostError
from cohort.core.events import StepDone
from cohort.core.memory_records import MemoryShortage, PassKind
from cohort.core.rank_work import RankWork
from cohort.data.tokenised import TokenisedRows
from cohort.parallel.answers import Prompt
from cohort.parallel.commands import (
    Command,
    Drop,
    Evaluate,
    EvaluateBase,
    Fits,
    Generate,
    Load,
    LowerBudgets,
    MakeRoom,
    PassTimes,
    Reply,
    Rows,
    Run,
    State,
    Step,
    Weights,
)
from cohort.parallel.pipeline.pass_clock import joined_times
from cohort.parallel.rank_group import RankGroupPlan, join_states
from cohort.parallel.rank_link import RankLink
from cohort.parallel.rank_process import GO_ON
from cohort.parallel.rendezvous import Rendezvous
from cohort.parallel.step_window import StepWindow
from cohort.parallel.work_meter import WorkMeter
from cohort.scheduling.pipeline.simulation import PipelineTimes
from cohort.training.device_memory import DeviceMemory, is_out_of_memory
from cohort.training.evaluation_loss import EvaluationLoss
from cohort.training.executor import ExecutorSettings
from cohort.training.gradient_checkpointing import GradientCheckpointingPolicy
from cohort.training.objectives import DEFAULT_OBJECTIVE
from cohort.training.objectives.objective import Objective
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["GroupExecutor"]

# an error that all ranks share, such as a row that cannot be read, reaches all of them within this time
_GRACE_SECONDS = 5.0


@dataclass(kw_only=True)
class _Place:
    """A resident: what it is, its slot on every rank, and the steps it has done."""

    spec: TrialSpec
    slot: int
    step: int


class GroupExecutor:
    """Satisfies :class:`~cohort.parallel.training_executor.TrainingExecutor` with one model over several ranks.

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
        self._processes, self._plan, self._layout = tuple(processes), plan, layout
        self._rendezvous = rendezvous
        self._places: dict[int, _Place] = {}
        # by identity, as rows of a task are one object
        self._rows: dict[int, TokenisedRows] = {0: train_rows}
        self._budgets = {
            PassKind.TRAIN: settings.token_budget,
            PassKind.EVALUATE: settings.evaluation_token_budget,
        }
        self._shortages: list[MemoryShortage] = []
        self._num_recomputed = 0
        self._meter = WorkMeter(len(processes))
        self.reliefs: list[Callable[[], bool]] = []
        # of this process, which runs no pass
        self.memory = DeviceMemory("cpu")
        self.gradient_checkpointing = GradientCheckpointingPolicy(
            settings.gradient_checkpointing, keep_tokens=settings.keep_tokens, device="cpu"
        )
        try:
            self._answers(during="its start")
        except BaseException:
            self.close()
            raise

    @property
    def bank_bytes(self) -> int:
        return 0

    @property
    def work(self) -> tuple[RankWork, ...]:
        return self._meter.totals

    @property
    def num_recomputed(self) -> int:
        return self._num_recomputed

    @property
    def token_budgets(self) -> dict[PassKind, int]:
        return dict(self._budgets)

    def lower_token_budgets(self, budgets: Mapping[PassKind, int]) -> None:
        if budgets:
            self._budgets = {kind: min(most, budgets.get(kind, most)) for kind, most in self._budgets.items()}
            self._all(LowerBudgets(token_budgets=dict(budgets)))

    def lower_kept_tokens(self, keep_tokens: int) -> None:
        self.gradient_checkpointing.lower(keep_tokens)
        self._all(LowerBudgets(token_budgets={}, keep_tokens=keep_tokens))

    def take_shortages(self) -> tuple[MemoryShortage, ...]:
        found, self._shortages = tuple(self._shortages), []
        return found

    def make_room(self) -> bool:
        """Free the next of what the ranks keep only to save time; return False if there was nothing."""
        return any(self._all(MakeRoom()))

    @property
    def resident(self) -> tuple[int, ...]:
        """Trials in slot order."""
        return tuple(sorted(self._places, key=self.slot_of))

    def fits(self, spec: TrialSpec) -> bool:
        return all(self._all(Fits(spec=spec)))

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
        number = self._send_rows(self._rows[0] if rows is None else rows)
        slot = self._all(Load(spec=spec, state=None if state is None else _on_host(state), rows=number))[0]
        self._places[spec.trial_id] = _Place(spec=spec, slot=slot, step=0 if state is None else state.step)
        return int(slot)

    def state(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        """Return a copy of a resident's whole state, on the host: no rank has it all."""
        del on_device
        spec = self._places[trial_id].spec
        return join_states(self._plan, self._layout, spec, self._all(State(trial_id=trial_id)))

    def weights(self, trial_id: int, *, on_device: bool = False) -> Tensor:
        """Return a copy of a resident's whole weights [r, D], on the host."""
        del on_device
        return self._plan.join(self._layout, self._places[trial_id].spec, self._all(Weights(trial_id=trial_id)))

    def unload(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        state = self.state(trial_id, on_device=on_device)
        self.drop(trial_id)
        return state

    def drop(self, trial_id: int) -> None:
        self._all(Drop(trial_id=trial_id))
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
        events: tuple[StepDone, ...] = self._all(Step(trial_ids=wanted))[-1]
        self._count(events)
        return events

    def run(self, quotas: Mapping[int, int]) -> StepWindow:
        """Run up to ``quotas`` steps of each trial.

        Raises:
            RankLostError: a rank ended, or raised what the others did not.
        """
        try:
            window: StepWindow = self._all(Run(quotas=dict(quotas)))[-1]
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
        found: dict[int, EvaluationLoss] = self._all(
            Evaluate(
                trial_ids=tuple(trial_ids), rows=self._send_rows(rows), row_ids=tuple(row_ids), objective=objective
            )
        )[-1]
        return found

    def evaluate_base(
        self, *, rows: TokenisedRows, row_ids: Sequence[int], objective: Objective = DEFAULT_OBJECTIVE
    ) -> EvaluationLoss:
        found: EvaluationLoss = self._all(
            EvaluateBase(rows=self._send_rows(rows), row_ids=tuple(row_ids), objective=objective)
        )[-1]
        return found

    def generate(self, prompts: Sequence[Prompt], *, max_new_tokens: int, stop_ids: frozenset[int]) -> list[list[int]]:
        found: list[list[int]] = self._all(
            Generate(prompts=tuple(prompts), max_new_tokens=max_new_tokens, stop_ids=stop_ids)
        )[-1]
        return found

    def pipeline_times(self) -> PipelineTimes:
        """Return when the passes of the last window ran on each stage; none of a group that is no pipeline."""
        return joined_times(self._all(PassTimes()))

    def close(self) -> None:
        """End the ranks."""
        for process in self._processes:
            process.close()
        self._rendezvous.remove()

    def _count(self, events: Sequence[StepDone]) -> None:
        for event in events:
            self._places[event.trial_id].step = event.step

    def _send_rows(self, rows: TokenisedRows) -> int:
        """Return the number under which the ranks keep these rows; new rows go to all of them."""
        for number, known in self._rows.items():
            if known is rows:
                return number
        number = len(self._rows)
        self._all(Rows(number=number, rows=rows))
        self._rows[number] = rows
        return number

    def _all(self, command: Command) -> list[Any]:
        """Let all ranks carry out a command; return what each returned, in their order.

        Raises:
            RankLostError: a rank ended, or raised what the others did not.
            Exception: what all ranks raised.
        """
        for process in self._processes:
            try:
                process.ask(command)
            except RankLostError:
                self._end()
                raise
        kind = PassKind.TRAIN if isinstance(command, Run | Step) else PassKind.EVALUATE
        passes = isinstance(command, Run | Step | Evaluate | EvaluateBase | Generate)
        return self._answers(during=type(command).__name__.lower(), kind=kind, is_work=passes)

    def _answers(self, *, during: str, kind: PassKind = PassKind.EVALUATE, is_work: bool = False) -> list[Any]:
        pending = {process.fileno(): process for process in self._processes}
        replies: dict[int, Reply] = {}
        deadline: float | None = None
        while pending:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = wait(list(pending), left)
            if not ready:
                break
            for each in ready:
                assert isinstance(each, int), "descriptors were waited for"
                process = pending.pop(each)
                try:
                    reply = replies[process.rank] = process.answer()
                except RankLostError as lost:
                    self._end()
                    raise lost from _first_error(replies)
                if _error_of(reply) is not None and deadline is None:
                    deadline = time.monotonic() + _GRACE_SECONDS
        failed = {rank: error for rank, reply in replies.items() if (error := _error_of(reply)) is not None}
        if failed and len(failed) < len(self._processes):
            self._end()
            self._note_shortage(failed.values(), kind)
            rank, error = min(failed.items())
            text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise RankLostError(f"rank {rank} failed alone in {during} ({text}); {GO_ON}") from error
        ordered = [replies[rank] for rank in sorted(replies)]
        if is_work:
            # what a rank waits for another within a command counts: it can do nothing else
            self._meter.took(kind, {rank: reply.seconds for rank, reply in replies.items()}, {})
        self._num_recomputed = max((reply.num_recomputed for reply in ordered), default=0)
        if failed and (raised := ordered[-1].error) is not None:
            raise raised from ordered[-1].cause
        return [reply.value for reply in ordered]

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

    def _end(self) -> None:
        """End all ranks at once: some may wait for ever for one that is lost."""
        for process in self._processes:
            process.kill()


def _without_ended(rounds: Sequence[Sequence[StepDone]]) -> tuple[tuple[StepDone, ...], ...]:
    """Return the rounds without the steps of trials after one whose loss is no number: these trials have ended."""
    ended: set[int] = set()
    kept = []
    for events in rounds:
        kept.append(tuple(event for event in events if event.trial_id not in ended))
        ended |= {event.trial_id for event in events if not math.isfinite(event.loss)}
    return tuple(events for events in kept if events)


def _error_of(reply: Reply) -> BaseException | None:
    if reply.error is not None:
        return reply.error
    return reply.value.error if isinstance(reply.value, StepWindow) else None


def _first_error(replies: Mapping[int, Reply]) -> BaseException | None:
    return next((error for rank in sorted(replies) if (error := _error_of(replies[rank])) is not None), None)


def _on_host(state: TrialState) -> TrialState:
    """Return a state whose tensors are on the host: every rank copies its part from there."""
    cpu = torch.device("cpu")
    moments = {name: moment.to(cpu) for name, moment in state.adapter.moments.items()}
    return replace(state, adapter=replace(state.adapter, weights=state.adapter.weights.to(cpu), moments=moments))
