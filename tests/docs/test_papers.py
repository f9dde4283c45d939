"""docs/papers.md calls a file in use where a run enters its functions; here such runs are made and watched.

The tests of a file may call what no run does: then the table says that tests reach it alone.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import cohort.prepare.record_facts
from cohort.cli.main import main
from cohort.engine.tune import RunOptions, tune
from cohort.kernels.backend import Backend, triton_interprets, use_backend
from cohort.machine.cluster.local import LocalPool, cpu_slots
from cohort.scheduling.placement.records import TaskOption
from cohort.task_queue.operations import add_to_queue, work_off
from cohort.task_queue.records import QueuedTask
from cohort.task_queue.settings import DispatcherSettings
from cohort.task_queue.workers.pool import WORKER_TARGET
from tests.cli.tiny_task import write_tiny_model
from tests.conftest import REPOSITORY
from tests.end_to_end.tiny_tasks import tiny_data, tiny_task, write_inputs
from tests.scheduling.placement.placement_instances import small_work
from tests.support.entered import sitecustomize

PAGE = (REPOSITORY / "docs" / "papers.md").read_text(encoding="utf-8")
SOURCE = f"{REPOSITORY / 'src'}{os.sep}"
# what no run of the product reaches
NO_RUN = ("a benchmark", "tests")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table: its files or folders, as paths below the repository, and what reaches them."""

    claim: str
    files: tuple[str, ...]
    ways: tuple[str, ...]


def _rows() -> list[Row]:
    found = []
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) != 5 or cells[0] == "paper" or cells[0].startswith("---"):
            continue
        _, claim, files, ways, _ = cells
        named = tuple(re.findall(r"`([^`]+)`", files))
        found.append(Row(claim=claim, files=named, ways=tuple(way.strip().strip("`") for way in ways.split(","))))
    return found


ROWS = _rows()


def _meets(file: str, entered: set[str]) -> bool:
    """Return whether a function of a file, or of any file of a folder, or the function it names, was entered."""
    path, _, function = file.removeprefix("src/").partition("::")
    if function:
        return f"{path}::{function}" in entered
    return any(each.partition("::")[0] == path or (path[-1] == "/" and each.startswith(path)) for each in entered)


