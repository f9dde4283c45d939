"""A step that is launched: what it gives once it is read, and that later launches change nothing of it."""

from __future__ import annotations

from pathlib import Path

from cohort.adapters.spec import AdapterSpec
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.launched_step import LaunchedStep
from cohort.training.trial import TrialSpec
from tests.training.small_models import random_rows, save_llama


def executor_of(path: Path) -> Executor:
    decoder = load_decoder(path, dtype="float32")
    settings = ExecutorSettings(num_slots=2, num_rank_rows=64, token_budget=500, evaluation_token_budget=500)
    executor = Executor(decoder, target_linears=decoder.linears, train_rows=random_rows(12, seed=1), settings=settings)
    for trial_id in range(2):
        spec = TrialSpec(
            trial_id=trial_id,
            seed=trial_id,
            adapter=AdapterSpec(r=4, lora_alpha=8.0),
            learning_rate=1e-2,
            batch_size=2,
            num_steps=6,
        )
        executor.load(spec)
    return executor


def test_steps_that_are_read_after_later_ones_were_launched_are_those_of_steps_in_turn(tmp_path: Path) -> None:
    save_llama(tmp_path)
    in_turn, ahead = executor_of(tmp_path), executor_of(tmp_path)
    expected = [in_turn.step() for _ in range(3)]
    launched = [ahead.launch_step() for _ in range(3)]
    # they count from their launch on
    assert [ahead.steps_of(trial_id) for trial_id in (0, 1)] == [3, 3]
    assert [step.events() for step in launched] == expected
    assert ahead.weights(0).equal(in_turn.weights(0))


def test_a_step_that_no_trial_takes_has_no_events() -> None:
    assert LaunchedStep.of_none().events() == ()
