"""How far a sequence is, counted from its tokens."""

from __future__ import annotations

from cohort.serving.kv_blocks import BLOCK_ROWS
from cohort.serving.sequence import LiveSequence, SequenceRequest


def test_a_sequence_counts_prompt_and_answer() -> None:
    prompt = list(range(BLOCK_ROWS))
    request = SequenceRequest(prompt_tokens=prompt, max_new_tokens=2)
    sequence = LiveSequence(number=0, request=request, most=2, tokens=list(prompt))
    assert (sequence.num_prompt, sequence.num_generated, sequence.is_prefilling) == (BLOCK_ROWS, 0, True)
    # two more tokens than a block holds
    assert sequence.most_blocks == 2
    sequence.num_computed = BLOCK_ROWS
    sequence.tokens.append(5)
    assert (sequence.num_generated, sequence.is_prefilling) == (1, False)


def test_sequences_are_themselves_and_own_their_blocks() -> None:
    request = SequenceRequest(prompt_tokens=[1], max_new_tokens=1)
    one, other = (LiveSequence(number=0, request=request, most=1, tokens=[1]) for _ in range(2))
    assert one != other
    one.blocks.append(3)
    assert other.blocks == []
