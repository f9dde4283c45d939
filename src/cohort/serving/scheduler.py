"""What the next pass computes: one token of each running sequence, and chunks of prompts with the room that is left.

Pure decisions over sequences and block numbers; no tensors.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

from cohort.serving.block_manager import BlockManager, prompt_hashes
from cohort.serving.fair_queue import GENERATED_WEIGHT, FairQueue
from cohort.serving.kv_blocks import BLOCK_ROWS, blocks_for
from cohort.serving.sequence import AdapterRef, LiveSequence

__all__ = ["Admission", "AdapterSlots", "Scheduler", "SchedulerSettings", "StepPlan"]


@dataclass(frozen=True, kw_only=True)
class SchedulerSettings:
    """Limits of a pass.

    Attributes:
        max_num_seqs: Most sequences that run at once, at most ``max_num_batched_tokens``.
        max_num_batched_tokens: Most rows of a pass, prompts and newest tokens together; at least 16.
        reserves_growth: Admit a sequence only where the pool has room for all it may grow to, so that none is ever
            preempted; for requests that all come at once.
        finds_prefixes: Reuse keys and values of earlier prompts that begin alike.
        fairness_tokens: By how many tokens an adapter may get ahead of one that waits for a slot.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    reserves_growth: bool = False
    finds_prefixes: bool = True
    fairness_tokens: int = 8192

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < BLOCK_ROWS:
            raise ValueError(f"max_num_batched_tokens must be at least {BLOCK_ROWS}, got {self.max_num_batched_tokens}")
        if not 1 <= self.max_num_seqs <= self.max_num_batched_tokens:
            raise ValueError(
                f"max_num_seqs must be at least 1 and at most max_num_batched_tokens, {self.max_num_batched_tokens}: "
                f"each sequence may take a row of a pass; got {self.max_num_seqs}"
            )


@dataclass(frozen=True, kw_only=True)
class Admission:
    """An adapter that is ready: its slot (None for the frozen model) and its version, which keys the prefix cache."""

    slot: int | None
    version: Hashable


class AdapterSlots(Protocol):
    """What the scheduler asks of adapters. Nothing here may wait."""

    def acquire(self, adapter: AdapterRef) -> Admission | None:
        """Return a slot that stays until it is released; None while the adapter is not there yet."""
        ...

    def waits_for_slot(self, adapter: AdapterRef) -> bool:
        """Return whether the adapter is not there because all slots are in use."""
        ...

    def release(self, adapter: AdapterRef, version: Hashable) -> None: ...


@dataclass(kw_only=True)
class StepPlan:
    """One pass.

    Attributes:
        prefills: Sequences with the number of positions of their prompts to compute.
        decodes: Sequences whose newest token is computed.
        stored: Preempted sequences whose blocks must be copied to the host before the pass, with those blocks.
        restored: Sequences that come back; their blocks must be filled before the pass.
        forgotten: Numbers of preempted sequences that do not come back.
        fresh_blocks: Blocks to be zeroed before the pass.
    """

    prefills: list[tuple[LiveSequence, int]] = field(default_factory=list)
    decodes: list[LiveSequence] = field(default_factory=list)
    stored: list[tuple[LiveSequence, list[int]]] = field(default_factory=list)
    restored: list[LiveSequence] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)
    fresh_blocks: list[int] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.prefills and not self.decodes


