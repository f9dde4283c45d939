"""What one pass computes, in numbers alone: what every rank of a divided model needs to compute its part of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cohort.serving.scheduler import StepPlan
from cohort.serving.sequence import LiveSequence

__all__ = ["PassRecord", "SequencePart", "record_of"]


# one for every token: a frozen one takes three times as long to make
@dataclass(kw_only=True, slots=True)
class SequencePart:
    """New positions of one sequence, from ``start`` on; nothing changes it.

    Attributes:
        number: The sequence's.
        slot: Its adapter's; None for the frozen model.
        tokens: At these positions.
        blocks: The sequence's blocks, those of the new positions included.
        is_prompt: Computed in tiles; False: its newest token, computed alone.
        is_sampled: Whether the logits of the last position are wanted.
    """

    number: int
    slot: int | None
    start: int
    tokens: Sequence[int]
    blocks: Sequence[int]
    is_prompt: bool
    is_sampled: bool

    @property
    def count(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, kw_only=True)
class PassRecord:
    """One pass.

    Attributes:
        parts: By slot, those of no adapter last, as every stream is.
        stored: Preempted sequences and the blocks to copy to the host first.
        restored: Sequences that come back, and their blocks.
        forgotten: Preempted sequences that do not come back.
        fresh_blocks: Blocks to be zeroed first.
    """

    parts: Sequence[SequencePart]
    stored: Sequence[tuple[int, Sequence[int]]] = ()
    restored: Sequence[tuple[int, Sequence[int]]] = ()
    forgotten: Sequence[int] = ()
    fresh_blocks: Sequence[int] = ()

    @property
    def only_decodes(self) -> bool:
        return not any(part.is_prompt for part in self.parts)


def record_of(plan: StepPlan) -> tuple[PassRecord, list[LiveSequence]]:
    """Return a plan as a record, and the sequences whose logits are wanted, in the order of its parts."""
    counted = [(sequence, count, True) for sequence, count in plan.prefills]
    counted += [(sequence, 1, False) for sequence in plan.decodes]
    counted.sort(key=_place)
    parts = tuple(_parts(counted))
    record = PassRecord(
        parts=parts,
        stored=[(sequence.number, blocks) for sequence, blocks in plan.stored],
        restored=[(sequence.number, sequence.blocks) for sequence in plan.restored],
        forgotten=plan.forgotten,
        fresh_blocks=plan.fresh_blocks,
    )
    sampled = [sequence for (sequence, _, _), part in zip(counted, parts, strict=True) if part.is_sampled]
    return record, sampled


def _place(counted: tuple[LiveSequence, int, bool]) -> tuple[float, int]:
    """By slot, those of no adapter last, then in the order in which they came."""
    sequence = counted[0]
    slot = sequence.slot
    return (math.inf if slot is None else slot, sequence.number)


def _parts(counted: Sequence[tuple[LiveSequence, int, bool]]) -> Iterator[SequencePart]:
    for sequence, count, is_prompt in counted:
        start = sequence.num_computed
        stop = start + count
        yield SequencePart(
            number=sequence.number,
            slot=sequence.slot,
            start=start,
            tokens=sequence.tokens[start:stop],
            blocks=sequence.blocks,
            is_prompt=is_prompt,
            is_sampled=stop == len(sequence.tokens),
        )
