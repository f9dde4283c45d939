"""Losses of a stream token by token, the weights of plain sums, and sums by sequence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.data.packing import UNTRAINED, SlotSample, pack
from cohort.models.weights import load_decoder
from cohort.training.token_losses import sequence_sums, token_losses, token_weights
from tests.training.small_models import random_rows, save_llama

ROWS = random_rows(5, seed=2, longest=12)
SAMPLES = [ROWS.sample(row) for row in range(5)]
BATCH = pack([SlotSample(slot=row // 2, sample=sample) for row, sample in enumerate(SAMPLES)], num_slots=3)


def test_losses_are_torchs_cross_entropy_and_zero_where_nothing_is_trained(tmp_path: Path) -> None:
    model = save_llama(tmp_path)
    losses_T = token_losses(load_decoder(tmp_path, dtype="float32", device="cpu"), BATCH, None)
    assert losses_T.shape == (BATCH.num_rows,)
    for sample, start in zip(SAMPLES, BATCH.sequence_offsets, strict=False):
        tokens = torch.from_numpy(sample.tokens.astype("int64"))
        targets = torch.where(torch.from_numpy(sample.trained), tokens, UNTRAINED)[1:]
        logits = model(input_ids=tokens[None]).logits[0, :-1]
        expected = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        torch.testing.assert_close(losses_T[start : start + len(tokens) - 1], expected, atol=1e-5, rtol=1e-5)
    assert not losses_T[BATCH.targets_T == UNTRAINED].any()


def test_weights_are_one_over_the_slots_divisor_on_trained_rows() -> None:
    weights_T = token_weights(BATCH, divisors={0: 4, 1: 3, 2: 7}, dtype=torch.float64)
    for slot, divisor in ((0, 4), (1, 3), (2, 7)):
        rows = BATCH.segments.rows(slot)
        trained = BATCH.targets_T[rows] != UNTRAINED
        assert set(weights_T[rows][trained].tolist()) == {1.0 / divisor}
    assert not weights_T[BATCH.targets_T == UNTRAINED].any()


def test_each_sequence_is_summed_by_itself() -> None:
    losses_T = torch.rand(BATCH.num_rows)
    sums = sequence_sums(losses_T, SAMPLES)
    bounds = zip(BATCH.sequence_offsets, BATCH.sequence_offsets[1:], strict=False)
    for found, (start, stop) in zip(sums, bounds, strict=True):
        assert torch.equal(found, losses_T[start:stop].sum())
    poisoned = losses_T.clone()
    poisoned[BATCH.sequence_offsets[2]] = float("nan")
    found = sequence_sums(poisoned, SAMPLES)
    assert found.isnan().tolist() == [False, False, True, False, False]
    assert torch.equal(found[[0, 1, 3, 4]], sums[[0, 1, 3, 4]])


def test_sums_are_differentiable_and_filler_has_no_gradient() -> None:
    losses_T = torch.rand(BATCH.num_rows, requires_grad=True)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    sequence_sums(losses_T, SAMPLES).backward(weights)
    assert losses_T.grad is not None
    expected = torch.repeat_interleave(weights, torch.tensor([len(sample.tokens) for sample in SAMPLES]))
    assert torch.equal(losses_T.grad[: len(expected)], expected)
    assert not losses_T.grad[len(expected) :].any()


@pytest.mark.parametrize("place", ["first", "last"])
def test_a_sum_has_the_same_bits_wherever_its_sequence_stands(place: str) -> None:
    sample, other = SAMPLES[3], SAMPLES[0]
    own, rest = torch.rand(len(sample.tokens)), torch.rand(len(other.tokens))
    alone = sequence_sums(own, [sample])[0]
    order = [0, 1] if place == "first" else [1, 0]
    together = sequence_sums(torch.cat([(own, rest)[i] for i in order]), [(sample, other)[i] for i in order])
    assert torch.equal(together[order.index(0)], alone)
