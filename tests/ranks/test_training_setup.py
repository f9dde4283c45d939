"""A rank as it is built in its process; in a group of one rank, no other is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cohort.models.weights import load_decoder
from cohort.ranks.group_meeting import leave_group
from cohort.ranks.local_executor import LocalExecutor
from cohort.ranks.pipeline.staged_executor import StagedExecutor
from cohort.ranks.rank_group import PipelineGroup, RankGroupPlan, TensorGroup
from cohort.ranks.tensor.sharded_executor import ShardedExecutor
from cohort.ranks.training_setup import TrainingSetup
from cohort.training.executor_settings import ExecutorSettings
from tests.training.small_models import random_rows, save_llama

SIZES = ExecutorSettings(num_slots=1, num_rank_rows=16, token_budget=64, evaluation_token_budget=64)


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    leave_group()


@pytest.mark.parametrize(
    ("plan", "kind"), [(TensorGroup(size=1), ShardedExecutor), (PipelineGroup(cuts=(0, 2)), StagedExecutor)]
)
def test_a_member_is_its_part_of_the_model(tmp_path: Path, plan: RankGroupPlan, kind: type) -> None:
    save_llama(tmp_path)
    setup = TrainingSetup(
        rank=0,
        model_directory=str(tmp_path),
        device="cpu",
        dtype="float32",
        target_linears=load_decoder(tmp_path).linears,
        settings=SIZES,
        memory_limit_bytes=None,
        train_rows=random_rows(2),
        threads=torch.get_num_threads(),
        group=plan,
        rendezvous=str(tmp_path / "group"),
    )
    assert isinstance(setup.build(), kind)


def test_a_rank_is_built_as_rank_0_has_it(tmp_path: Path) -> None:
    save_llama(tmp_path)
    setup = TrainingSetup(
        rank=1,
        model_directory=str(tmp_path),
        device="cpu",
        dtype="float32",
        target_linears={"model.layers.0.self_attn.q_proj": (48, 48)},
        settings=SIZES,
        memory_limit_bytes=None,
        train_rows=random_rows(2),
        threads=1,
    )
    assert setup.rows == (setup.train_rows,)
    executor = setup.build()
    assert type(executor) is LocalExecutor
    assert executor.bank.num_slots == SIZES.num_slots
    assert list(executor.bank.layout.columns) == ["model.layers.0.self_attn.q_proj"]
    assert executor.decoder.dtype == torch.float32
