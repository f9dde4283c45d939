"""What does not work with a strategy is said together with everything else, also where the GPUs are not here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.core.errors import InputError
from cohort.planning.check import check_task
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("tiny"))


@pytest.mark.skipif(torch.cuda.device_count() >= 3, reason="three GPUs are here")
@pytest.mark.parametrize(
    ("strategy", "sections", "words"),
    [
        (
            "tensor",
            {"training": {"optim": "adamw_8bit"}, "lora": {"use_dora": True}},
            ["3 ranks for a model with", "adamw_8bit with strategy: tensor", "DoRA, VeRA"],
        ),
        ("pipeline", {}, ["3 stages for a model with 2 layers"]),
        ("pipeline", {"numerics": "exact"}, ["exact with strategy: pipeline", "3 stages for a model with 2 layers"]),
        ("adapter_parallel", {"memory": {"host_streamed_layers": 3}}, ["3 with strategy: adapter_parallel"]),
        ("replicas", {}, []),
        ("replicas", {"microbatches": "solver"}, ["solver with strategy: replicas, which has no pipeline"]),
        ("auto", {"microbatches": "solver"}, ["solver with strategy: auto, which may choose another"]),
        (
            "replicas",
            {"packing": "planned", "early_exit": {"rule": "median"}},
            ["planned, with early_exit.rule: median, which compares trials to their end"],
        ),
    ],
)
def test_too_few_gpus_hide_no_other_problem(
    folder: Path, strategy: str, sections: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(InputError) as refused:
        check_task(tiny_task(folder, strategy=strategy, num_gpus=3, **sections))
    found = [problem.found for problem in refused.value.problems]
    assert "3 GPUs asked for" in found[0]
    assert len(found) == 1 + len(words)
    assert all(any(text.startswith(start) for text in found[1:]) for start in words), found
