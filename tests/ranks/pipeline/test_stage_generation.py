"""Answers of the stages of a pipeline are those of one process, token by token, and every stage knows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cohort.models.weights import load_decoder
from cohort.ranks.answers import Prompt
from cohort.ranks.local_executor import LocalExecutor
from cohort.ranks.rank_group import PipelineGroup
from tests.ranks.pipeline.stage_threads import stage_threads
from tests.ranks.pipeline.test_staged_executor import OPTIMIZER, ROWS, SETTINGS, SPECS
from tests.training.small_models import save_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_llama(folder, num_layers=3)
    return folder


def test_stages_answer_prompts_as_one_process_does(model: Path) -> None:
    decoder = load_decoder(model)
    alone, stages = (
        LocalExecutor(decoder, target_linears=decoder.linears, train_rows=ROWS, settings=SETTINGS, optimizer=OPTIMIZER),
        stage_threads(model, PipelineGroup(cuts=(0, 1, 2, 3)), settings=SETTINGS, rows=ROWS, optimizer=OPTIMIZER),
    )
    # far enough from the base model that its answers are others
    for spec in (replace(SPECS[0], learning_rate=0.3), SPECS[1]):
        alone.load(spec)
        state = alone.state(spec.trial_id)
        torch.manual_seed(spec.trial_id)
        state.adapter.weights.normal_(std=0.5)
        alone.drop(spec.trial_id)
        alone.load(spec, state)
        stages.all(lambda stage, spec=spec, state=state: stage.load(spec, state))  # type: ignore[misc]
    prompts = [
        Prompt(trial_id=trial_id, tokens=ROWS.sample(row).tokens.tolist())
        for row in range(4)
        for trial_id in (1, None, 0)
    ]
    expected = alone.generate(prompts, max_new_tokens=9, stop_ids=frozenset({3}))
    found = stages.all(lambda stage: stage.generate(prompts, max_new_tokens=9, stop_ids=frozenset({3})))
    assert found == [expected] * 3
    assert expected[0] != expected[1] != expected[2]
    # nothing is left between the stages: they train on
    stages.all(lambda stage: stage.step())
