"""What tasks that share a loaded base model must have in common."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cohort.core.clock import SystemClock
from cohort.core.errors import InputError
from cohort.prepare.preparation import Preparation, prepare
from tests.cli.tiny_task import write_tiny_model
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("loaded_backbone"))


@pytest.fixture(scope="module")
def prepared(folder: Path) -> Preparation:
    return prepare(tiny_task(folder), clock=SystemClock())


def test_a_task_may_share_a_loaded_base_model(folder: Path, prepared: Preparation) -> None:
    shared = prepare(tiny_task(folder, training={"seed": 1}), clock=SystemClock(), backbone=prepared.backbone)
    assert shared.decoder is prepared.decoder
    sized = replace(prepared.backbone, sizes=prepared.sizes)
    assert prepare(tiny_task(folder), clock=SystemClock(), backbone=sized).sizes is prepared.sizes


def test_another_model_or_device_cannot_be_shared(folder: Path, prepared: Preparation, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other", num_layers=1)
    with pytest.raises(InputError, match="a base model that the session's other tasks do not use"):
        prepare(tiny_task(folder, model_name_or_path=str(other)), clock=SystemClock(), backbone=prepared.backbone)
    backbone = prepared.backbone
    memory = replace(backbone.memory, machine=replace(prepared.machine, device=torch.device("cuda")))
    with pytest.raises(InputError, match="but the other tasks of this session train on cuda"):
        prepare(tiny_task(folder), clock=SystemClock(), backbone=replace(backbone, memory=memory))
