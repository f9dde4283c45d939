"""The adapter that was served least is next, and a pause saves up no claims."""

from __future__ import annotations

from cohort.serving.fair_queue import FairQueue
from cohort.serving.sequence import LiveSequence, SequenceRequest


def waiting(number: int, adapter: str | None) -> LiveSequence:
    request = SequenceRequest(prompt_tokens=[1] * 10, max_new_tokens=5, adapter=adapter)
    return LiveSequence(number=number, request=request, most=5, tokens=[1] * 10)


def test_a_flood_of_one_adapter_does_not_starve_another() -> None:
    queue = FairQueue()
    flood = [waiting(number, "loud") for number in range(100)]
    for sequence in flood:
        queue.add(sequence)
    quiet = [waiting(100 + number, "quiet") for number in range(3)]
    for sequence in quiet:
        queue.add(sequence)
    order = []
    for _ in range(6):
        _, sequence = queue.fairest_first()[0]
        queue.remove(sequence)
        queue.charge(sequence.request.adapter, 20)
        order.append(sequence.request.adapter)
    assert order == ["loud", "quiet"] * 3
    assert len(queue) == 97
    assert [sequence.number for sequence in queue] == list(range(3, 100))


def test_first_come_first_served_within_an_adapter() -> None:
    queue = FairQueue()
    first, second = waiting(0, None), waiting(1, None)
    queue.add(first)
    queue.add(second)
    assert queue.fairest_first() == [(0, first)]
    queue.remove(first)
    assert queue.fairest_first() == [(0, second)]


def test_one_that_comes_back_claims_nothing_for_its_pause() -> None:
    queue = FairQueue()
    queue.add(waiting(0, "busy"))
    queue.charge("busy", 1000)
    queue.add(waiting(1, "late"))
    counters = {sequence.request.adapter: counter for counter, sequence in queue.fairest_first()}
    assert counters == {"busy": 1000, "late": 1000}


def test_what_was_served_counts_after_a_short_pause() -> None:
    queue = FairQueue()
    queue.charge("greedy", 500)
    queue.add(waiting(0, "greedy"))
    queue.add(waiting(1, "other"))
    queue.charge("greedy", 100)
    assert [sequence.request.adapter for _, sequence in queue.fairest_first()] == ["other", "greedy"]
