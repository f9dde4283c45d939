"""KTO's KL term is measured once before a step: on each slot's own mismatched rows, and on the frozen model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cohort.data.packing import SlotSample
from cohort.data.tokenised import ReferenceFiles
from cohort.training.batch_values import with_measured_values
from cohort.training.group_terms import StepTerms
from cohort.training.objectives import DEFAULT_OBJECTIVE, OBJECTIVES
from tests.training.small_models import compared_rows

ROWS = compared_rows(8, seed=4, longest=12)
KTO = OBJECTIVES["kto"]


@dataclass
class Passes:
    """A model whose loss of a token is the token times a number of its slot; notes what it was asked."""

    context: int = 100
    asked: list[SlotSample] = field(default_factory=list)
    number: float = 0.0
    adapters: dict[ReferenceFiles, Passes] = field(default_factory=dict)

    def of_adapter(self, reference: ReferenceFiles) -> Passes:
        return self.adapters.setdefault(reference, Passes(number=7.0))

    def measure(self, entries: Sequence[SlotSample]) -> Tensor:
        self.asked += entries
        parts = []
        for entry in entries:
            counted = np.append(entry.sample.trained[1:], False)
            parts.append((2.0 + entry.slot + self.number) * entry.sample.tokens * counted)
        return torch.from_numpy(np.concatenate([*parts, np.zeros(16)]))


class InThrees:
    """Micro-batches of three samples."""

    def run(
        self, entries: Sequence[SlotSample], one_pass: Callable[[Sequence[SlotSample]], Any], *, too_large: object
    ) -> Iterator[Any]:
        del too_large
        for start in range(0, len(entries), 3):
            yield one_pass(entries[start : start + 3])


def entries_of(slot: int, rows: range) -> list[SlotSample]:
    return [SlotSample(slot=slot, sample=ROWS.sample(row)) for row in rows]


def measured(passes: Passes, entries: list[SlotSample], steps: dict[int, StepTerms]) -> dict[int, StepTerms]:
    micro_batches: Any = InThrees()
    return with_measured_values(
        passes, entries, steps, micro_batches=micro_batches, too_large=lambda _, words: AssertionError(words)
    )


def loss_of(sample: Any, slot: int) -> float:
    return float((2.0 + slot) * sample.tokens[:-1] @ sample.trained[1:])


def test_each_slot_has_the_mean_ratio_of_its_own_mismatched_rows() -> None:
    entries = [*entries_of(0, range(3)), *entries_of(1, range(2, 6)), *entries_of(2, range(4))]
    plain = StepTerms(objective=DEFAULT_OBJECTIVE, divisor=7)
    steps = {
        0: StepTerms(objective=KTO, divisor=3, values=(0.0, 0.5)),
        1: StepTerms(objective=KTO, divisor=4, values=(0.0, 0.25)),
        2: plain,
    }
    passes = Passes()
    found = measured(passes, entries, steps)
    assert found[2] is plain
    for slot, own in ((0, entries[:3]), (1, entries[3:7])):
        companions = KTO.companions([entry.sample for entry in own])
        # the frozen model is slot -1
        ratios = [loss_of(sample, -1) - loss_of(sample, slot) for sample in companions]
        # a ratio below 0 on average counts as 0
        assert found[slot].values == (max(0.0, sum(ratios) / len(ratios)), steps[slot].values[1])
    # what the frozen model says of a row is asked once, and no row of the sft slot is read
    frozen = [entry.sample.tokens.tobytes() for entry in passes.asked if entry.slot == -1]
    assert len(frozen) == len(set(frozen))
    assert all(entry.slot != 2 for entry in passes.asked)


def test_a_slot_may_be_held_to_an_adapter() -> None:
    entries = [*entries_of(0, range(3)), *entries_of(1, range(3))]
    plain = StepTerms(objective=KTO, divisor=3, values=(0.0, 0.5))
    passes, reference = Passes(), ReferenceFiles("sft/best", "ab")
    found = measured(passes, entries, {0: plain, 1: replace(plain, reference_adapter=reference)})
    companions = KTO.companions([entry.sample for entry in entries[:3]])
    # the adapter is slot 0 of passes of its own
    ratios = [loss_of(sample, 7) - loss_of(sample, 1) for sample in companions]
    assert found[1].values == (sum(ratios) / len(ratios), 0.5)
    assert found[0].values == measured(Passes(), entries[:3], {0: plain})[0].values
    assert len(passes.adapters[reference].asked) == len({sample.tokens.tobytes() for sample in companions})


def test_the_frozen_model_alone_is_at_no_distance_from_itself() -> None:
    found = measured(Passes(), entries_of(-1, range(4)), {-1: StepTerms(objective=KTO, divisor=4, values=(0.0, 0.5))})
    assert found[-1].values == (0.0, 0.5)


def test_nothing_is_measured_where_nothing_compares_batches() -> None:
    passes = Passes()
    steps = {0: StepTerms(objective=KTO.with_values({"loss_type": "apo_zero_unpaired"}), divisor=2)}
    assert measured(passes, entries_of(0, range(2)), steps) == steps
    assert not passes.asked


@pytest.mark.parametrize("context", [5, 100])
def test_a_mismatched_row_is_cut_to_what_the_model_reads(context: int) -> None:
    passes = Passes(context=context)
    measured(passes, entries_of(0, range(4)), {0: StepTerms(objective=KTO, divisor=4, values=(0.0, 0.5))})
    assert max(len(entry.sample.tokens) for entry in passes.asked) <= context
