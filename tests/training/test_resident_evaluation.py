"""Losses of trials and the frozen model come from the same passes; a row that does not fit is named with its trial."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.adapters.spec import AdapterSpec
from cohort.data.packing import SlotSample
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.objectives import DEFAULT_OBJECTIVE
from cohort.training.trial import TrialSpec
from tests.training.small_models import random_rows, save_llama

ROWS = random_rows(6)


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Executor:
    folder: Path = tmp_path_factory.mktemp("model")
    save_llama(folder, num_layers=1)
    decoder: Decoder = load_decoder(folder, dtype="float32")
    sizes = ExecutorSettings(num_slots=2, num_rank_rows=32, token_budget=200, evaluation_token_budget=40)
    executor = Executor(decoder, target_linears=decoder.linears, train_rows=ROWS, settings=sizes)
    spec = TrialSpec(
        trial_id=7,
        seed=0,
        adapter=AdapterSpec(r=4, lora_alpha=8.0),
        learning_rate=1e-2,
        batch_size=2,
        num_steps=4,
    )
    executor.load(spec)
    return executor


def test_an_adapter_before_its_first_step_has_the_loss_of_the_frozen_model(executor: Executor) -> None:
    evaluations, row_ids = executor._evaluations, range(len(ROWS))
    own = evaluations.of_trials([7], rows=ROWS, row_ids=row_ids, objective=None)[7]
    base = evaluations.of_base(rows=ROWS, row_ids=row_ids, objective=DEFAULT_OBJECTIVE)
    # B is zero: on a CPU both have the same bits
    assert own == base


def test_a_row_is_named_with_its_trial_in_training_and_its_file_in_an_evaluation(executor: Executor) -> None:
    others = random_rows(6, seed=5)
    own = SlotSample(slot=executor.slot_of(7), sample=ROWS.sample(2))
    training = str(executor._too_large.in_training(own, "out of memory"))
    assert ROWS.sources[2] in training
    assert "of trial 7 (r = 4)" in training
    assert "recomputed" in training
    base = str(executor._too_large.in_evaluation(SlotSample(slot=-1, sample=others.sample(1)), "full", rows=others))
    assert others.sources[1] in base
    assert "of the base model" in base
    assert "recomputed" not in base