@contextmanager
def _watched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], set[str]]]:
    """Watch this process and those that it starts; yield what tells the functions that they entered."""
    (notes := folder / "entered").mkdir()
    support = str(Path(sitecustomize.__file__).parent)
    path = os.pathsep.join([support, str(REPOSITORY / "src"), str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv(sitecustomize.FOLDER, str(notes))
    monkeypatch.setenv(sitecustomize.SOURCE, SOURCE)
    before, before_in_threads = sys.gettrace(), threading.gettrace()
    sitecustomize.watch(str(notes), SOURCE)
    try:
        yield lambda: {line for path in notes.iterdir() for line in path.read_text().splitlines()}
    finally:
        sys.settrace(before)
        threading.settrace(before_in_threads)


def _command(*words: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(list(words))
    assert not caught.value.code, words


def _task(folder: Path, **sections: Any) -> str:
    (folder / "task.yaml").write_text(json.dumps(tiny_data(**sections)))
    return str(folder / "task.yaml")


def _tune(folder: Path) -> None:
    """Tune all kinds of trials, with proposals that a constraint may refuse."""
    space = {"learning_rate": {"min": 1e-3, "max": 3e-2, "log": True}, "r": [4, 8], "nblocks": [1, 2]}
    search = {"space": space, "constraints": ["r % nblocks == 0"], "sampler": "random", "trials": 6}
    _command("tune", _task(folder, search=search, lora={"use_bdlora": {"nblocks": 2}}), "-o", str(folder / "run"))


def _packs(folder: Path) -> None:
    """Train a full grid by plan; one executor follows one as several do."""
    _command("tune", _task(folder, packing="planned", early_exit="none"), "-o", str(folder / "run"))


def _plan(folder: Path, *options: str) -> None:
    _command("plan", _task(folder, num_gpus="auto"), "--dry-run", "2xH200", *options)


def _queue(folder: Path) -> None:
    """Work off two tasks on one worker, whose passes are as small as on a GPU, so that it trains both at a time."""
    short = {"search": {"space": {"learning_rate": [1e-3], "r": [2, 4]}}}
    for name, steps in (("host", 40), ("guest", 10)):
        (folder / f"{name}.yaml").write_text(json.dumps(tiny_data(training={"max_steps": steps}, **short)))

    def expect(task: QueuedTask) -> tuple[TaskOption, ...]:
        return (TaskOption(num_gpus=1, seconds=1000.0 / float(task.task["training"]["max_steps"])),)

    add_to_queue([folder / "host.yaml", folder / "guest.yaml"], folder / "runs", expect=expect)
    pool = LocalPool(cpu_slots(1, num_threads=1), target=WORKER_TARGET, log_directory=folder / "runs" / "workers")
    work_off(
        folder / "runs",
        pool,
        expect=expect,
        work=lambda task: small_work(seconds=expect(task)[0].seconds),
        settings=DispatcherSettings(room_seconds=0.05, look_seconds=0.05),
    )


def _group(folder: Path, strategy: str) -> None:
    write_tiny_model(folder / "model", num_layers=2, num_heads=8, num_kv_heads=4)
    sections = {"training": {"max_steps": 2}, "search": {"space": {"learning_rate": [1e-3], "r": [2, 4]}}}
    # the greedy way plans the first window of a pipeline
    microbatches = "solver" if strategy == "pipeline" else "auto"
    task = tiny_task(folder, strategy=strategy, microbatches=microbatches, early_exit="none", **sections)
    tune(task, folder / "run", options=replace(RunOptions(token_budget=40), num_ranks=2))


def _kernels(folder: Path) -> None:
    """Tune with the GPU's kernels, which Triton runs as Python: a step of one linear takes seconds."""
    write_tiny_model(folder / "model", num_layers=1)
    search = {"space": {"learning_rate": [1e-3], "r": [4]}}
    small = {"lora": {"target_modules": ["q_proj"]}, "training": {"max_steps": 1, "batch_size": 1}, "search": search}
    task = tiny_task(folder, early_exit="none", evaluation={"finalists": 0, "max_examples": 1}, **small)
    with use_backend(Backend.TRITON):
        tune(task, folder / "run", options=RunOptions())


def _gpu(folder: Path) -> None:
    _command("tune", _task(folder, num_gpus=1), "-o", str(folder / "run"))


# how the table names what reaches a file, and a run of it
WAYS: dict[str, Callable[[Path], None]] = {
    "cohort tune": _tune,
    "cohort plan": _plan,
    "cohort plan --packs": lambda folder: _plan(folder, "--packs"),
    "packing: planned": _packs,
    "cohort run": _queue,
    "strategy: pipeline": lambda folder: _group(folder, "pipeline"),
    "strategy: tensor": lambda folder: _group(folder, "tensor"),
    "Triton": _kernels,
    "a GPU": _gpu,
}
MARKS = {"Triton": pytest.mark.slow, "a GPU": pytest.mark.gpu}


def test_every_row_says_what_reaches_its_files() -> None:
    assert len(ROWS) > 25
    for row in ROWS:
        assert row.files, row
        assert set(row.ways) <= {*WAYS, *NO_RUN}, row
        for file in row.files:
            assert (REPOSITORY / file.partition("::")[0]).exists(), row
    assert {way for row in ROWS for way in row.ways} >= set(WAYS), "a way that no row names needs no run here"


@pytest.mark.parametrize("way", [pytest.param(way, marks=MARKS.get(way, ())) for way in WAYS])
def test_a_file_in_use_is_entered_by_a_run(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "Triton":
        if not triton_interprets():
            pytest.skip("Triton is not installed, or compiles for a GPU")
        # names the GPU of the run's record
        monkeypatch.setattr(cohort.prepare.record_facts, "tile_lines", lambda *_, **__: [])
    torch.set_num_threads(1)
    folder = write_inputs(tmp_path / "in")
    with _watched(tmp_path, monkeypatch) as entered:
        WAYS[way](folder)
        found = entered()
    missed = [(row.claim, file) for row in ROWS if way in row.ways for file in row.files if not _meets(file, found)]
    assert missed == [], f"not entered by {way}"
    unused = {file for row in ROWS if not set(row.ways) - set(NO_RUN) for file in row.files if file.startswith("src/")}
    assert [file for file in unused if _meets(file, found)] == [], f"entered by {way}, which the table does not know"
