"""The same job on a GPU: it picks the device, ends with an adapter that PEFT agrees with, and goes on after a stop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cohort.engine.tune import resume, tune
from cohort.machine.exact_steps import keep_exact_steps
from cohort.machine.measured_numerics import MeasuredPack, measure_exact_steps
from cohort.models.config_file import read_config
from cohort.runs.reader import RunReader
from tests.end_to_end.stopped.test_resume import OPTIONS, TickingClock
from tests.end_to_end.tiny_tasks import Interrupting, outcome_of, tiny_task, write_inputs

pytestmark = pytest.mark.gpu

SECTIONS = {"num_gpus": "auto", "evaluation": {"metric": "exact_match", "max_new_tokens": 3}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("tiny"))
    tune(tiny_task(folder, **SECTIONS), folder / "run", options=OPTIONS)
    return folder


def test_it_runs_on_the_gpu_and_says_so(folder: Path) -> None:
    with RunReader.open(folder / "run" / "run.db") as reader:
        facts, trials = reader.facts(), reader.trials()
    assert str(facts.machine.device).startswith("cuda")
    assert str(facts.machine.precision).startswith("base model (bfloat16")
    assert len(trials) == 6
    assert all(trial.status.is_final for trial in trials)


def test_validation_losses_are_those_of_peft(folder: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from cohort.core.clock import SystemClock
    from cohort.prepare.preparation import prepare

    prepared = prepare(tiny_task(folder, **SECTIONS), clock=SystemClock())
    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, folder / "run" / "best")
    total, count = 0.0, 0
    for row in prepared.evaluation_rows:
        sample = prepared.inputs.data.validation.sample(row)
        tokens, trained = torch.from_numpy(sample.tokens).long(), torch.from_numpy(sample.trained)
        with torch.no_grad():
            losses = torch.nn.functional.cross_entropy(
                model(tokens[None]).logits[0, :-1].float(), tokens[1:], reduction="none"
            )
        total += float(losses[trained[1:]].sum())
        count += int(trained[1:].sum())
    with RunReader.open(folder / "run" / "run.db") as reader:
        best_trial_id = reader.facts().best_trial_id
        assert best_trial_id is not None
        best = reader.trial(best_trial_id)
    assert best.best_loss is not None
    # the run read the model in bfloat16, PEFT in float32
    assert best.best_loss == pytest.approx(total / count, rel=0.01)


def test_auto_decides_by_what_was_measured_and_a_resume_keeps_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path / "cache"))
    pack = MeasuredPack(num_trials=2, batch_size=1, length=24, warmups=2)
    config = read_config(folder / "model")
    (measured,) = measure_exact_steps(config, device=torch.device("cuda"), say=print, packs=(pack,))
    # whatever it was: the test needs a cheap one
    keep_exact_steps([replace(measured, ratio=1.0)])
    task, whole, run = tiny_task(folder, num_gpus=1), tmp_path / "whole", tmp_path / "run"
    tune(task, whole, options=OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        tune(task, run, options=OPTIONS, watcher=Interrupting(21), clock=TickingClock())
    keep_exact_steps([replace(measured, ratio=2.0)])
    resume(run, options=OPTIONS)
    assert outcome_of(run) == outcome_of(whole)
    with RunReader.open(run / "run.db") as reader:
        machine = reader.facts().machine
    assert (machine.numerics, "takes no longer" in str(machine.numerics_reason)) == ("exact", True)
    watcher = Interrupting(1)
    with pytest.raises(KeyboardInterrupt):
        tune(task, tmp_path / "new", options=OPTIONS, watcher=watcher, clock=TickingClock())
    assert any(note.startswith("numerics: fast (with exact a step takes up to 100 % longer") for note in watcher.notes)


def test_it_goes_on_after_a_stop(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        tune(tiny_task(folder, **SECTIONS), run, options=OPTIONS, watcher=Interrupting(21), clock=TickingClock())
    resume(run, options=OPTIONS)
    ours, undisturbed = outcome_of(run), outcome_of(folder / "run")
    assert ours["steps"].keys() == undisturbed["steps"].keys()
    for key, (loss, _, _) in undisturbed["steps"].items():
        # the same kernels on the same rows; which slots the trials sit in may round another way
        assert float(ours["steps"][key][0]) == pytest.approx(float(loss), rel=0.02), key
