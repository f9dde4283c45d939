"""Supervised fine-tuning: a row's term is the sum of its losses; every trained token counts the same."""

from __future__ import annotations

import torch

from cohort.data.packing import SlotSample
from cohort.training.group_terms import StepTerms, group_metrics, group_terms
from cohort.training.objectives.kinds.sft import SupervisedFineTuning
from tests.training.small_models import random_rows

ROWS = random_rows(6, seed=4, longest=15)
SAMPLES = [ROWS.sample(row) for row in range(6)]
ENTRIES = [SlotSample(slot=0, sample=sample) for sample in SAMPLES]
SFT = SupervisedFineTuning()
STEPS = {0: StepTerms(objective=SFT, divisor=SFT.divisor(SAMPLES))}


def test_the_loss_is_the_mean_over_trained_tokens_of_all_rows() -> None:
    trained = torch.cat([torch.from_numpy(sample.trained) for sample in SAMPLES])
    losses_T = torch.where(trained, torch.rand(len(trained), dtype=torch.float64), 0.0)
    loss = group_terms(losses_T, ENTRIES, STEPS).sum() / SFT.divisor(SAMPLES)
    torch.testing.assert_close(loss, losses_T[trained].mean())


def test_a_step_in_parts_adds_up_to_the_step() -> None:
    losses_T = torch.rand(int(ROWS.lengths.sum()))
    whole = group_terms(losses_T, ENTRIES, STEPS)
    used = sum(len(sample.tokens) for sample in SAMPLES[:2])
    parts = [group_terms(losses_T[:used], ENTRIES[:2], STEPS), group_terms(losses_T[used:], ENTRIES[2:], STEPS)]
    assert torch.equal(torch.cat(parts), whole)
    assert SFT.divisor(SAMPLES) == SFT.divisor(SAMPLES[:2]) + SFT.divisor(SAMPLES[2:])


def test_it_measures_single_rows_and_can_be_recorded() -> None:
    assert SFT.group_size == 1
    assert SFT.sums_tokens
    assert group_metrics(torch.zeros(3), ENTRIES[:1], STEPS) == {}
