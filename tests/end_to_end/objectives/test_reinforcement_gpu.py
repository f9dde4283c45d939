"""A sweep on a GPU whose trials train on their own answers: in 16 bits, and in exact numerics bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.engine.tune import resume, tune
from cohort.runs.reader import RunReader
from tests.end_to_end.objectives.test_reinforcement import OPTIONS, REWARD, task_of
from tests.end_to_end.objectives.test_reinforcement_kills import best_files
from tests.end_to_end.tiny_tasks import Interrupting, TickingClock, outcome_of, write_inputs

pytestmark = pytest.mark.gpu

SPACE = {"learning_rate": [1e-3, 3e-2], "num_generations": [2, 4], "r": [4, 32]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("inputs") / "inputs")
    (folder / "my_rewards.py").write_text(REWARD)
    return folder


def sections(numerics: str, **space: Any) -> dict[str, Any]:
    return {"num_gpus": 1, "numerics": numerics, "search": {"sampler": "grid", "space": space or SPACE}}


def test_a_sweep_ends_with_an_adapter_that_peft_loads(folder: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    run = tmp_path / "run"
    tune(task_of(folder, **sections("fast")), run, options=OPTIONS)
    with RunReader.open(run / "run.db") as reader:
        facts, trials, steps = reader.facts(), reader.trials(), reader.log.steps()
    assert str(facts.machine.device).startswith("cuda")
    assert len(trials) == 8
    assert all(trial.status.value == "completed" for trial in trials)
    assert len(steps) == 32
    # bfloat16: two paths of a tiny random model
    assert max(step.metrics["sampler_difference"] for step in steps) < 0.5
    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, run / "best")
    assert torch.isfinite(model(torch.tensor([[2, 3, 4]])).logits).all()


def test_exact_numerics_give_the_bits_of_each_trial_alone_and_of_a_killed_run(folder: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    task = task_of(folder, **sections("exact"))
    tune(task, whole, options=OPTIONS, clock=TickingClock())
    with pytest.raises(KeyboardInterrupt):
        tune(task, killed, options=OPTIONS, watcher=Interrupting(9), clock=TickingClock())
    resume(killed, options=OPTIONS)
    assert outcome_of(killed)["steps"] == outcome_of(whole)["steps"]
    assert best_files(killed) == best_files(whole)
    with RunReader.open(whole / "run.db") as reader:
        parameters = [dict(trial.parameters) for trial in reader.trials()]
    steps = outcome_of(whole)["steps"]
    for trial_id in (0, 5, 7):
        alone = tmp_path / f"alone{trial_id}"
        own = {name: [parameters[trial_id][name]] for name in SPACE}
        tune(task_of(folder, **sections("exact", **own)), alone, options=OPTIONS, clock=TickingClock())
        expected = {step: found for (trial, step), found in steps.items() if trial == trial_id}
        assert {step: found for (_, step), found in outcome_of(alone)["steps"].items()} == expected
        assert best_files(alone) == [best_files(whole)[trial_id]]