class Scheduler:
    """Owns the order of sequences and their blocks.

    Attributes:
        running: In order of admission; the last is preempted first.
        num_preemptions: How often blocks ran out.
    """

    def __init__(self, settings: SchedulerSettings, *, blocks: BlockManager, adapters: AdapterSlots) -> None:
        self.settings, self.blocks, self._adapters = settings, blocks, adapters
        self.waiting = FairQueue()
        self.running: list[LiveSequence] = []
        self.preempted: deque[LiveSequence] = deque()
        self.num_preemptions = 0
        self._forgotten: list[int] = []

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.preempted or len(self.waiting))

    def add(self, sequence: LiveSequence) -> None:
        self.waiting.add(sequence)

    def remove(self, sequence: LiveSequence) -> None:
        """Forget a sequence that is finished, failed or not wanted any more."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.blocks.give_back(sequence.blocks)
            sequence.blocks = []
        elif sequence in self.preempted:
            self.preempted.remove(sequence)
            self._forgotten.append(sequence.number)
        else:
            self.waiting.remove(sequence)
            return
        self._adapters.release(sequence.request.adapter, sequence.version)

    def plan(self) -> StepPlan:
        """Decide the next pass; it is empty where all that waits waits for adapters."""
        plan = StepPlan()
        room = self.settings.max_num_batched_tokens
        for sequence in tuple(self.running):
            # looked for among hundreds only where room was made for another
            if sequence.is_prefilling or (plan.stored and sequence not in self.running):
                continue
            # most have the block of their newest position, and often all that they may grow to
            if len(sequence.tokens) <= len(sequence.blocks) * BLOCK_ROWS or self._grow(sequence, plan):
                plan.decodes.append(sequence)
        self._restore(plan)
        plan.decodes += [sequence for sequence in plan.restored if not sequence.is_prefilling]
        for adapter, count in Counter(sequence.request.adapter for sequence in plan.decodes).items():
            self.waiting.charge(adapter, count * GENERATED_WEIGHT)
        room -= len(plan.decodes)
        for sequence in self.running:
            if sequence.is_prefilling:
                room -= self._chunk(sequence, plan, room=room)
        if not self.preempted:
            self._admit(plan, room=room)
        if not plan.is_empty:
            plan.forgotten, self._forgotten = self._forgotten, []
        return plan

    def _grow(self, sequence: LiveSequence, plan: StepPlan) -> bool:
        """Give a sequence the block of its newest position; return False if it was preempted instead."""
        missing = blocks_for(len(sequence.tokens)) - len(sequence.blocks)
        while missing > self.blocks.num_free:
            victim = self.running[-1]
            self._preempt(victim, plan)
            if victim is sequence:
                return False
        self._take(sequence, missing, plan)
        return True

    def _take(self, sequence: LiveSequence, count: int, plan: StepPlan) -> None:
        if count > 0:
            fresh = self.blocks.take(count)
            sequence.blocks += fresh
            plan.fresh_blocks += fresh

    def _preempt(self, sequence: LiveSequence, plan: StepPlan) -> None:
        self.running.remove(sequence)
        plan.stored.append((sequence, list(sequence.blocks)))
        self.blocks.give_back(sequence.blocks)
        sequence.blocks = []
        self.preempted.appendleft(sequence)
        self.num_preemptions += 1

    def _restore(self, plan: StepPlan) -> None:
        """Let preempted sequences come back, the first admitted first; not in the pass that preempts others."""
        while self.preempted and not plan.stored:
            sequence = self.preempted[0]
            # one block more than it needs now, so that it is not preempted at once
            needed = blocks_for(max(len(sequence.tokens), sequence.num_prompt))
            if needed + bool(self.running) > self.blocks.num_free:
                return
            self.preempted.popleft()
            self._take(sequence, needed, plan)
            self.running.append(sequence)
            plan.restored.append(sequence)

    def _chunk(self, sequence: LiveSequence, plan: StepPlan, *, room: int) -> int:
        """Plan as much of a prompt as there is room for, in whole tiles but for its end; return how much."""
        left = sequence.num_prompt - sequence.num_computed
        count = left if left <= room else room // BLOCK_ROWS * BLOCK_ROWS
        if count > 0:
            plan.prefills.append((sequence, count))
            self.waiting.charge(sequence.request.adapter, count)
        return count

    def _admit(self, plan: StepPlan, *, room: int) -> None:
        while room >= BLOCK_ROWS and len(self.waiting) and len(self.running) < self.settings.max_num_seqs:
            chosen = self._next_ready()
            if chosen is None:
                return
            sequence, admission = chosen
            if not self._place(sequence, admission, plan):
                self._adapters.release(sequence.request.adapter, admission.version)
                return
            self.waiting.remove(sequence)
            self.running.append(sequence)
            room -= self._chunk(sequence, plan, room=room)

    def _next_ready(self) -> tuple[LiveSequence, Admission] | None:
        """Return the first request of the least served adapter that is ready."""
        limit: int | None = None
        for counter, sequence in self.waiting.fairest_first():
            if limit is not None and counter > limit:
                return None
            adapter = sequence.request.adapter
            admission = self._adapters.acquire(adapter)
            if admission is not None:
                return sequence, admission
            if limit is None and self._adapters.waits_for_slot(adapter):
                # others end sooner or later if they get no further ahead, and their slots come free
                limit = counter + self.settings.fairness_tokens
        return None

    def _place(self, sequence: LiveSequence, admission: Admission, plan: StepPlan) -> bool:
        """Give a sequence the blocks of its prompt, found or fresh; return False if there are too few."""
        # what a prompt's length and its time to the first token tell must not tell one tenant about another
        owner = (admission.version, sequence.request.cache_scope)
        hashes = prompt_hashes(sequence.tokens, adapter=owner) if self.settings.finds_prefixes else ()
        found = self.blocks.find(hashes)
        grown = sequence.most_blocks if self.settings.reserves_growth else blocks_for(sequence.num_prompt + 1)
        fresh = min(grown, sequence.most_blocks) - len(found)
        if fresh > self.blocks.num_free_without(found):
            return False
        self.blocks.share(found)
        sequence.blocks = list(found)
        self._take(sequence, fresh, plan)
        sequence.num_computed = len(found) * BLOCK_ROWS
        sequence.slot, sequence.version, sequence.hashes = admission.slot, admission.version, hashes
        return True

    def computed(self, plan: StepPlan) -> None:
        """Count what a pass has computed, and let later prompts find it."""
        for sequence, count in plan.prefills:
            before = sequence.num_computed
            sequence.num_computed += count
            for index in range(before // BLOCK_ROWS, min(sequence.num_computed // BLOCK_ROWS, len(sequence.hashes))):
                self.blocks.remember(sequence.blocks[index], sequence.hashes[index])
        for sequence in plan.decodes:
            sequence.num_computed += 1
