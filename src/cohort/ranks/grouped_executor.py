"""Calls a group of ranks that hold one model together: shards of every linear, or stages of some layers.

Every rank is a process of its own, also where the user's process is: that one computes nothing, so it never waits in a
collective, and can end the others when one is lost. All ranks carry out every call together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import RankLostError
from cohort.core.events import StepDone
from cohort.core.memory_records import MemoryShortage, PassKind
from cohort.core.rank_work import RankWork
from cohort.data.tokenised import TokenisedRows
from cohort.ranks.calls import Call
from cohort.ranks.divided_states.divided_rows import whole_state
from cohort.ranks.divided_states.group_states import GroupStates
from cohort.ranks.group_meeting import Rendezvous
from cohort.ranks.group_ranks import GroupRanks
from cohort.ranks.moved_state import state_on
from cohort.ranks.pipeline.pass_clock import joined_times
from cohort.ranks.pipeline.staged_executor import StagedExecutor
from cohort.ranks.pipeline.windows_ahead import WindowsAhead
from cohort.ranks.rank_group import RankGroupPlan
from cohort.ranks.rank_link import RankLink
from cohort.ranks.remote_executor import Place, RemoteExecutor
from cohort.ranks.step_window import StepWindow
from cohort.ranks.training_executor import Manner
from cohort.scheduling.pipelines.simulation import PipelineTimes
from cohort.training.device_memory import DeviceMemory, is_out_of_memory
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.gradient_checkpointing import GradientCheckpointingPolicy
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["GroupedExecutor"]


class GroupedExecutor(RemoteExecutor):
    """One model over several ranks.

    An error that all ranks raise leaves the group as it was. After any other, ranks may have passed each other what
    others never took: the group is ended and :class:`RankLostError` raised, and the run goes on from its last
    checkpoint.
    """

    def __init__(
        self,
        processes: Sequence[RankLink],
        plan: RankGroupPlan,
        *,
        layout: AdapterLayout,
        settings: ExecutorSettings,
        rendezvous: Rendezvous,
        ahead: WindowsAhead | None = None,
    ) -> None:
        """Wait until all ranks, started in their order, have built their parts.

        Args:
            layout: The adapted linears of the whole model.
            settings: Those of the ranks.
            ahead: Plans windows of a pipeline ahead; None leaves them to the stages.

        Raises:
            RankLostError: one of them ended.
            Exception: one of them could not build its executor.
        """
        super().__init__(slots_per_rank=settings.num_slots)
        self._ranks = GroupRanks(processes, failed=self._note_shortage)
        self._rendezvous, self._ahead = rendezvous, ahead
        self._states = GroupStates(plan, layout, ask=self._ranks.ask, ask_later=self._ranks.ask_later)
        self._expected: dict[int, int] = {}
        self._budgets = {
            PassKind.TRAIN: settings.token_budget,
            PassKind.EVALUATE: settings.evaluation_token_budget,
        }
        self._shortages: list[MemoryShortage] = []
        self.reliefs = []
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

    def call(self, call: Call, manner: Manner) -> Any:
        return manner.together(self._ranks.ask(call, manner.passes))

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
        self._budgets = {kind: min(most, budgets.get(kind, most)) for kind, most in self._budgets.items()}
        super().lower_token_budgets(dict(budgets))

    def lower_kept_tokens(self, keep_tokens: int) -> None:
        self.gradient_checkpointing.lower(keep_tokens)
        super().lower_kept_tokens(keep_tokens)

    def take_shortages(self) -> tuple[MemoryShortage, ...]:
        found, self._shortages = tuple(self._shortages), []
        return found

    def load(
        self,
        spec: TrialSpec,
        state: TrialState | None = None,
        *,
        rows: TokenisedRows | None = None,
        rank: int | None = None,
    ) -> int:
        """Make a trial resident on all ranks: each has its part of ``state``, or takes it from the whole."""
        if rank not in (None, 0):
            raise ValueError(f"rank {rank} of a group, whose ranks hold every trial together")
        slot = None if state is None else self._states.load(spec, state, rows=rows)
        if slot is None:
            carried = None if state is None else state_on(whole_state(state), torch.device("cpu"))
            slot = super().load(spec, carried, rows=rows)
        place = Place(spec=spec, rank=0, slot=slot, step=0 if state is None else state.step)
        self._places[spec.trial_id] = place
        if self._ahead is not None:
            self._ahead.load(spec, slot=slot, step=place.step, rows=rows)
        return slot

    @property
    def planned_windows(self) -> dict[str, int]:
        return {} if self._ahead is None else dict(self._ahead.counts)

    def expect_window(self, quotas: Mapping[int, int]) -> None:
        self._expected = dict(quotas)

    def state(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        """Return a copy of a resident's state in parts, each on its rank, and on its GPU where all have room."""
        return self._states.state(self._places[trial_id].spec, on_gpu=on_device)

    def weights(self, trial_id: int, *, on_device: bool = False) -> Tensor:
        """Return a copy of a resident's weights [r, D] in parts, as :meth:`state` does."""
        return self._states.weights(self._places[trial_id].spec, on_gpu=on_device)

    def step(self, trial_ids: Sequence[int] | None = None) -> tuple[StepDone, ...]:
        """Run one optimizer step of each of ``trial_ids``.

        Raises:
            RankLostError: a rank ended, or raised what the others did not.
            Exception: what all ranks raised; nothing has stepped.
        """
        events = super().step(tuple(key for key in self.resident if trial_ids is None or key in trial_ids))
        self._count([events])
        return events

    def run(self, quotas: Mapping[int, int]) -> StepWindow:
        """Run up to ``quotas`` steps of each trial.

        Raises:
            RankLostError: a rank ended, or raised what the others did not.
        """
        try:
            self._plan_ahead(quotas)
            window = super().run(dict(quotas))
        except RankLostError:
            raise
        except Exception as error:
            return StepWindow(rounds=(), error=error)
        self._count(window.rounds)
        return StepWindow(rounds=_without_ended(window.rounds), error=window.error, broken=window.broken)

    def _plan_ahead(self, quotas: Mapping[int, int]) -> None:
        """Hand the stages what was planned for this window, and begin to plan the next one."""
        expected, self._expected = self._expected, {}
        if self._ahead is None:
            return
        steps = {trial_id: place.step for trial_id, place in self._places.items()}
        self._ahead.keep(steps)
        budget = self._budgets[PassKind.TRAIN]
        schedule = self._ahead.take(quotas, steps, token_budget=budget)
        after = {trial_id: step + quotas.get(trial_id, 0) for trial_id, step in steps.items()}
        self._ahead.expect(expected, after, token_budget=budget)
        if schedule is not None:
            self._ranks.ask(Call.of(StagedExecutor.use_schedule, schedule))

    def pipeline_times(self) -> PipelineTimes:
        """Return when the passes of the last window ran on each stage of a pipeline."""
        return joined_times(self._ranks.ask(Call.of(StagedExecutor.pass_times)))

    def close(self) -> None:
        """End the ranks."""
        if self._ahead is not None:
            self._ahead.close()
        self._ranks.close()
        self._rendezvous.remove()

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
