"""The same job on a GPU: it picks the device, ends with an adapter that PEFT agrees with, and goes on after a stop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.engine.tune import resume, tune
from cohort.runs.reader import RunReader
from tests.end_to_end.test_resume import OPTIONS, TickingClock
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
    assert str(facts.machine.precision).startswith("bfloat16")
    assert len(trials) == 6
    assert all(trial.is_over for trial in trials)


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
