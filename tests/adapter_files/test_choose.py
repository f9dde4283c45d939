"""Adapters of every trial of a run can be had, kept or not."""

from __future__ import annotations

import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cohort.adapter_files.export import ExportForm, export_adapter
from cohort.adapter_files.generate import GenerationSettings, generate_from_run
from cohort.cli.main import main
from cohort.core.errors import InputError
from cohort.engine.train.watching.progress import RunProgress, SilentWatcher
from cohort.engine.tune import RunOptions, resume, tune
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.training.checkpoint import read_weights
from tests.end_to_end.task_queue.test_shared_session import TickingClock
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

SETTINGS = GenerationSettings(max_new_tokens=8)
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_config.json", "README.md", "tokenizer.json")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("chosen"))
    tune(tiny_task(folder), folder / "run")
    return folder / "run"


def by_reason(run: Path, *, sorted_out: bool) -> int:
    with RunReader.open(run / "run.db") as reader:
        trials = reader.trials()
    return next(t.trial_id for t in trials if (t.reason == "underperforming") is sorted_out)


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_an_adapter_made_from_the_checkpoint_is_the_one_that_was_kept(
    run: Path, tmp_path: Path, is_cut_off: bool
) -> None:
    kept = run / "trials" / f"{by_reason(run, sorted_out=False):04d}"
    without = Path(shutil.copytree(run, tmp_path / "run"))
    for name in ADAPTER_FILES:
        file = without / "trials" / kept.name / name
        # as a machine leaves it that stops before all of it is on the disk
        content = file.read_bytes()[:-1]
        file.unlink()
        if is_cut_off:
            file.write_bytes(content)
    made = export_adapter(without, form=ExportForm.PEFT, trial_id=int(kept.name), output=tmp_path / "made").path
    for name in ADAPTER_FILES:
        assert (made / name).read_bytes() == (kept / name).read_bytes(), name


