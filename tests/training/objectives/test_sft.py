"""Supervised fine-tuning: a row's term is the sum of its losses; every trained token counts the same."""

from __future__ import annotations

import torch

from cohort.training.objectives.sft import SupervisedFineTuning
from tests.training.small_models import random_rows

ROWS = random_rows(6, seed=4, longest=15)
SAMPLES = [ROWS.sample(row) for row in range(6)]
SFT = SupervisedFineTuning()


def test_the_loss_is_the_mean_over_trained_tokens_of_all_rows() -> None:
    trained = torch.cat([torch.from_numpy(sample.trained) for sample in SAMPLES])
    losses_T = torch.where(trained, torch.rand(len(trained), dtype=torch.float64), 0.0)
    loss = SFT.terms(losses_T, SAMPLES).sum() / SFT.divisor(SAMPLES)
    torch.testing.assert_close(loss, losses_T[trained].mean())


def test_a_step_in_parts_adds_up_to_the_step() -> None:
    losses_T = torch.rand(int(ROWS.lengths.sum()))
    whole = SFT.terms(losses_T, SAMPLES)
    used = sum(len(sample.tokens) for sample in SAMPLES[:2])
    parts = torch.cat([SFT.terms(losses_T[:used], SAMPLES[:2]), SFT.terms(losses_T[used:], SAMPLES[2:])])
    assert torch.equal(parts, whole)
    assert SFT.divisor(SAMPLES) == SFT.divisor(SAMPLES[:2]) + SFT.divisor(SAMPLES[2:])


def test_it_measures_single_rows_and_can_be_recorded() -> None:
    assert SFT.group_size == 1
    assert SFT.sums_tokens
    assert SFT.metrics(torch.zeros(3), SAMPLES[:1]) == {}
