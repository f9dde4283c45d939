"""Evaluation: sums by slot in the order of the rows, means of metrics, the frozen model last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from cohort.core.memory_records import PassKind
from cohort.data.packing import SlotSample
from cohort.data.tokenised import Sample
from cohort.training.device_memory import DeviceMemory
from cohort.training.evaluation_loss import BASE_SLOT, evaluation_losses
from cohort.training.micro_batches import MicroBatches
from cohort.training.objectives.kinds.sft import SupervisedFineTuning
from cohort.training.objectives.objective import Groups, Objective
from tests.training.small_models import random_rows

ROWS = random_rows(8, seed=6, longest=10)


class PairsByLength(Objective):
    """Terms and a metric that a test can compute from row ids."""

    group_size = 2

    def divisor(self, samples: Sequence[Sample]) -> int:
        return 10

    def terms(self, groups: Groups) -> Tensor:
        samples = groups.samples
        return torch.tensor([float(len(a.tokens) - len(b.tokens)) for a, b in zip(samples[::2], samples[1::2])])  # noqa: B905

    def metrics(self, groups: Groups) -> Mapping[str, Tensor]:
        return {"first": torch.tensor([float(sample.sample_id) for sample in groups.samples[::2]])}


def evaluate(
    objective: Objective, *, slots: Sequence[int], row_ids: Sequence[int], token_budget: int
) -> tuple[dict[int, Any], list[list[int]]]:
    """Evaluate with losses that are the slot's number plus one in every row."""
    passes: list[list[int]] = []

    def measure(entries: Sequence[SlotSample]) -> Tensor:
        passes.append([entry.slot for entry in entries])
        return torch.cat([torch.full((len(entry.sample.tokens),), float(entry.slot + 2)) for entry in entries])

    found = evaluation_losses(
        SimpleNamespace(measure=measure, context=64),
        micro_batches=MicroBatches(
            PassKind.EVALUATE,
            token_budget=token_budget,
            memory=DeviceMemory("cpu"),
            reliefs=[],
        ),
        objectives=dict.fromkeys(slots, objective),
        rows=ROWS,
        row_ids=row_ids,
        too_large=lambda entry, words: RuntimeError(words),
    )
    return found, passes


@pytest.mark.parametrize("token_budget", [1, 25, 10_000])
def test_each_slots_loss_is_its_own_under_any_split(token_budget: int) -> None:
    row_ids = [5, 1, 2]
    found, passes = evaluate(
        SupervisedFineTuning(), slots=(BASE_SLOT, 3, 0), row_ids=row_ids, token_budget=token_budget
    )
    tokens = sum(len(ROWS.sample(row).tokens) for row in row_ids)
    trained = sum(int(ROWS.sample(row).trained.sum()) for row in row_ids)
    for slot, outcome in found.items():
        assert outcome.loss == pytest.approx((slot + 2) * tokens / trained)
        assert outcome.num_tokens == tokens
        assert outcome.metrics == {}
        assert outcome.terms == pytest.approx([(slot + 2) * len(ROWS.sample(row).tokens) for row in row_ids])
        assert outcome.divisors == tuple(int(ROWS.sample(row).trained.sum()) for row in row_ids)
    order = [slot for entries in passes for slot in entries]
    assert order == [0] * 3 + [3] * 3 + [BASE_SLOT] * 3, "the frozen model's rows come last in a stream"


def test_groups_are_measured_whole_and_metrics_are_means_over_them() -> None:
    found, passes = evaluate(PairsByLength(), slots=(1,), row_ids=[3, 0], token_budget=1)
    assert [len(entries) for entries in passes] == [2, 2]
    lengths = ROWS.lengths.tolist()
    assert found[1].loss == (lengths[6] - lengths[7] + lengths[0] - lengths[1]) / 10
    assert found[1].metrics == {"first": (6 + 0) / 2}
    assert found[1].num_tokens == lengths[6] + lengths[7] + lengths[0] + lengths[1]
