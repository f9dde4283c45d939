"""A plan in numbers alone: by slot, with the sequences whose next token is wanted."""

from __future__ import annotations

import pickle

from cohort.serving.pass_record import record_of
from cohort.serving.scheduler import StepPlan
from cohort.serving.sequence import LiveSequence, SequenceRequest


def live(number: int, *, slot: int | None, length: int, computed: int = 0) -> LiveSequence:
    tokens = [100 * number + place for place in range(length)]
    sequence = LiveSequence(
        number=number, request=SequenceRequest(prompt_tokens=tokens, max_new_tokens=4), most=4, tokens=tokens
    )
    sequence.slot, sequence.num_computed, sequence.blocks = slot, computed, [number + 1]
    return sequence


def test_parts_stand_by_slot_and_say_what_is_computed() -> None:
    base, decoding, begun = (
        live(0, slot=None, length=3),
        live(1, slot=2, length=5, computed=4),
        live(2, slot=1, length=9),
    )
    plan = StepPlan(
        prefills=[(base, 3), (begun, 4)],
        decodes=[decoding],
        stored=[(live(3, slot=0, length=2), [7])],
        forgotten=[5],
        fresh_blocks=[1],
    )
    record, sampled = record_of(plan)
    assert [(part.number, part.slot, part.start, part.count) for part in record.parts] == [
        (2, 1, 0, 4),
        (1, 2, 4, 1),
        (0, None, 0, 3),
    ]
    assert record.parts[0].tokens == [200, 201, 202, 203]
    # the prompt of 2 goes on in the next pass
    assert sampled == [decoding, base]
    assert not record.only_decodes
    assert (record.stored, record.forgotten, record.fresh_blocks) == ([(3, [7])], [5], [1])
    assert pickle.loads(pickle.dumps(record)) == record


def test_only_newest_tokens_are_for_a_graph() -> None:
    record, sampled = record_of(StepPlan(decodes=[live(1, slot=None, length=5, computed=4)]))
    assert record.only_decodes
    assert len(sampled) == 1
