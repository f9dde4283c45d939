"""A step that is laid out while the device computes trains like one that is not, and is used only as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cohort.adapters.spec import AdapterSpec
from cohort.models.weights import load_decoder
from cohort.ranks.local_executor import LocalExecutor
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.passes import StagedPass
from cohort.training.trial import TrialSpec
from tests.training.small_models import random_rows, save_llama


def spec_of(trial_id: int) -> TrialSpec:
    return TrialSpec(
        trial_id=trial_id,
        seed=1,
        adapter=AdapterSpec(r=4, lora_alpha=8.0),
        learning_rate=1e-2,
        batch_size=2,
        num_steps=8,
        max_grad_norm=1.0,
    )


def test_a_step_that_was_staged_trains_alike_and_a_stale_one_is_not_used(tmp_path: Path) -> None:
    save_llama(tmp_path)
    decoder = load_decoder(tmp_path, dtype="float32")

    def train(*, stages: bool) -> tuple[list[torch.Tensor], int]:
        sizes = ExecutorSettings(num_slots=3, num_rank_rows=48, token_budget=80, evaluation_token_budget=80)
        executor = Executor(decoder, target_linears=decoder.linears, train_rows=random_rows(12), settings=sizes)
        executor._ahead.is_used = stages
        stage, made = executor._passes.stage, []

        def counted(*arguments: Any, **named: Any) -> StagedPass:
            made.append(stage(*arguments, **named))
            return made[-1]

        executor._passes.stage = counted  # type: ignore[method-assign]
        specs = [spec_of(trial_id) for trial_id in range(3)]
        for spec in specs[:2]:
            executor.load(spec)
        executor.step()
        executor.step()  # takes what was staged
        executor.load(specs[2])  # what was staged knows two trials
        executor.step()
        executor.step([0, 2])  # what was staged knows three
        state = executor.unload(0)
        executor.load(replace(specs[0], batch_size=1), state)  # the same trial, slot and step; other samples
        executor.step()
        return [executor.weights(trial_id) for trial_id in range(3)], len(made)

    (plain, passes), (staged, attempts) = train(stages=False), train(stages=True)
    assert all(torch.equal(found, expected) for found, expected in zip(staged, plain, strict=True))
    # five steps stage the next one; one of those is taken as it is, by a step that then stages nothing itself
    assert attempts == passes + 5 - 1


def test_a_window_lays_out_the_steps_that_it_takes(tmp_path: Path) -> None:
    save_llama(tmp_path)
    decoder = load_decoder(tmp_path, dtype="float32")

    def train(*, stages: bool) -> tuple[list[torch.Tensor], int]:
        sizes = ExecutorSettings(num_slots=3, num_rank_rows=48, token_budget=80, evaluation_token_budget=80)
        executor = LocalExecutor(decoder, target_linears=decoder.linears, train_rows=random_rows(12), settings=sizes)
        executor._ahead.is_used = stages
        stage, made = executor._passes.stage, []

        def counted(*arguments: Any, **named: Any) -> StagedPass:
            made.append(stage(*arguments, **named))
            return made[-1]

        executor._passes.stage = counted  # type: ignore[method-assign]
        for trial_id in range(3):
            executor.load(spec_of(trial_id))
        # rounds of all, of two and of one trial; the second window begins with all, as the last round expects
        for _ in range(2):
            assert executor.run({0: 1, 1: 2, 2: 3}).error is None
        return [executor.weights(trial_id) for trial_id in range(3)], len(made)

    (plain, passes), (staged, attempts) = train(stages=False), train(stages=True)
    assert all(torch.equal(found, expected) for found, expected in zip(staged, plain, strict=True))
    # each of six steps but the first is staged as it is, and one for a third window
    assert attempts == passes + 1
