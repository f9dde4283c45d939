"""The executor's own settings of a step; what packing must not change is tested beside it."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.adapters.bank import AdapterBank
from cohort.adapters.linear import LoraContext
from cohort.adapters.spec import AdapterSpec
from cohort.kernels.backend import Backend, use_backend
from cohort.kernels.segments import SegmentTable
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec
from tests.training.small_models import random_rows, save_llama


def _spec(trial_id: int, *, max_grad_norm: float) -> TrialSpec:
    return TrialSpec(
        trial_id=trial_id,
        seed=1,
        adapter=AdapterSpec(r=4, lora_alpha=8.0),
        learning_rate=1e-2,
        batch_size=2,
        num_steps=2,
        max_grad_norm=max_grad_norm,
    )


def test_a_gradient_norm_of_zero_clips_nothing(tmp_path: Path) -> None:
    save_llama(tmp_path)
    decoder = load_decoder(tmp_path, dtype="float32")
    sizes = ExecutorSettings(num_slots=3, num_rank_rows=48, token_budget=2048, evaluation_token_budget=2048)
    executor = Executor(decoder, target_linears=decoder.linears, train_rows=random_rows(8), settings=sizes)
    for trial_id, norm in enumerate((0.0, 1e9, 1e-6)):
        executor.load(_spec(trial_id, max_grad_norm=norm))
    for _ in range(2):
        executor.step()
    unclipped, far, clipped = (executor.weights(trial_id) for trial_id in range(3))
    assert torch.equal(unclipped, far)
    assert not torch.equal(unclipped, clipped)


def test_the_first_pass_of_a_step_writes_each_slot_once_and_later_ones_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bank whose passes write gradients is never zeroed between steps: what a step leaves must not reach the next."""
    save_llama(tmp_path)

    def train() -> list[torch.Tensor]:
        decoder = load_decoder(tmp_path, dtype="float32")
        sizes = ExecutorSettings(num_slots=2, num_rank_rows=32, token_budget=60, evaluation_token_budget=60)
        executor = Executor(decoder, target_linears=decoder.linears, train_rows=random_rows(12), settings=sizes)
        for trial_id in range(2):
            executor.load(_spec(trial_id, max_grad_norm=1.0))
        for step in range(4):
            executor.step([0] if step == 1 else None)
        return [executor.weights(trial_id) for trial_id in range(2)]

    added = train()

    def writing(bank: AdapterBank, segments: SegmentTable, **named: Any) -> LoraContext:
        for slot in named.pop("fresh_slots"):
            bank.grads_RD[bank.rank_rows(slot)].zero_()  # what the kernels do by writing
        return LoraContext(factors=bank._parts, slots=bank.slot_table(), segments=segments, **named)

    monkeypatch.setattr(AdapterBank, "writes_gradients", property(lambda bank: True))
    monkeypatch.setattr(AdapterBank, "context", writing)
    for found, expected in zip(train(), added, strict=True):
        assert torch.equal(found, expected)


def test_an_executor_gives_its_memory_back_at_once(tmp_path: Path) -> None:
    """A bank of an 8B model is gigabytes: they must not wait for the next garbage collection."""
    save_llama(tmp_path)
    decoder, rows = load_decoder(tmp_path, dtype="float32"), random_rows(8)
    sizes = ExecutorSettings(num_slots=2, num_rank_rows=32, token_budget=64, evaluation_token_budget=64)
    executor = Executor(decoder, target_linears=decoder.linears, train_rows=rows, settings=sizes)
    executor._ahead.is_used = True
    executor.load(_spec(0, max_grad_norm=1.0))
    executor.step()
    executor.evaluate([0], rows=rows, row_ids=[0, 1])
    bank = weakref.ref(executor.bank)
    gc.disable()
    try:
        del executor
        assert bank() is None
    finally:
        gc.enable()


@pytest.mark.slow
def test_gradients_that_are_written_and_not_zeroed_train_alike(tmp_path: Path) -> None:
    """The grouped kernels write the first gradients of a step over those of the step before: no zeroing between."""
    pytest.importorskip("triton")
    save_llama(tmp_path, num_layers=1)
    rows = random_rows(12, longest=4)
    specs = [_spec(0, max_grad_norm=1.0), _spec(1, max_grad_norm=1.0)]

    def train(backend: Backend, *, token_budget: int) -> tuple[list[float], list[torch.Tensor]]:
        decoder = load_decoder(tmp_path, dtype="float32")
        sizes = ExecutorSettings(
            num_slots=2, num_rank_rows=32, token_budget=token_budget, evaluation_token_budget=token_budget
        )
        linears = {name: widths for name, widths in decoder.linears.items() if name.endswith("down_proj")}
        with use_backend(backend):
            executor = Executor(decoder, target_linears=linears, train_rows=rows, settings=sizes)
            for spec in specs:
                executor.load(spec)
            # the second trial pauses in the second step: what it holds must stay what it was
            losses = [e.loss for step in range(3) for e in executor.step([0] if step == 1 else None)]
        return losses, [executor.weights(trial_id) for trial_id in (0, 1)]

    losses, weights = train(Backend.REFERENCE, token_budget=2048)
    found_losses, found_weights = train(Backend.TRITON, token_budget=6)
    torch.testing.assert_close(found_losses, losses, rtol=1e-5, atol=0.0)
    # AdamW's first steps divide tiny gradients by themselves: a rounding in one is a share of the learning rate
    torch.testing.assert_close(found_weights, weights, rtol=1e-4, atol=1e-5)
