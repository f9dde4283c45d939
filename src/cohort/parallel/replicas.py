"""Trials divided over ranks that each hold the whole frozen model, or parts of it that they copy from each other.

Rank 0 is the user's process and trains as well; it alone decides and records. The others carry out its commands, and
all step at the same time. No number is exchanged within a pass, so a trial has the bits that it has on one rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cohort.adapters.bank import BankFullError
from cohort.core.errors import SampleTooLargeError
from cohort.core.events import StepDone
from cohort.core.memory_records import MemoryShortage, PassKind
from cohort.core.rank_work import RankWork
from cohort.data.tokenised import TokenisedRows
from cohort.parallel.answers import Prompt
from cohort.parallel.commands import (
    Command,
    ConnectParts,
    Drop,
    Evaluate,
    Fits,
    Generate,
    Load,
    LowerBudgets,
    MakeRoom,
    Reply,
    Rows,
    Run,
    ShareParts,
    State,
    Step,
    Weights,
)
from cohort.parallel.peer_source import has_parts
from cohort.parallel.rank_executor import RankExecutor
from cohort.parallel.rank_link import RankLink
from cohort.parallel.step_window import StepWindow, joined
from cohort.parallel.work_meter import WorkMeter
from cohort.training.device_memory import DeviceMemory, is_out_of_memory
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
    """Satisfies :class:`~cohort.parallel.training_executor.TrainingExecutor` with several ranks."""

    def __init__(self, local: RankExecutor, others: Sequence[RankLink]) -> None:
        """Join rank 0 with ranks 1, 2, ... that were started, and wait until they are ready.

        Raises:
            RankLostError: one of them ended.
            Exception: one of them could not build its executor.
        """
        self._local, self._others = local, {process.rank: process for process in others}
        self._places: dict[int, _Place] = {}
        # by identity, as rows of a task are one object; kept, so that no other object takes the number
        self._rows: dict[int, TokenisedRows] = {0: local.train_rows}
        self._known: dict[int, dict[PassKind, int]] = {}
        self._num_recomputed: dict[int, int] = {}
        self.notes: tuple[str, ...] = ()
        self._meter = WorkMeter(1 + len(others))
        self._shortages: list[MemoryShortage] = []
        # steps that were done while another failed; reported when they are asked for again
        self._unreported: dict[int, StepDone] = {}
        try:
            for process in others:
                self._value(process.rank, process.answer())
            if has_parts(local.decoder):
                handles = (local.share_parts(), *self._on_others(ShareParts()))
                own = local.connect_parts(handles)
                found = (own, *self._on_others(ConnectParts(handles=handles)))
                self.notes = tuple(note for of_rank in found for note in of_rank)
        except BaseException:
            self.close()
            raise

    @property
    def num_ranks(self) -> int:
        return 1 + len(self._others)

    @property
    def work(self) -> tuple[RankWork, ...]:
        return self._meter.totals

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
        return self._local.num_recomputed + sum(self._num_recomputed.values())

    @property
    def token_budgets(self) -> dict[PassKind, int]:
        """The lowest of all ranks: what a resumed run begins with."""
        all_ranks = [self._local.token_budgets, *self._known.values()]
        return {kind: min(budgets.get(kind, most) for budgets in all_ranks) for kind, most in all_ranks[0].items()}

    def lower_token_budgets(self, budgets: Mapping[PassKind, int]) -> None:
        self._local.lower_token_budgets(budgets)
        if budgets:
            self._on_others(LowerBudgets(token_budgets=dict(budgets)))

    def lower_kept_tokens(self, keep_tokens: int) -> None:
        self._local.lower_kept_tokens(keep_tokens)
        self._on_others(LowerBudgets(token_budgets={}, keep_tokens=keep_tokens))

    def take_shortages(self) -> tuple[MemoryShortage, ...]:
        found, self._shortages = self._shortages, []
        return (*self._local.take_shortages(), *found)

    def make_room(self) -> bool:
        """Free the next of what any rank keeps only to save time; return False if there was nothing."""
        # all ranks: the caller does not know which of them is short
        did_free = [self._local.make_room(), *self._on_others(MakeRoom())]
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
            slot = self._local.load(spec, None if state is None else _on(state, self._local.memory.device), rows=rows)
        else:
            number = self._send_rows(self._local.train_rows if rows is None else rows)
            # a tensor that was opened here cannot be passed on: it goes as a copy, straight to the GPU of the rank
            target = torch.device("cuda", where) if self._others[where].opens_gpu_memory else torch.device("cpu")
            carried = None if state is None else _on(state, target, copies=True)
            slot = self._ask(where, Load(spec=spec, state=carried, rows=number))
        self._places[spec.trial_id] = _Place(rank=where, slot=slot, step=step, batch_size=spec.batch_size)
        self._unreported.pop(spec.trial_id, None)
        return self.slot_of(spec.trial_id)

    def state(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        if (rank := self.rank_of(trial_id)) == 0:
            return self._local.state(trial_id, on_device=on_device)
        # opened where it is and copied from there: through the connection it would take ten times as long
        found: TrialState = self._ask(rank, State(trial_id=trial_id))
        return found if on_device else _on(found, torch.device("cpu"))

    def weights(self, trial_id: int, *, on_device: bool = False) -> Tensor:
        if (rank := self.rank_of(trial_id)) == 0:
            return self._local.weights(trial_id, on_device=on_device)
        found: Tensor = self._ask(rank, Weights(trial_id=trial_id))
        return found if on_device else found.cpu()

    def unload(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        state = self.state(trial_id, on_device=on_device)
        self.drop(trial_id)
        return state

    def drop(self, trial_id: int) -> None:
        if (rank := self.rank_of(trial_id)) == 0:
            self._local.drop(trial_id)
        else:
            self._ask(rank, Drop(trial_id=trial_id))
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
        found, error = self._all(
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
        found, error = self._all(
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

        found, error = self._all(
            PassKind.EVALUATE,
            {
                rank: Evaluate(trial_ids=keys, rows=self._send_rows(rows), row_ids=tuple(row_ids), objective=objective)
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

        found, error = self._all(
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
        for process in self._others.values():
            process.close()

    def _fits(self, rank: int, spec: TrialSpec) -> bool:
        return self._local.fits(spec) if rank == 0 else bool(self._ask(rank, Fits(spec=spec)))

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

    def _send_rows(self, rows: TokenisedRows) -> int:
        """Return the number under which the other ranks keep these rows; new rows go to all of them."""
        for number, known in self._rows.items():
            if known is rows:
                return number
        number = len(self._rows)
        self._on_others(Rows(number=number, rows=rows))
        self._rows[number] = rows
        return number

    def _all(
        self, kind: PassKind, commands: Mapping[int, Command], *, local: Callable[[], Any] | None
    ) -> tuple[dict[int, Any], Exception | None]:
        """Carry out commands on several ranks at the same time; return what they returned, and the first error.

        A rank that is out of memory with nothing of its own left to free is asked again after states of parked trials
        have left the GPUs.
        """
        for rank, command in commands.items():
            self._others[rank].ask(command)
        found: dict[int, Any] = {}
        seconds: dict[int, float] = {}
        first: Exception | None = None
        if local is not None:
            began = time.monotonic()
            try:
                found[0] = local()
            except Exception as error:
                first = error
            seconds[0] = time.monotonic() - began
        # every answer is awaited, or the next command would get this one's
        for rank in commands:
            reply = self._others[rank].answer()
            while reply.error is not None and _is_short(reply.error) and self._local.make_room():
                self._take(rank, reply)
                reply = self._others[rank].do(commands[rank])
            seconds[rank] = reply.seconds
            try:
                found[rank] = self._value(rank, reply)
            except Exception as error:
                first = first or error
        self._meter.took(kind, seconds, found)
        return found, first

    def _ask(self, rank: int, command: Command) -> Any:
        return self._value(rank, self._others[rank].do(command))

    def _on_others(self, command: Command) -> list[Any]:
        return [self._ask(rank, command) for rank in self._others]

    def _take(self, rank: int, reply: Reply) -> None:
        self._shortages += reply.shortages
        self._known[rank] = dict(reply.token_budgets)
        self._num_recomputed[rank] = reply.num_recomputed

    def _value(self, rank: int, reply: Reply) -> Any:
        self._take(rank, reply)
        if reply.error is not None:
            raise reply.error from reply.cause
        return reply.value


def _is_short(error: BaseException) -> bool:
    return isinstance(error, SampleTooLargeError) or is_out_of_memory(error)


def _on(state: TrialState, device: torch.device, *, copies: bool = False) -> TrialState:
    """Return a state whose tensors of another GPU are on ``device``; those of the host stay there.

    Args:
        copies: Copy also what is on ``device``.
    """

    def moved(tensor: Tensor) -> Tensor:
        return tensor.to(device, copy=copies) if tensor.is_cuda else tensor

    moments = {name: moved(moment) for name, moment in state.adapter.moments.items()}
    return replace(state, adapter=replace(state.adapter, weights=moved(state.adapter.weights), moments=moments))
