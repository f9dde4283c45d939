"""The executor's own settings of a step; what packing must not change is tested beside it."""

from __future__ import annotations

from pathlib import Path

import torch

from cohort.adapters.spec import AdapterSpec
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor, ExecutorSettings
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
