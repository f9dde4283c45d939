"""Trials divided over ranks that each hold the whole frozen model, or parts of it that they copy from each other.

Rank 0 is the user's process and trains as well; it alone decides and records. The others carry out its commands, and
all step at the same time. No number is exchanged within a pass, so a trial has the bits that it has on one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cohort.adapters.bank import BankFullError
from cohort.core.events import StepDone
from cohort.core.memory_records import MemoryShortage, PassKind
from cohort.core.rank_work import RankWork
from cohort.data.tokenised import TokenisedRows
from cohort.ranks.answers import Prompt
from cohort.ranks.commands import (
    ConnectParts,
    Drop,
    Evaluate,
    Fits,
    Generate,
    Load,
    LowerBudgets,
    MakeRoom,
    Run,
    ShareParts,
    State,
    Step,
    Weights,
)
from cohort.ranks.moved_state import state_on
from cohort.ranks.peer_source import has_parts
from cohort.ranks.rank_executor import RankExecutor
from cohort.ranks.rank_link import RankLink
from cohort.ranks.replica_ranks import ReplicaRanks
from cohort.ranks.sent_rows import SentRows
from cohort.ranks.step_window import StepWindow, joined
from cohort.training.device_memory import DeviceMemory
from cohort.training.evaluation_loss import EvaluationLoss
from cohort.training.gradient_checkpointing import GradientCheckpointingPolicy
from cohort.training.objectives import DEFAULT_OBJECTIVE
from cohort.training.objectives.objective import Objective
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["ReplicaExecutor"]


@dataclass(kw_only=True)
class _Place:
    """Where a trial is: its rank, its slot there, the steps it has done, and the examples of one of its steps."""

    rank: int
    slot: int
    step: int
    batch_size: int


class ReplicaExecutor:
    """Satisfies :class:`~cohort.ranks.training_executor.TrainingExecutor` with several ranks."""

    def __init__(self, local: RankExecutor, others: Sequence[RankLink]) -> None:
        """Join rank 0 with ranks 1, 2, ... that were started, and wait until they are ready.

        Raises:
            RankLostError: one of them ended.
            Exception: one of them could not build its executor.
        """
        self._local, self._others = local, ReplicaRanks(others, make_room=local.make_room)
        self._places: dict[int, _Place] = {}
        self._rows = SentRows(local.train_rows, send=self._others.ask_all)
        self.notes: tuple[str, ...] = ()
        # steps that were done while another failed; reported when they are asked for again
        self._unreported: dict[int, StepDone] = {}
        try:
            self._others.wait_until_ready()
            if has_parts(local.decoder):
                handles = (local.share_parts(), *self._others.ask_all(ShareParts()))
                own = local.connect_parts(handles)
                found = (own, *self._others.ask_all(ConnectParts(handles=handles)))
                self.notes = tuple(note for of_rank in found for note in of_rank)
        except BaseException:
            self.close()
            raise

    @property
    def num_ranks(self) -> int:
        return 1 + len(self._others)

    @property
    def work(self) -> tuple[RankWork, ...]:
        return self._others.work

    @property
    def reliefs(self) -> list[Callable[[], bool]]:
        return self._local.reliefs

    @property
    def bank_bytes(self) -> int:
        return self._local.bank_bytes

    @property
    def memory(self) -> DeviceMemory:
        return self._local.memory

    @property
    def gradient_checkpointing(self) -> GradientCheckpointingPolicy:
        return self._local.gradient_checkpointing

    @property
    def num_recomputed(self) -> int:
        return self._local.num_recomputed + self._others.num_recomputed

    @property
    def token_budgets(self) -> dict[PassKind, int]:
        """The lowest of all ranks: what a resumed run begins with."""
        all_ranks = [self._local.token_budgets, *self._others.token_budgets.values()]
        return {kind: min(budgets.get(kind, most) for budgets in all_ranks) for kind, most in all_ranks[0].items()}

    def lower_token_budgets(self, budgets: Mapping[PassKind, int]) -> None:
        self._local.lower_token_budgets(budgets)
        if budgets:
            self._others.ask_all(LowerBudgets(token_budgets=dict(budgets)))

    def lower_kept_tokens(self, keep_tokens: int) -> None:
        self._local.lower_kept_tokens(keep_tokens)
        self._others.ask_all(LowerBudgets(token_budgets={}, keep_tokens=keep_tokens))

    def take_shortages(self) -> tuple[MemoryShortage, ...]:
        return (*self._local.take_shortages(), *self._others.take_shortages())

    def make_room(self) -> bool:
        """Free the next of what any rank keeps only to save time; return False if there was nothing."""
        # all ranks: the caller does not know which of them is short
        did_free = [self._local.make_room(), *self._others.ask_all(MakeRoom())]
        return any(did_free)

    @property
    def resident(self) -> tuple[int, ...]:
        """Trials in slot order."""
        return tuple(sorted(self._places, key=self.slot_of))

    def fits(self, spec: TrialSpec) -> bool:
        return any(self._fits(rank, spec) for rank in range(self.num_ranks))

    def load(
        self,
        spec: TrialSpec,
        state: TrialState | None = None,
        *,
        rows: TokenisedRows | None = None,
        rank: int | None = None,
    ) -> int:
        """Make a trial resident; on the rank with the least to do that has room where ``rank`` is None."""
        if spec.trial_id in self._places:
            raise ValueError(f"trial {spec.trial_id} is already resident")
        where = self._least_busy(spec) if rank is None else rank
        step = 0 if state is None else state.step
        if where == 0:
            slot = self._local.load(
                spec, None if state is None else state_on(state, self._local.memory.device), rows=rows
            )
        else:
            number = self._rows.number(self._local.train_rows if rows is None else rows)
            # a tensor that was opened here cannot be passed on: it goes as a copy, straight to the GPU of the rank
            target = torch.device("cuda", where) if self._others.opens_gpu_memory(where) else torch.device("cpu")
            carried = None if state is None else state_on(state, target, copies=True)
            slot = self._others.ask(where, Load(spec=spec, state=carried, rows=number))
        self._places[spec.trial_id] = _Place(rank=where, slot=slot, step=step, batch_size=spec.batch_size)
        self._unreported.pop(spec.trial_id, None)
        return self.slot_of(spec.trial_id)

    def state(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        if (rank := self.rank_of(trial_id)) == 0:
            return self._local.state(trial_id, on_device=on_device)
        # opened where it is and copied from there: through the connection it would take ten times as long
        found: TrialState = self._others.ask(rank, State(trial_id=trial_id))
        return found if on_device else state_on(found, torch.device("cpu"))

    def weights(self, trial_id: int, *, on_device: bool = False) -> Tensor:
        if (rank := self.rank_of(trial_id)) == 0:
            return self._local.weights(trial_id, on_device=on_device)
        found: Tensor = self._others.ask(rank, Weights(trial_id=trial_id))
        return found if on_device else found.cpu()

    def unload(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        state = self.state(trial_id, on_device=on_device)
        self.drop(trial_id)
        return state

    def drop(self, trial_id: int) -> None:
        if (rank := self.rank_of(trial_id)) == 0:
            self._local.drop(trial_id)
        else:
            self._others.ask(rank, Drop(trial_id=trial_id))
        del self._places[trial_id]
        self._unreported.pop(trial_id, None)

    def slot_of(self, trial_id: int) -> int:
        place = self._places[trial_id]
        return place.rank * self._local.bank.num_slots + place.slot

    def rank_of(self, trial_id: int) -> int:
        return self._places[trial_id].rank

    def steps_of(self, trial_id: int) -> int:
        return self._places[trial_id].step

    def step(self, trial_ids: Sequence[int] | None = None) -> tuple[StepDone, ...]:
        """Run one optimizer step of each of ``trial_ids``, on all ranks at the same time.

        Raises:
            RankLostError: a rank ended.
            Exception: of the first rank that raised. Steps of other ranks are done then, and the next call that asks
                for them returns them.
        """
        wanted = self._places.keys() if trial_ids is None else set(trial_ids)
        events = {key: self._unreported.pop(key) for key in wanted & self._unreported.keys()}
        shares = self._shares(wanted - events.keys())
        found, error = self._others.together(
            PassKind.TRAIN,
            {rank: Step(trial_ids=keys) for rank, keys in shares.items() if rank},
            local=(lambda: self._local.step(shares[0])) if 0 in shares else None,
        )
        for event in (event for of_rank in found.values() for event in of_rank):
            events[event.trial_id] = event
            self._places[event.trial_id].step = event.step
        if error is not None:
            self._unreported.update(events)
            raise error
        return tuple(events[key] for key in self.resident if key in events)

    def run(self, quotas: Mapping[int, int]) -> StepWindow:
        """Run up to ``quotas`` steps of each trial, each rank at its own pace.

        Raises:
            RankLostError: a rank ended.
        """
        if self._unreported:
            return StepWindow(rounds=(self.step(list(quotas)),))
        shares = self._shares(quotas.keys())
        found, error = self._others.together(
            PassKind.TRAIN,
            {rank: Run(quotas={key: quotas[key] for key in keys}) for rank, keys in shares.items() if rank},
            local=(lambda: self._local.run({key: quotas[key] for key in shares[0]})) if 0 in shares else None,
        )
        window = joined(found[rank] for rank in sorted(found))
        for event in (event for events in window.rounds for event in events):
            self._places[event.trial_id].step = event.step
        return window if error is None else replace(window, error=error)

    def evaluate(
        self,
        trial_ids: Sequence[int],
        *,
        rows: TokenisedRows,
        row_ids: Sequence[int],
        objective: Objective | None = None,
    ) -> dict[int, EvaluationLoss]:
        shares = self._shares(trial_ids)

        def local() -> dict[int, EvaluationLoss]:
            return self._local.evaluate(shares[0], rows=rows, row_ids=row_ids, objective=objective)

        found, error = self._others.together(
            PassKind.EVALUATE,
            {
                rank: Evaluate(
                    trial_ids=keys, rows=self._rows.number(rows), row_ids=tuple(row_ids), objective=objective
                )
                for rank, keys in shares.items()
                if rank
            },
            local=local if 0 in shares else None,
        )
        if error is not None:
            raise error
        return {key: loss for of_rank in found.values() for key, loss in of_rank.items()}

    def evaluate_base(
        self, *, rows: TokenisedRows, row_ids: Sequence[int], objective: Objective = DEFAULT_OBJECTIVE
    ) -> EvaluationLoss:
        return self._local.evaluate_base(rows=rows, row_ids=row_ids, objective=objective)

    def generate(self, prompts: Sequence[Prompt], *, max_new_tokens: int, stop_ids: frozenset[int]) -> list[list[int]]:
        shares: dict[int, list[int]] = {}
        for place, prompt in enumerate(prompts):
            rank = 0 if prompt.trial_id is None else self.rank_of(prompt.trial_id)
            shares.setdefault(rank, []).append(place)
        own = {rank: [prompts[place] for place in places] for rank, places in shares.items()}

        def answer() -> list[list[int]]:
            return self._local.generate(own[0], max_new_tokens=max_new_tokens, stop_ids=stop_ids)

        found, error = self._others.together(
            PassKind.EVALUATE,
            {
                rank: Generate(prompts=asked, max_new_tokens=max_new_tokens, stop_ids=stop_ids)
                for rank, asked in own.items()
                if rank
            },
            local=answer if 0 in own else None,
        )
        if error is not None:
            raise error
        texts: list[list[int]] = [[] for _ in prompts]
        for rank, places in shares.items():
            for place, tokens in zip(places, found[rank], strict=True):
                texts[place] = tokens
        return texts

    def close(self) -> None:
        """End the other ranks."""
        self._local.close()
        self._others.close()

    def _fits(self, rank: int, spec: TrialSpec) -> bool:
        return self._local.fits(spec) if rank == 0 else bool(self._others.ask(rank, Fits(spec=spec)))

    def _least_busy(self, spec: TrialSpec) -> int:
        busy = [0] * self.num_ranks
        for place in self._places.values():
            busy[place.rank] += place.batch_size
        for rank in sorted(range(self.num_ranks), key=lambda rank: (busy[rank], rank)):
            if self._fits(rank, spec):
                return rank
        raise BankFullError(f"no rank has room for an adapter of rank {spec.adapter.num_rows}")

    def _shares(self, trial_ids: Iterable[int]) -> dict[int, list[int]]:
        shares: dict[int, list[int]] = {}
        for key in sorted(trial_ids, key=self.slot_of):
            shares.setdefault(self.rank_of(key), []).append(key)
        return shares
