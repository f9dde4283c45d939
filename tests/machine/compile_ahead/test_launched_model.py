"""What ranks launch is known without their weights: a shard's sizes train, and a stage launches what the model does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.machine.compile_ahead.launched_model import launched_model, stand_in_decoder
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config_file import read_config
from cohort.models.weights import load_decoder
from cohort.ranks.rank_group import PipelineGroup, TensorGroup
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec
from tests.models.fixtures.tiny_checkpoints import save_checkpoint
from tests.training.small_models import random_rows, save_llama


@pytest.mark.parametrize("size", [1, 2])
def test_a_stand_in_of_a_shard_trains_a_shard_of_an_adapter(tmp_path: Path, size: int) -> None:
    save_llama(tmp_path)
    config = read_config(tmp_path)
    model = launched_model(TensorGroup(size=size), config=config, layout=AdapterLayout(linear_shapes(config)))
    assert model.config.num_heads == config.num_heads // size
    decoder = stand_in_decoder(model.config, dtype=torch.float32, device="cpu", region=model.region)
    assert dict(decoder.linears) == dict(model.layout.linears)
    sizes = ExecutorSettings(num_slots=1, num_rank_rows=16, token_budget=80, evaluation_token_budget=80)
    executor = Executor(decoder, target_linears=model.layout.linears, train_rows=random_rows(4), settings=sizes)
    adapter = AdapterSpec(r=4, lora_alpha=8.0)
    executor.load(TrialSpec(trial_id=0, seed=1, adapter=adapter, learning_rate=1e-2, batch_size=2, num_steps=2))
    (event,) = executor.step()
    assert event.step == 1


def test_whole_models_and_stages_launch_what_the_model_launches(tmp_path: Path) -> None:
    save_llama(tmp_path)
    config = read_config(tmp_path)
    layout = AdapterLayout(linear_shapes(config))
    for group in (None, PipelineGroup(cuts=(0, 1, 2))):
        model = launched_model(group, config=config, layout=layout)
        assert (model.config, model.layout, model.region) == (config, layout, None)


def test_a_decoder_of_zeros_has_the_linears_of_the_model_and_shares_their_memory(tmp_path: Path) -> None:
    model = load_decoder(save_checkpoint(tmp_path, "Qwen2", num_hidden_layers=3))
    found = stand_in_decoder(model.config, dtype=torch.float32, device="cpu")
    assert found.linears == model.linears
    assert [product.in_features for product in found.products] == [product.in_features for product in model.products]
    first, last = (found.weight_of(f"model.layers.{layer}.mlp.down_proj") for layer in (0, 2))
    assert first.shape == last.shape == model.weight_of("model.layers.0.mlp.down_proj").shape
    down: list[Any] = [layer.linears[3].frozen for layer in found.layers]
    assert len({product._weight_NK.data_ptr() for product in down}) == 1
