"""The facts that a run's record begins with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.core.numerics import Numerics
from cohort.machine.machine import Machine
from cohort.prepare import record_facts
from cohort.prepare.evaluations import plan_evaluation
from cohort.prepare.fingerprints import model_fingerprint
from cohort.prepare.inputs import TaskInputs, read_inputs
from cohort.prepare.proposals import TrialProposals
from cohort.prepare.record_facts import input_facts, machine_facts, task_facts
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

CPU = Machine(device=torch.device("cpu"), device_name="a CPU", dtype="float32", threads=3, memory_bytes=1 << 30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("facts"))


@pytest.fixture(scope="module")
def inputs(folder: Path) -> TaskInputs:
    return read_inputs(tiny_task(folder))


def test_a_task_is_known_by_its_content(folder: Path, inputs: TaskInputs) -> None:
    task = tiny_task(folder)
    first = TrialProposals(task, inputs.data.train).first
    facts = task_facts(task, first, num_trials=len(first))
    assert facts.task_hash == task_facts(tiny_task(folder), first, num_trials=len(first)).task_hash
    assert (
        facts.task_hash
        != task_facts(tiny_task(folder, training={"max_steps": 9}), first, num_trials=len(first)).task_hash
    )
    # what is searched is no setting that all trials share
    assert facts.training is not None
    assert "learning_rate" not in facts.training
    assert facts.training["max_steps"] == 8


def test_the_trial_with_the_values_of_a_task_without_a_search_is_named(folder: Path, inputs: TaskInputs) -> None:
    without = TrialProposals(tiny_task(folder), inputs.data.train).first
    assert task_facts(tiny_task(folder), without, num_trials=1).default_trial_id is None
    task = tiny_task(folder, search={"space": {"batch_size": [1, 2]}})
    trials = TrialProposals(task, inputs.data.train).first
    # the task file asks for batches of 2 where the search does not say
    expected = next(trial.spec.trial_id for trial in trials if trial.configuration["batch_size"] == 2)
    assert task_facts(task, trials, num_trials=len(trials)).default_trial_id == expected


def test_the_machine_says_what_computed(inputs: TaskInputs) -> None:
    facts = machine_facts(CPU, inputs, token_budget=2048)
    assert (facts.device, facts.threads) == ("cpu (a CPU)", 3)
    assert facts.precision == "base model (float32), float32 adapters"
    assert facts.backend is not None
    assert "torch" in facts.backend
    # tiles are chosen where Triton runs
    assert (facts.tiles, facts.tile_table, facts.numerics) == (None, None, None)


def _on_cpu(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*(CPU.device if isinstance(arg, torch.device) else arg for arg in args), **kwargs)


def test_a_gpu_s_numerics_are_recorded_with_the_reason(inputs: TaskInputs, monkeypatch: pytest.MonkeyPatch) -> None:
    # the GPU itself is not asked
    for name in ("describe_backend", "tile_lines", "product_name", "plain_torch", "attention_of"):
        of_cpu = getattr(record_facts, name)
        monkeypatch.setattr(record_facts, name, lambda *args, of_cpu=of_cpu, **kwargs: _on_cpu(of_cpu, args, kwargs))
    machine = replace(CPU, device=torch.device("cuda"), numerics=Numerics.EXACT, numerics_reason="it costs little")
    facts = machine_facts(machine, inputs, token_budget=2048)
    assert (facts.numerics, facts.numerics_reason) == ("exact", "it costs little")


def test_inputs_are_known_by_their_hashes(folder: Path, inputs: TaskInputs, tmp_path: Path) -> None:
    task = tiny_task(folder)
    plan = plan_evaluation(task, TrialProposals(task, inputs.data.train).first, validation=inputs.data.validation)
    model_hash = model_fingerprint(inputs.model_directory)
    facts = input_facts(task, inputs, plan=plan, model_hash=model_hash)
    assert facts.model_hash == model_hash
    assert facts.evaluation_rows == plan.num_rows
    assert facts.num_train_rows == len(inputs.data.train)
    (tmp_path / "config.json").write_text("{}")
    assert model_fingerprint(tmp_path) != facts.model_hash
