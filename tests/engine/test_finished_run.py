"""A finished run that is resumed: what was lost is written again, and its task is the one it began with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.engine.tune import resume, tune
from tests.end_to_end.tiny_tasks import Interrupting, tiny_task, write_inputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("finished"))
    tune(tiny_task(folder, training={"max_steps": 2}), folder / "run")
    return folder


@pytest.fixture
def finished(folder: Path, tmp_path: Path) -> Path:
    """A copy of a finished run; its inputs stay where they are."""
    return Path(shutil.copytree(folder / "run", tmp_path / "run"))


def notes_of(run: Path) -> list[str]:
    watcher = Interrupting()
    resume(run, watcher=watcher)
    return watcher.notes


def files_of(run: Path) -> dict[str, bytes]:
    return {
        path.relative_to(run).as_posix(): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and not path.name.startswith((".lock", "run.db"))
    }


def test_lost_tables_need_neither_rows_nor_model(folder: Path, finished: Path) -> None:
    before = files_of(finished)
    for name in ("report.html", "results.csv", "metrics.jsonl"):
        (finished / name).unlink()
    (folder / "train.jsonl").rename(folder / "away.jsonl")
    (folder / "model").rename(folder / "elsewhere")
    try:
        (note,) = notes_of(finished)
    finally:
        (folder / "away.jsonl").rename(folder / "train.jsonl")
        (folder / "elsewhere").rename(folder / "model")
    assert "results.csv, metrics.jsonl, report.html; writing the results again" in note
    after = files_of(finished)
    # the first report was made before the record said that the results are written
    assert after.pop("report.html")
    del before["report.html"]
    assert after == before


def test_a_finished_run_with_a_torn_result_writes_it_again(finished: Path) -> None:
    run = finished
    before = files_of(run)
    weights = run / "best" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    (run / "best" / "tokenizer.json").unlink()
    (run / "task.yaml").unlink()
    notes = notes_of(run)
    assert f"{run / 'task.yaml'} was missing; it was written again from the run's record" in notes
    assert any("damaged: best/adapter_model.safetensors, best/tokenizer.json; writing" in note for note in notes)
    kept = [name for name in before if name.startswith("best/") or name == "task.yaml"]
    assert {name: files_of(run)[name] for name in kept} == {name: before[name] for name in kept}


def test_a_finished_run_whose_task_was_changed_is_refused(finished: Path) -> None:
    run = finished
    text = (run / "task.yaml").read_text()
    (run / "task.yaml").write_text(text.replace("seed: 0", "seed: 1"))
    with pytest.raises(InputError, match=r"training\.seed(.|\n)*0, as when the run began"):
        resume(run)
    (run / "task.yaml").write_text(text.replace("seed: 0", "seed: nothing"))
    with pytest.raises(InputError, match=r"training\.seed(.|\n)*'nothing'"):
        resume(run)
    # inputs of a finished run may be anywhere
    (run / "task.yaml").write_text(text.replace("train.jsonl", "gone.jsonl"))
    assert notes_of(run) == []
