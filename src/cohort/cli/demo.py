"""``cohort demo``: the quickstart's sweep, then exact match of four models: what the search was worth.

The wheel carries the quickstart's files; a checkout has them in ``examples/quickstart``.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from cohort.cli.arguments.options import DebugOption
from cohort.cli.exits import exits
from cohort.core.process.gc_off import collections_off

if TYPE_CHECKING:
    from cohort.engine.train.watching.progress import ProgressWatcher
    from cohort.runs.results.results import RunResults

__all__ = ["demo"]

_PACKAGE = Path(__file__).resolve().parents[1]
_SEARCHED = ("learning_rate", "r", "lora_alpha", "batch_size")
_DATA = ("train.jsonl", "validation.jsonl", "test.jsonl")
_RUNS = ("sweep", "default", "worst")


def demo(
    folder: Annotated[
        Path,
        typer.Argument(metavar="[FOLDER]", help="Where task, runs and report go; an earlier demo there is replaced."),
    ] = Path("cohort-demo"),
    debug: DebugOption = False,
) -> None:
    """Tune 24 configurations of a small base model on this machine, and show what the search was worth.

    Takes one to two minutes on a CPU and needs no network. FOLDER/task then holds the task, to change and tune again.
    """
    with exits(as_json=False, debug=debug, resume=folder / "sweep"), collections_off():
        task_file = _lay_out(folder)
        _compare(task_file, folder)


def quickstart_folder() -> Path:
    """Return the folder of the quickstart's files: the one in the package, or the checkout's.

    Raises:
        CohortError: this installation has neither.
    """
    from cohort.core.errors import CohortError

    for candidate in (_PACKAGE / "quickstart", _PACKAGE.parents[1] / "examples" / "quickstart"):
        if (candidate / "task.yaml").is_file():
            return candidate
    raise CohortError(f"the quickstart's files are missing from {_PACKAGE}; install the package again")


def _lay_out(folder: Path) -> Path:
    """Copy the task into ``folder`` and remove the runs of an earlier demo; return the task file.

    Raises:
        InputError: ``folder`` has files that no demo has written.
        InUseError: another process works on one of the runs.
    """
    from cohort.core.errors import InputError, InUseError, Problem
    from cohort.runs.directory import RunDirectory

    source, task_file = quickstart_folder(), folder / "task" / "task.yaml"
    if folder.exists() and not (folder.is_dir() and (task_file.is_file() or not any(folder.iterdir()))):
        raise InputError(
            Problem(
                where=str(folder),
                found="files that no demo has written" if folder.is_dir() else "a file",
                allowed="a folder that does not exist, an empty one, or that of an earlier demo",
                hint="Name another folder: cohort demo FOLDER.",
            )
        )
    for name in _RUNS:
        directory = RunDirectory(folder / name)
        if directory.holds_run() and (holder := directory.lock().holder()) is not None:
            raise InUseError(
                f"{directory.root} is in use by {holder}; watch it with `cohort status {quote(str(directory.root))} "
                "--watch`, wait until it ends, stop it, or name another folder: cohort demo FOLDER"
            )
    for name in ("task", *_RUNS):
        shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(source / "base_model", task_file.parent / "base_model")
    for name in _DATA:
        shutil.copy(source / name, task_file.parent / name)
    # last: it marks the folder as a demo's
    shutil.copy(source / "task.yaml", task_file)
    return task_file


def _compare(task_file: Path, folder: Path) -> None:
    """Tune, train the default and the worst configuration in full, and compare on the test set."""
    from cohort.prepare.rows.ahead import begin_rows_ahead

    # before what follows imports torch
    begin_rows_ahead(task_file)
    from cohort.cli.tables.run_results import print_results
    from cohort.cli.terminal.progress import RUN_VIEW, watching
    from cohort.core.units import format_duration
    from cohort.engine.tune import tune
    from cohort.tasks.loading import load_task

    task, sweep = load_task(task_file), folder / "sweep"
    with watching(RUN_VIEW) as watcher:
        watcher.note(f"tuning {task_file} into {sweep}")
        started = time.monotonic()
        tune(task, sweep, watcher=watcher)
        seconds = time.monotonic() - started
    print_results(sweep, as_json=False)
    results = _results(sweep)
    worst = dict(results.ranked[-1].trial.parameters)
    default = {name: value for name, value in task.searchable_defaults().items() if name in _SEARCHED}
    with watching(RUN_VIEW) as watcher:
        for name, parameters in (("default", default), ("worst", worst)):
            watcher.note(f"training the {name} configuration alone and in full, to compare with")
            _train_alone(task_file, parameters, folder / name, watcher=watcher)
    test = task_file.parent / "test.jsonl"
    print("\nanswering the 200 test prompts with each of the four models", flush=True)
    rows = [
        ("base model", "", _exact_match(sweep, test, use_base=True)),
        ("worst configuration", _text(worst), _exact_match(folder / "worst", test)),
        ("default configuration", _text(default), _exact_match(folder / "default", test)),
        ("tuned", _text(results.best.parameters if results.best else {}), _exact_match(sweep, test)),
    ]
    print("\nexact match of greedy answers to the 200 test prompts, which no earlier step has read:\n")
    for title, shown, share in rows:
        print(f"  {title:<22}{100 * share:5.1f} %   {shown}")
    compute = results.compute
    if compute.share_of_full_grid is not None and compute.num_full_runs is not None:
        print(
            f"\ncost    {100 * compute.share_of_full_grid:.1f} % of training all {compute.num_trials} configurations "
            f"in full, as much as {compute.num_full_runs:.1f} full runs; the sweep took {format_duration(seconds)}"
        )
    print(f"report  {sweep / 'report.html'}\nadapter {sweep / 'best'}")
    print(f"\nask it, or tune your own rows:\n\n    cohort chat {quote(str(sweep))}\n    cohort init MODEL DATA")


def _train_alone(
    task_file: Path, parameters: Mapping[str, object], run_directory: Path, *, watcher: ProgressWatcher
) -> None:
    """Train one configuration in full with a run of its own."""
    from cohort.engine.tune import tune
    from cohort.tasks.loading import load_task

    space = json.dumps({name: [parameters[name]] for name in _SEARCHED})
    overrides = [f"--search.space={space}", "--early_exit", "none"]
    tune(load_task(task_file, overrides), run_directory, watcher=watcher)


def _results(run_directory: Path) -> RunResults:
    from cohort.runs.directory import RunDirectory
    from cohort.runs.reader import RunReader
    from cohort.runs.results.results import read_results

    with RunReader.open(RunDirectory.open(run_directory).database) as reader:
        return read_results(reader)


def _exact_match(run_directory: Path, test: Path, *, use_base: bool = False) -> float:
    from cohort.adapter_files.generate import GenerationSettings, generate_from_run

    rows = [json.loads(line) for line in test.read_text(encoding="utf-8").splitlines()]
    settings = GenerationSettings(max_new_tokens=12, use_base=use_base)
    answers = generate_from_run(run_directory, [row["prompt"] for row in rows], settings=settings).answers
    expected = [str(row["completion"]).strip() for row in rows]
    return sum(answer.strip() == text for answer, text in zip(answers, expected, strict=True)) / len(rows)


def _text(parameters: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {parameters[name]:g}" for name in _SEARCHED if name in parameters)