def test_a_trial_that_was_sorted_out_can_be_exported_merged_and_tried(run: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    trial_id = by_reason(run, sorted_out=True)
    before = sorted(run.rglob("*"))
    export_adapter(run, form=ExportForm.PEFT, trial_id=trial_id, output=tmp_path / "peft")
    export_adapter(run, form=ExportForm.MERGED, trial_id=trial_id, output=tmp_path / "merged")
    tried = generate_from_run(run, ["1+1="], settings=SETTINGS, trial_id=trial_id)
    assert (len(tried.answers), tried.so_far) == (1, None)
    assert sorted(run.rglob("*")) == before
    (best,) = (run / "trials" / f"{trial_id:04d}").glob("best-*")
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert config["r"] == read_weights(best)[0].shape[0]
    base = AutoModelForCausalLM.from_pretrained(run.parent / "model", dtype=torch.float32)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    ids = torch.arange(2, 30)[None]
    with torch.no_grad():
        plain = base(ids).logits.clone()
        adapted = PeftModel.from_pretrained(base, tmp_path / "peft")(ids).logits
        assert not torch.equal(plain, adapted)
        # the same sum in another order, in float32
        torch.testing.assert_close(merged(ids).logits, adapted, rtol=1e-4, atol=1e-5)


class StopAt(SilentWatcher):
    """Presses Ctrl-C when so many steps have been done."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def update(self, progress: RunProgress) -> None:
        if sum(trial.steps_done for trial in progress.trials) >= self._steps:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def interrupted(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("interrupted") / "run"
    with pytest.raises(KeyboardInterrupt):
        tune(
            tiny_task(run.parent), directory, watcher=StopAt(20), options=RunOptions(checkpoint_seconds=0),
            clock=TickingClock(),
        )  # fmt: skip
    return directory


def best_of_files(run: Path) -> tuple[int, int, float]:
    """Trial, step and loss of the best evaluation whose checkpoint lies on disk."""
    with RunReader.open(run / "run.db") as reader:
        losses = {(e.trial_id, e.step): e.validation_loss for e in reader.log.evaluations()}
    there = [(int(path.parent.name), int(path.stem.partition("-")[2])) for path in run.glob("trials/*/best-*")]
    trial_id, step = min((key for key in there if key in losses), key=lambda key: (losses[key], key))
    return trial_id, step, losses[trial_id, step]


def test_of_an_unfinished_run_the_best_so_far_is_exported(interrupted: Path, tmp_path: Path) -> None:
    trial_id, step, loss = best_of_files(interrupted)
    before = sorted(interrupted.rglob("*"))
    made = export_adapter(interrupted, form=ExportForm.PEFT, output=tmp_path / "made")
    assert made.so_far is not None
    assert (made.so_far.trial_id, made.so_far.step) == (trial_id, step)
    assert f"trial {trial_id} after step {step} (validation loss {loss:.4g}" in made.so_far.note
    assert "cohort resume" in made.so_far.note
    config = json.loads((made.path / "adapter_config.json").read_text())
    assert config["r"] == read_weights(interrupted / f"trials/{trial_id:04d}/best-{step:06d}.safetensors")[0].shape[0]
    assert f"| at step | {step} |" in (made.path / "README.md").read_text()
    assert sorted(interrupted.rglob("*")) == before
    assert export_adapter(interrupted, form=ExportForm.MERGED).path.name == f"export-merged-{trial_id:04d}-step-{step}"


def test_a_best_that_is_not_on_disk_gives_way_to_one_that_is(interrupted: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(interrupted, tmp_path / "run"))
    trial_id, step, _ = best_of_files(copy)
    (copy / f"trials/{trial_id:04d}/best-{step:06d}.safetensors").unlink()
    made = export_adapter(copy, form=ExportForm.PEFT)
    assert made.so_far is not None
    assert (made.so_far.trial_id, made.so_far.step) == best_of_files(copy)[:2]
    with RunReader.open(copy / "run.db") as reader:
        loss, trial_id, step = min((e.validation_loss, e.trial_id, e.step) for e in reader.log.evaluations())
    assert f"reached {loss:.4g} (trial {trial_id}, step {step}), which is not on disk" in made.so_far.note


def test_a_finished_run_says_nothing_of_so_far(run: Path, tmp_path: Path) -> None:
    assert export_adapter(run, form=ExportForm.PEFT, output=tmp_path / "made").so_far is None


def test_a_run_without_any_checkpoint_has_nothing_to_export(interrupted: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(interrupted, tmp_path / "run"))
    for path in copy.glob("trials/*/best-*"):
        path.unlink()
    with pytest.raises(InputError, match="a run with neither a best adapter nor a checkpoint on disk yet") as caught:
        export_adapter(copy, form=ExportForm.PEFT)
    # what has just failed is no hint
    assert "cohort resume" in str(caught.value)
    assert "cohort export" not in str(caught.value)


def test_of_an_unfinished_run_the_best_so_far_is_tried(interrupted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial_id, step, _ = best_of_files(interrupted)
    tried = generate_from_run(interrupted, ["1+1="], settings=SETTINGS)
    assert tried.so_far is not None
    assert (tried.so_far.trial_id, tried.so_far.step) == (trial_id, step)
    assert generate_from_run(interrupted, ["1+1="], settings=replace(SETTINGS, use_base=True)).so_far is None
    with pytest.raises(SystemExit) as ended:
        main(["generate", str(interrupted), "--prompt", "1+1=", "--max-new-tokens", "8", "--json"])
    shown = capsys.readouterr()
    assert not ended.value.code
    assert f"note: this run has not finished: the best checkpoint so far is of trial {trial_id}" in shown.err
    (pair,) = json.loads(shown.out)
    assert pair == {
        "prompt": "1+1=", "answer": tried.answers[0], "best_so_far": {"trial_id": trial_id, "step": step}
    }  # fmt: skip


def test_without_any_checkpoint_it_says_what_is_missing(interrupted: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(interrupted, tmp_path / "run"))
    for path in copy.glob("trials/*/best-*"):
        path.unlink()
    with pytest.raises(InputError, match=r"state has been written yet; .* Finish it with `cohort resume"):
        generate_from_run(copy, ["1+1="], settings=SETTINGS)
    with RunDirectory(copy).lock(), pytest.raises(InputError, match="Wait for its next checkpoint"):
        generate_from_run(copy, ["1+1="], settings=SETTINGS)
    with sqlite3.connect(copy / "run.db") as database:
        database.execute("DELETE FROM evaluations")
    with pytest.raises(InputError, match="no trial has been evaluated yet"):
        generate_from_run(copy, ["1+1="], settings=SETTINGS)


def test_a_trial_without_a_checkpoint_names_those_that_have_one(run: Path, tmp_path: Path) -> None:
    without = Path(shutil.copytree(run, tmp_path / "run"))
    trial_id = by_reason(run, sorted_out=True)
    for path in (without / "trials" / f"{trial_id:04d}").glob("best-*"):
        path.unlink()
    others = ", ".join(str(n) for n in range(6) if n != trial_id)
    with pytest.raises(InputError, match=f"{trial_id}, which has no checkpoint on disk; allowed: one of {others}"):
        export_adapter(without, form=ExportForm.PEFT, trial_id=trial_id)


def test_a_run_of_several_gpus_is_used_on_a_cpu(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    task = copy / "task.yaml"
    expected = generate_from_run(copy, ["1+1="], settings=SETTINGS)
    with sqlite3.connect(copy / "run.db") as database:
        database.execute("UPDATE facts SET value = '\"cuda (NVIDIA H100)\"' WHERE key = 'device'")
    task.write_text(task.read_text().replace("num_gpus: 0", "num_gpus: 4"))
    found = generate_from_run(copy, ["1+1="], settings=SETTINGS)
    assert found.answers == expected.answers
    assert (expected.note, found.note) == (None, "computing on cpu in float32; the run trained on cuda")


def test_the_winner_of_a_finished_run_whose_best_is_gone_is_taken_from_its_checkpoint(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = generate_from_run(run, ["1+1="], settings=SETTINGS).answers
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    weights = (copy / "best" / "adapter_model.safetensors").read_bytes()
    (copy / "best" / "adapter_model.safetensors").unlink()
    with RunReader.open(copy / "run.db") as reader:
        best_id = reader.facts().best_trial_id
    tried = generate_from_run(copy, ["1+1="], settings=SETTINGS)
    assert tried.answers == expected
    assert tried.so_far is not None
    assert tried.so_far.trial_id == best_id
    assert tried.so_far.note.endswith(f"`cohort resume {copy}` writes it again")
    with pytest.raises(SystemExit):
        main(["status", str(copy)])
    told = "damaged: best/adapter_model.safetensors; to write them again from the run's record: cohort resume"
    assert told in capsys.readouterr().out
    resume(copy)
    assert (copy / "best" / "adapter_model.safetensors").read_bytes() == weights
