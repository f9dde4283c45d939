"""A sweep that begins with an adapter: its first loss is the adapter's, and its bits follow from nothing else."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from cohort.adapter_files.evaluate import evaluate_run
from cohort.core.errors import InputError
from cohort.engine.tune import RunOptions, resume, tune
from cohort.runs.reader import RunReader
from cohort.tasks.loading import TaskFile
from tests.cli.tiny_task import write_rows
from tests.end_to_end.tiny_tasks import Interrupting, TickingClock, outcome_of, tiny_task, write_inputs

OPTIONS = RunOptions(checkpoint_seconds=0.0, checkpoint_share=math.inf, token_budget=200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("tiny"))
    write_rows(folder / "validation.jsonl", count=6)
    tune(start_task(folder), folder / "first", options=OPTIONS)
    return folder


def start_task(folder: Path, start: Path | None = None, *, rates: tuple[float, ...] = (1e-2, 3e-2)) -> TaskFile:
    lora: dict[str, Any] = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.0}
    return tiny_task(
        folder,
        dataset={"validation": "validation.jsonl"},
        lora=lora if start is None else {**lora, "adapter_name_or_path": str(start)},
        training={"max_steps": 4, "batch_size": 24},
        search={"space": {"learning_rate": list(rates)}},
        early_exit="none",
    )


def first_losses(run: Path) -> list[float]:
    with RunReader.open(run / "run.db") as reader:
        return [next(iter(reader.log.steps(trial.trial_id))).loss for trial in reader.trials()]


def test_a_sweep_begins_where_the_adapter_is_and_resumes_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    start = tmp_path / "start"
    shutil.copytree(folder / "first" / "best", start)
    # one step has all training rows
    (measured,) = evaluate_run(folder / "first", data=folder / "train.jsonl", with_base=False).contenders
    watcher = Interrupting()
    tune(start_task(folder, start), tmp_path / "whole", options=OPTIONS, watcher=watcher)
    assert any("every trial begins with the weights of" in note for note in watcher.notes)
    assert first_losses(tmp_path / "whole") == pytest.approx([measured.values["loss"].value] * 2, abs=1e-6)
    assert abs(first_losses(tmp_path / "whole")[0] - first_losses(folder / "first")[0]) > 1e-3
    with pytest.raises(KeyboardInterrupt):
        tune(
            start_task(folder, start),
            tmp_path / "stopped",
            options=OPTIONS,
            watcher=Interrupting(steps=3),
            clock=TickingClock(),
        )
    shutil.copytree(tmp_path / "stopped", tmp_path / "changed")
    resume(tmp_path / "stopped", options=OPTIONS)
    whole = outcome_of(tmp_path / "whole")
    assert outcome_of(tmp_path / "stopped") == whole
    tune(start_task(folder, start, rates=(1e-2,)), tmp_path / "alone", options=OPTIONS)
    alone = outcome_of(tmp_path / "alone")["steps"]
    assert alone == {key: step for key, step in whole["steps"].items() if key[0] == 0}
    weights = start / "adapter_model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(weights).items()}, weights, metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lora\.adapter_name_or_path.*the adapter that trials begin with changed"):
        resume(tmp_path / "changed", options=OPTIONS)
    # a finished run has adapters of its own
    shutil.rmtree(start)
    assert evaluate_run(tmp_path / "alone", data=folder / "train.jsonl", with_base=False).contenders
