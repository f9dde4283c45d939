"""Tasks whose rows are given from Python: their run keeps the rows, so that it can be resumed from the shell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas
import pytest

import cohort
from cohort.cli.main import main
from cohort.core.errors import InputError
from tests.end_to_end.tiny_tasks import Interrupting, outcome_of, write_inputs

KEYS: dict[str, Any] = {
    "training": {"max_steps": 4, "batch_size": 2},
    "lora": {"target_modules": ["q_proj"], "lora_alpha": "2r"},
    "evaluation": {"max_examples": 4, "max_cost_fraction": 1000.0},
    "search_space": {"learning_rate": [1e-3, 1e-2]},
    "name": "given",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]


def task_of(folder: Path, train: object, **keys: Any) -> cohort.Task:
    dataset = {"train": train, "validation": 0.25, "max_length": 64}
    return cohort.Task(model=folder / "model", dataset=dataset, **{**KEYS, **keys})


def test_an_interrupted_run_of_given_rows_is_resumed_from_the_shell(
    folder: Path, rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    in_file = cohort.run(task_of(folder, folder / "train.jsonl"), total_gpus=0, run_directory="file")
    with pytest.raises(KeyboardInterrupt):
        cohort.run(task_of(folder, rows), total_gpus=0, run_directory="list", watcher=Interrupting(1))
    assert cohort.load("list").state == "stopped"
    with pytest.raises(SystemExit) as caught:
        main(["resume", "list"])
    assert caught.value.code == 0
    # byte for byte the same bits, as the same rows give the same tokens
    assert outcome_of(Path("list")) == outcome_of(in_file.run_directory)
    kept = [json.loads(line) for line in Path("list/rows/train.jsonl").read_text().splitlines()]
    assert kept == rows
    assert str(tmp_path / "list" / "rows" / "train.jsonl") in Path("list/task.yaml").read_text()


def test_running_a_cell_again_returns_its_result_or_says_what_changed(
    folder: Path, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    frame = pandas.DataFrame(rows)
    first = cohort.run(task_of(folder, frame), total_gpus=0, run_directory=tmp_path / "run")
    again = cohort.run(task_of(folder, frame), total_gpus=0, run_directory=tmp_path / "run")
    assert (again.trials, again.state) == (first.trials, "done")
    with pytest.raises(InputError, match=r"training\.max_steps: found 5; allowed: 4, as in the run in .*overwrite"):
        cohort.run(
            task_of(folder, frame, training={"max_steps": 5, "batch_size": 2}),
            total_gpus=0,
            run_directory=tmp_path / "run",
        )
    other = frame.assign(completion=frame["completion"] + "0")
    with pytest.raises(InputError, match=r"the training rows changed.*on_existing='overwrite'"):
        cohort.run(task_of(folder, other), total_gpus=0, run_directory=tmp_path / "run")
    assert cohort.load(tmp_path / "run").trials == first.trials, "a refused call changes nothing"
    with pytest.raises(InputError, match="already holds another run"):
        cohort.run(task_of(folder, other), total_gpus=0, run_directory=tmp_path / "run", on_existing="error")
    anew = cohort.run(task_of(folder, other), total_gpus=0, run_directory=tmp_path / "run", on_existing="overwrite")
    assert anew.metrics != first.metrics
    assert cohort.resume(tmp_path / "run").trials == anew.trials


def test_a_wrong_row_is_named_by_its_place_in_the_list(
    folder: Path, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"Task 'given': dataset\.train\[1\]"):
        cohort.run(task_of(folder, [rows[0], {"prompt": 5}, *rows[1:]]), run_directory=tmp_path / "run", total_gpus=0)
    assert not (tmp_path / "run").exists()
