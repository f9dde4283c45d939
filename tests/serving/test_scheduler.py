"""What a pass takes: newest tokens first, then chunks of prompts; and who has to wait."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest

from cohort.serving.block_manager import BlockManager
from cohort.serving.scheduler import Admission, Scheduler, SchedulerSettings, StepPlan
from cohort.serving.sequence import LiveSequence, SequenceRequest


class Slots:
    """So many slots; adapters named ``loading`` are never there."""

    num_slots = 0

    def __init__(self, count: int = 8) -> None:
        self.count = count
        self.users: dict[Hashable, int] = {}

    def acquire(self, adapter: Hashable) -> Admission | None:
        if adapter == "loading" or self.waits_for_slot(adapter):
            return None
        self.users[adapter] = self.users.get(adapter, 0) + 1
        return Admission(slot=0, version=adapter)

    def waits_for_slot(self, adapter: Hashable) -> bool:
        return adapter != "loading" and adapter not in self.users and len(self.users) >= self.count

    def release(self, adapter: Hashable, version: Hashable) -> None:
        self.users[adapter] -= 1
        if not self.users[adapter]:
            del self.users[adapter]


def scheduler_of(*, num_blocks: int = 100, slots: Slots | None = None, **settings: Any) -> Scheduler:
    return Scheduler(SchedulerSettings(**settings), blocks=BlockManager(num_blocks), adapters=slots or Slots())


def add(scheduler: Scheduler, number: int, length: int, *, adapter: str | None = None, most: int = 100) -> LiveSequence:
    tokens = [number * 1000 + place for place in range(length)]
    request = SequenceRequest(prompt_tokens=tokens, max_new_tokens=most, adapter=adapter)
    sequence = LiveSequence(number=number, request=request, most=most, tokens=list(tokens))
    scheduler.add(sequence)
    return sequence


def advance(scheduler: Scheduler, plan: StepPlan) -> None:
    scheduler.computed(plan)
    for sequence in [sequence for sequence, _ in plan.prefills] + plan.decodes:
        if sequence.num_computed == len(sequence.tokens):
            sequence.tokens.append(7)


def test_chunks_of_a_long_prompt_ride_with_decoding() -> None:
    scheduler = scheduler_of(max_num_batched_tokens=64, max_num_seqs=4)
    short, long = add(scheduler, 0, 10), add(scheduler, 1, 120)
    plan = scheduler.plan()
    assert plan.prefills == [(short, 10), (long, 48)]
    advance(scheduler, plan)
    plan = scheduler.plan()
    assert (plan.prefills, plan.decodes) == ([(long, 48)], [short])
    advance(scheduler, plan)
    plan = scheduler.plan()
    assert (plan.prefills, plan.decodes) == ([(long, 24)], [short])
    advance(scheduler, plan)
    assert scheduler.plan().decodes == [short, long]


def test_the_last_admitted_is_preempted_and_comes_back() -> None:
    scheduler = scheduler_of(num_blocks=4, max_num_seqs=4)
    first, second = add(scheduler, 0, 30), add(scheduler, 1, 30)
    for _ in range(4):
        plan = scheduler.plan()
        advance(scheduler, plan)
    # the first needs its third block now
    assert plan.decodes == [first]
    assert [sequence for sequence, _ in plan.stored] == [second]
    assert scheduler.num_preemptions == 1
    waiting = add(scheduler, 2, 5)
    assert scheduler.plan().prefills == []
    scheduler.remove(first)
    plan = scheduler.plan()
    assert (plan.restored, plan.decodes) == ([second], [second])
    assert [sequence for sequence, _ in plan.prefills] == [waiting]


def test_an_adapter_that_is_loading_holds_nobody_up() -> None:
    scheduler = scheduler_of()
    add(scheduler, 0, 10, adapter="loading")
    other = add(scheduler, 1, 10, adapter="there")
    assert scheduler.plan().prefills == [(other, 10)]
    assert scheduler.has_work


def test_one_that_waits_for_a_slot_is_not_overtaken_for_ever() -> None:
    scheduler = scheduler_of(slots=Slots(1), fairness_tokens=25, max_num_seqs=1)
    for number in range(20):
        add(scheduler, number, 10, adapter="busy", most=1)
    late = add(scheduler, 20, 10, adapter="late", most=1)
    admitted = []
    for _ in range(10):
        plan = scheduler.plan()
        advance(scheduler, plan)
        for sequence, _ in plan.prefills:
            admitted.append(sequence)
            scheduler.remove(sequence)
        if late in admitted:
            break
    assert admitted[-1] is late


@pytest.mark.parametrize(("read", "third"), [(29, 3), (31, 1)])
def test_a_generated_token_counts_as_two_of_a_prompt(read: int, third: int) -> None:
    scheduler = scheduler_of(max_num_seqs=1, max_num_batched_tokens=64)
    writing, _ = add(scheduler, 0, 10, adapter="writer"), add(scheduler, 1, 10, adapter="writer")
    _, _ = add(scheduler, 2, read, adapter="reader"), add(scheduler, 3, read, adapter="reader")
    admitted = []
    for _ in range(20):
        plan = scheduler.plan()
        advance(scheduler, plan)
        admitted += [sequence for sequence, _ in plan.prefills]
        # the first writes ten tokens, the others one each
        for sequence in [*plan.decodes, *(own for own, _ in plan.prefills if own is not writing)]:
            if len(sequence.tokens) - len(sequence.request.prompt_tokens) == (11 if sequence is writing else 1):
                scheduler.remove(sequence)
        if len(admitted) == 3:
            break
    # the writer was served 10 + 2 x 10 tokens
    assert [sequence.number for sequence in admitted] == [0, 2, third]


def test_room_for_all_growth_is_reserved_where_asked() -> None:
    scheduler = scheduler_of(num_blocks=4, reserves_growth=True)
    first, second = add(scheduler, 0, 10, most=30), add(scheduler, 1, 10, most=30)
    assert scheduler.plan().prefills == [(first, 10)]
    scheduler.remove(first)
    assert [sequence for sequence, _ in scheduler.plan().prefills] == [second]
    assert not scheduler.num_preemptions


@pytest.mark.parametrize(
    "settings", [{"max_num_seqs": 0}, {"max_num_batched_tokens": 8}, {"max_num_seqs": 65, "max_num_batched_tokens": 64}]
)
def test_senseless_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        SchedulerSettings(**settings)
