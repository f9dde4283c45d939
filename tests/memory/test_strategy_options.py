"""What ``strategy: auto`` is on several GPUs, by what fits and what is predicted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cohort.adapters.layout import AdapterLayout
from cohort.machine.machine import Machine
from cohort.memory import strategy_options, weight_placement
from cohort.memory.demand import Demand
from cohort.memory.strategy_options import SettledStrategy, settle_strategy, unfit_for_auto
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config import DecoderConfig
from cohort.scheduling.cost.hardware import KNOWN_GPUS
from cohort.tasks.sections.evaluation_section import EvaluationSection
from cohort.tasks.task_file import TaskFile
from cohort.training.trial import TrialSpec
from tests.memory.test_budget import grid
from tests.memory.test_host_streaming import GIB, H200, LLAMA_70B, task_of
from tests.training.small_models import random_rows

H100 = replace(H200, memory_bytes=79 * GIB)
LLAMA_8B = replace(LLAMA_70B, num_layers=10, windows=LLAMA_70B.windows[:10])


@pytest.fixture(autouse=True)
def links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_placement, "can_share", lambda *_, **__: None)
    monkeypatch.setattr(strategy_options, "hardware_of", lambda _: KNOWN_GPUS["H100"])


def settled(
    task: TaskFile,
    *,
    machine: Machine = H100,
    num_ranks: int = 4,
    config: DecoderConfig = LLAMA_70B,
    batch_size: int = 64,
    num_trials: int = 16,
    began_with: str | None = None,
) -> SettledStrategy:
    (first, *_) = (spec for spec in grid() if spec.adapter.r == 16)
    specs: list[TrialSpec] = [replace(first, trial_id=number, batch_size=batch_size) for number in range(num_trials)]
    demand = Demand(
        task=task,
        machine=machine,
        num_ranks=num_ranks,
        config=config,
        layout=AdapterLayout(linear_shapes(config)),
        specs=specs,
        rows=random_rows(8, longest=200),
    )
    return settle_strategy(demand, began_with=began_with)


def with_strategy(strategy: str) -> TaskFile:
    return task_of().model_copy(update={"strategy": strategy})


def test_what_a_task_names_is_what_it_gets() -> None:
    for strategy in ("replicas", "adapter_parallel", "tensor", "pipeline"):
        assert settled(with_strategy(strategy)) == SettledStrategy(name=strategy)
    alone = settled(with_strategy("pipeline"), num_ranks=1)
    assert alone == SettledStrategy(
        name="auto",
        note="strategy: one GPU divides nothing, so pipeline has no effect (unless torchrun starts several processes)",
    )
    assert settled(with_strategy("auto"), num_ranks=1) == SettledStrategy(name="auto")


def test_many_trials_of_a_model_that_fits_are_replicas() -> None:
    found = settled(with_strategy("auto"), config=LLAMA_8B)
    assert found.name == "auto"
    assert found.note is not None
    assert found.note.startswith("strategy: auto is replicas; predicted for a step of all trials: replicas")
    assert "tensor" in found.note
    assert "pipeline" in found.note


def test_one_trial_of_a_model_that_does_not_fit_is_divided_in_shards() -> None:
    found = settled(with_strategy("auto"), num_trials=1)
    assert found.name == "tensor"
    assert found.note is not None
    assert found.note.startswith("strategy: auto is tensor; ")
    assert "adapter_parallel" in found.note


def test_what_does_not_work_or_fit_is_told_and_not_chosen() -> None:
    found = settled(with_strategy("auto"), num_ranks=3, num_trials=1)
    assert found.name != "tensor"
    assert found.note is not None
    assert "tensor: 3 ranks for a model with" in found.note
    small = settled(with_strategy("auto"), machine=replace(H100, memory_bytes=30 * GIB), num_ranks=4, num_trials=1)
    assert small.note is None or "on each GPU" in small.note


def test_a_pipeline_that_would_generate_is_left_to_those_who_ask_for_it() -> None:
    auto = task_of()
    # pydantic gives it the keys of its bases
    section: Any = EvaluationSection
    generating = auto.model_copy(update={"evaluation": section(metric="exact_match")})
    assert generating.evaluation.generates
    assert unfit_for_auto(auto, "pipeline") is None
    assert unfit_for_auto(generating, "tensor") is None
    assert "pipeline: answers for the metric pass its stages one at a time" in str(settled(generating).note)
    # one that began as a pipeline goes on as one
    assert settled(generating, began_with="pipeline").name == "pipeline"


def test_a_resumed_run_keeps_its_strategy_while_the_ranks_allow() -> None:
    task = with_strategy("auto")
    assert settled(task, began_with="pipeline").name == "pipeline"
    assert settled(task, began_with="tensor").name == "tensor"
    assert settled(task, began_with="replicas", num_trials=1) == SettledStrategy(name="auto")
    assert settled(task, began_with="tensor", num_ranks=3).name == "auto"
