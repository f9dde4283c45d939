"""Trials divided over ranks that each hold the whole frozen model, or parts of it that they copy from each other.

Rank 0 is the user's process and trains as well; it alone decides and records. The others carry out its calls, and all
step at the same time. No number is exchanged within a pass, so a trial has the bits that it has on one rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from cohort.adapters.bank import BankFullError
from cohort.core.events import StepDone, TrialFailed
from cohort.core.memory_records import MemoryShortage, PassKind
from cohort.core.rank_work import RankWork
from cohort.data.tokenised import TokenisedRows
from cohort.ranks.calls import Call
from cohort.ranks.local_executor import LocalExecutor
from cohort.ranks.moved_state import state_on
from cohort.ranks.peer_source import has_parts
from cohort.ranks.rank_link import RankLink
from cohort.ranks.remote_executor import Place, RemoteExecutor
from cohort.ranks.replica_ranks import ReplicaRanks
from cohort.ranks.step_window import StepWindow, joined
from cohort.ranks.training_executor import Manner, Spread, TrainingExecutor
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["ReplicatedExecutor"]


class ReplicatedExecutor(RemoteExecutor):
    """Several ranks with trials of their own."""

    def __init__(self, local: LocalExecutor, others: Sequence[RankLink]) -> None:
        """Join rank 0 with ranks 1, 2, ... that were started, and wait until they are ready.

        Raises:
            RankLostError: one of them ended.
            Exception: one of them could not build its executor.
        """
        super().__init__(slots_per_rank=local.bank.num_slots)
        self._local, self._ranks = local, ReplicaRanks(local, others)
        self.num_ranks = 1 + len(others)
        self.memory, self.gradient_checkpointing = local.memory, local.gradient_checkpointing
        self.reliefs = local.reliefs
        try:
            self._ranks.wait_until_ready()
            if has_parts(local.decoder):
                handles = self._ranks.ask_all(Call.of(LocalExecutor.share_parts))
                found = self._ranks.ask_all(Call.of(LocalExecutor.connect_parts, handles))
                self.notes = tuple(note for of_rank in found for note in of_rank)
        except BaseException:
            self.close()
            raise

    def call(self, call: Call, manner: Manner) -> Any:
        match manner.spread:
            case Spread.OWNER:
                return self._ranks.ask(self.rank_of(call.arguments["trial_id"]), call)
            case Spread.TRIALS:
                return self._by_trial(call, manner)
            case Spread.ITEMS:
                return self._in_order(call, manner)
        num_asked = self.num_ranks if manner.spread is Spread.ALL else 1
        found = self._together(dict.fromkeys(range(num_asked), call), manner)
        return manner.apart([found[rank] for rank in range(num_asked)])

    @property
    def work(self) -> tuple[RankWork, ...]:
        return self._ranks.work

    @property
    def bank_bytes(self) -> int:
        return self._local.bank_bytes

    @property
    def num_recomputed(self) -> int:
        return self._local.num_recomputed + self._ranks.num_recomputed

    @property
    def token_budgets(self) -> dict[PassKind, int]:
        """The lowest of all ranks: what a resumed run begins with."""
        all_ranks = [self._local.token_budgets, *self._ranks.token_budgets]
        return {kind: min(budgets.get(kind, most) for budgets in all_ranks) for kind, most in all_ranks[0].items()}

    def take_shortages(self) -> tuple[MemoryShortage, ...]:
        return (*self._local.take_shortages(), *self._ranks.take_shortages())

    def load(
        self,
        spec: TrialSpec,
        state: TrialState | None = None,
        *,
        rows: TokenisedRows | None = None,
        rank: int | None = None,
    ) -> int:
        if spec.trial_id in self._places:
            raise ValueError(f"trial {spec.trial_id} is already resident")
        where = self._least_busy(spec) if rank is None else rank
        carried = None if state is None else self._moved(state, where)
        slot = self._ranks.ask(where, Call.of(TrainingExecutor.load, spec, carried, rows=rows))
        step = 0 if state is None else state.step
        self._places[spec.trial_id] = Place(spec=spec, rank=where, slot=slot, step=step)
        return self.slot_of(spec.trial_id)

    def step(self, trial_ids: Sequence[int] | None = None) -> tuple[StepDone, ...]:
        """Run one optimizer step of each of ``trial_ids``, on all ranks at the same time.

        Raises:
            RankLostError: a rank ended.
            Exception: of the first rank that raised. Steps of other ranks are done then, and the next call that asks
                for them returns them.
        """
        wanted = self._places if trial_ids is None else trial_ids
        events = {key: event for key in wanted if (event := self._places[key].unreported) is not None}
        asked = {
            rank: Call.of(TrainingExecutor.step, keys)
            for rank, keys in self._shares(key for key in wanted if key not in events).items()
        }
        found, error = self._ranks.together(asked, PassKind.TRAIN)
        self._count(found.values())
        events |= {event.trial_id: event for of_rank in found.values() for event in of_rank}
        for key, event in events.items():
            self._places[key].unreported = None if error is None else event
        if error is not None:
            raise error
        return tuple(events[key] for key in self.resident if key in events)

    def take_failures(self) -> tuple[TrialFailed, ...]:
        if not any(place.spec.objective.samples_answers for place in self._places.values()):
            return ()
        found = self._ranks.ask_all(Call.of(LocalExecutor.take_failures))
        return tuple(failure for of_rank in found for failure in of_rank)

    def run(self, quotas: Mapping[int, int]) -> StepWindow:
        """Run up to ``quotas`` steps of each trial, each rank at its own pace.

        Raises:
            RankLostError: a rank ended.
        """
        if any(place.unreported is not None for place in self._places.values()):
            return StepWindow(rounds=(self.step(list(quotas)),))
        asked = {
            rank: Call.of(TrainingExecutor.run, {key: quotas[key] for key in keys})
            for rank, keys in self._shares(quotas).items()
        }
        found, error = self._ranks.together(asked, PassKind.TRAIN)
        window = joined(found[rank] for rank in sorted(found))
        self._count(window.rounds)
        return window if error is None else replace(window, error=error)

    def close(self) -> None:
        self._local.close()
        self._ranks.close()

    def _by_trial(self, call: Call, manner: Manner) -> dict[int, Any]:
        name, whole = next(iter(call.arguments.items()))
        asked = {}
        for rank, keys in self._shares(whole).items():
            own = {key: whole[key] for key in keys} if isinstance(whole, Mapping) else keys
            asked[rank] = replace(call, arguments={**call.arguments, name: own})
        found = self._together(asked, manner)
        return {key: value for answers in found.values() for key, value in answers.items()}

    def _in_order(self, call: Call, manner: Manner) -> list[Any]:
        name, items = next(iter(call.arguments.items()))
        places: dict[int, list[int]] = {}
        for place, item in enumerate(items):
            # what is of no trial can be done anywhere
            places.setdefault(0 if item.trial_id is None else self.rank_of(item.trial_id), []).append(place)
        asked = {
            rank: replace(call, arguments={**call.arguments, name: [items[place] for place in own]})
            for rank, own in places.items()
        }
        found = self._together(asked, manner)
        answers = {
            place: answer for rank, own in places.items() for place, answer in zip(own, found[rank], strict=True)
        }
        return [answers[place] for place in range(len(items))]

    def _together(self, asked: Mapping[int, Call], manner: Manner) -> dict[int, Any]:
        found, error = self._ranks.together(asked, manner.passes)
        if error is not None:
            raise error
        return found

    def _moved(self, state: TrialState, rank: int) -> TrialState:
        if rank == 0:
            return state_on(state, self.memory.device)
        # a tensor that was opened here cannot be passed on: it goes as a copy, straight to the GPU of the rank
        target = torch.device("cuda", rank) if self._ranks.opens_gpu_memory(rank) else torch.device("cpu")
        return state_on(state, target, copies=True)

    def _least_busy(self, spec: TrialSpec) -> int:
        busy = [0] * self.num_ranks
        for place in self._places.values():
            busy[place.rank] += place.spec.batch_size
        for rank in sorted(range(self.num_ranks), key=lambda rank: (busy[rank], rank)):
            if self._ranks.ask(rank, Call.of(TrainingExecutor.fits, spec)):
                return rank
        raise BankFullError(f"no rank has room for an adapter of rank {spec.adapter.num_rows}")

    def _shares(self, trial_ids: Iterable[int]) -> dict[int, list[int]]:
        shares: dict[int, list[int]] = {}
        for key in sorted(trial_ids, key=self.slot_of):
            shares.setdefault(self.rank_of(key), []).append(key)
        return shares
