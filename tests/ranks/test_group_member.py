"""A rank of a group as it is built in its process; with one rank, no other is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from cohort.models.weights import load_decoder
from cohort.ranks.commands import RankSetup
from cohort.ranks.group_member import build_member, end_in_group, leave_group
from cohort.ranks.pipeline.stage_executor import StageExecutor
from cohort.ranks.rank_group import PipelineGroup, RankGroupPlan, TensorGroup
from cohort.ranks.rank_server import build_rank
from cohort.ranks.tensor.tensor_executor import TensorExecutor
from cohort.training.executor_settings import ExecutorSettings
from tests.training.small_models import random_rows, save_llama

SIZES = ExecutorSettings(num_slots=1, num_rank_rows=16, token_budget=64, evaluation_token_budget=64)


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    leave_group()


@pytest.mark.parametrize(
    ("plan", "kind"), [(TensorGroup(size=1), TensorExecutor), (PipelineGroup(cuts=(0, 2)), StageExecutor)]
)
def test_a_member_is_its_part_of_the_model(tmp_path: Path, plan: RankGroupPlan, kind: type) -> None:
    save_llama(tmp_path)
    setup = RankSetup(
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
    rank = build_rank(setup)
    assert isinstance(rank.executor, kind)
    assert rank.rows[0] is setup.train_rows
    with pytest.raises(AssertionError, match="a member has a group"):
        build_member(
            RankSetup(**{**vars(setup), "group": None}),
            device=torch.device("cpu"),
        )


def test_only_a_group_of_gpus_is_left_by_the_end_of_its_process(tmp_path: Path) -> None:
    end_in_group(1)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    end_in_group(1)
    leave_group()
    assert not dist.is_initialized()
    leave_group()
