"""The path that trains on a GPU: as close to PEFT as PEFT is to itself; neighbours change no more than rounding."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec
from tests.training.invariants.test_peft_equality import (
    one_by_one,
    padded,
    relative,
    spec_of,
    train_here,
    train_with_peft,
)
from tests.training.invariants.variants import VARIANTS, trained_tensors
from tests.training.small_models import random_rows, save_llama, save_qwen2

pytestmark = pytest.mark.gpu

ROWS = random_rows(40, seed=3)
STEPS = 6


def trial(trial_id: int, *, r: int, batch_size: int, dropout: float = 0.0) -> TrialSpec:
    return TrialSpec(
        trial_id=trial_id,
        seed=100 + trial_id,
        adapter=AdapterSpec(r=r, lora_alpha=2.0 * r, lora_dropout=dropout),
        learning_rate=1e-3,
        batch_size=batch_size,
        num_steps=STEPS,
    )


SUBJECT = trial(0, r=16, batch_size=4, dropout=0.2)
NEIGHBOURS = [
    trial(1, r=8, batch_size=1),
    trial(2, r=64, batch_size=2, dropout=0.5),
    trial(3, r=3, batch_size=8),
    trial(4, r=33, batch_size=3),
]


def train(
    directory: Path, specs: list[TrialSpec], *, dtype: str, poisoned: int | None = None, token_budget: int = 10_000
) -> tuple[list[float], dict[str, Tensor]]:
    """Train ``specs`` as one pack on the GPU; return losses and weights of trial 0."""
    decoder = load_decoder(directory, dtype=dtype, device="cuda")
    executor = Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=ROWS,
        settings=ExecutorSettings(
            num_slots=8, num_rank_rows=256, token_budget=token_budget, evaluation_token_budget=token_budget
        ),
        device="cuda",
        compute_dtype=decoder.dtype,
    )
    for spec in specs:
        executor.load(spec)
    if poisoned is not None:
        rows = executor.bank.rank_rows(executor.slot_of(poisoned))
        executor.bank.weights_RD[rows] = float("nan")
        executor.bank.refresh(executor.slot_of(poisoned))
    losses = [event.loss for _ in range(STEPS) for event in executor.step() if event.trial_id == 0]
    subject = next(spec.adapter for spec in specs if spec.trial_id == 0)
    return losses, trained_tensors(AdapterLayout(dict(decoder.linears)), subject, executor.weights(0))


def worst(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    return max(relative(found[name].cpu(), expected[name].cpu()) for name in expected)


def test_float32_is_as_close_to_peft_as_peft_is_to_itself(tmp_path: Path) -> None:
    save_llama(tmp_path)
    rows, spec = random_rows(30, seed=5), spec_of(16)
    losses, weights, layout = train_here(tmp_path, spec, rows, dtype=torch.float32, device="cuda")
    on_gpu = functools.partial(train_with_peft, tmp_path, spec, rows, layout, dtype=torch.float32, device="cuda")
    expected_losses, in_padded = on_gpu(batch_loss=padded)
    _, in_singles = on_gpu(batch_loss=one_by_one)
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    assert worst(weights, in_padded) <= 2 * worst(in_singles, in_padded)


def test_neighbours_and_splits_change_no_more_than_rounding(tmp_path: Path) -> None:
    """In bf16 a pack may differ from the trial alone by what bf16 itself costs: the distance to float32."""
    save_llama(tmp_path)
    alone_losses, alone = train(tmp_path, [SUBJECT], dtype="bfloat16")
    _, exact = train(tmp_path, [SUBJECT], dtype="float32")
    precision = worst(alone, exact)
    for token_budget in (10_000, 100):
        losses, packed = train(
            tmp_path, [*NEIGHBOURS[:2], SUBJECT, *NEIGHBOURS[2:]], dtype="bfloat16", token_budget=token_budget
        )
        assert worst(packed, alone) <= precision
        assert losses == pytest.approx(alone_losses, rel=2e-2)


def test_the_same_pack_gives_the_same_bits_again(tmp_path: Path) -> None:
    save_llama(tmp_path)
    pack = [*NEIGHBOURS[:2], SUBJECT, *NEIGHBOURS[2:]]
    first_losses, first = train(tmp_path, pack, dtype="bfloat16")
    second_losses, second = train(tmp_path, pack, dtype="bfloat16")
    assert first_losses == second_losses
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_poisoned_neighbour_changes_no_bit(tmp_path: Path) -> None:
    save_llama(tmp_path)
    pack = [NEIGHBOURS[0], SUBJECT, NEIGHBOURS[1]]
    _, clean = train(tmp_path, pack, dtype="bfloat16")
    for victim in (1, 2):
        _, beside = train(tmp_path, pack, dtype="bfloat16", poisoned=victim)
        assert all(torch.equal(clean[name], beside[name]) for name in clean)


# the random projection of pissa_niter_N is the device's own
@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "pissa_niter"])
def test_variants_train_as_on_a_cpu(tmp_path: Path, name: str) -> None:
    save_qwen2(tmp_path)
    spec = replace(spec_of(4, learning_rate=1e-3), adapter=VARIANTS[name])
    rows = random_rows(30, seed=5)
    exact, expected, _ = train_here(tmp_path, spec, rows, dtype=torch.float64)
    losses, weights, _ = train_here(tmp_path, spec, rows, dtype=torch.float32, device="cuda")
    # products may be TF32, whose mantissa has 10 bits; Adam's first steps turn small gradients into whole ones
    assert losses == pytest.approx(exact, rel=5e-3)
    # the signs of singular vectors are the decomposition's own
    if not spec.adapter.has_frozen_rows:
        assert worst(weights, expected) < 0.1
