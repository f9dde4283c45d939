"""The main job on this folder's task, then exact match of four models on the test set: what the search was worth.

`make demo` runs it. Everything goes to `.demo/` in the repository; the runs of an earlier time there are replaced.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

from cohort.adapter_files.generate import GenerationSettings, generate_from_run
from cohort.cli.tables.run_results import print_results
from cohort.cli.terminal.progress import RUN_VIEW, watching
from cohort.core.units import format_duration
from cohort.engine.train.watching.progress import ProgressWatcher
from cohort.engine.tune import tune
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.runs.results.results import RunResults, read_results
from cohort.tasks.loading import load_task

HERE = Path(__file__).resolve().parent
SEARCHED = ("learning_rate", "r", "lora_alpha", "batch_size")


def main() -> None:
    """Tune, train the default and the worst configuration in full, and compare on the test set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=HERE.parent.parent / ".demo", help="folder whose earlier results are replaced"
    )
    output = parser.parse_args().output
    for name in ("sweep", "default", "worst"):
        shutil.rmtree(output / name, ignore_errors=True)
    task = load_task(HERE / "task.yaml")
    sweep = output / "sweep"
    with watching(RUN_VIEW) as watcher:
        watcher.note(f"tuning {HERE / 'task.yaml'} into {sweep}")
        started = time.monotonic()
        tune(task, sweep, watcher=watcher)
        seconds = time.monotonic() - started
    print_results(sweep, as_json=False)
    results = _results(sweep)
    worst = dict(results.ranked[-1].trial.parameters)
    default = {name: value for name, value in task.searchable_defaults().items() if name in SEARCHED}
    with watching(RUN_VIEW) as watcher:
        for name, parameters in (("default", default), ("worst", worst)):
            watcher.note(f"training the {name} configuration alone and in full, to compare with")
            _train_alone(parameters, output / name, watcher=watcher)
    print("\nanswering the 200 test prompts with each of the four models", flush=True)
    rows = [
        ("base model", "", _exact_match(sweep, use_base=True)),
        ("worst configuration", _text(worst), _exact_match(output / "worst")),
        ("default configuration", _text(default), _exact_match(output / "default")),
        ("tuned", _text(results.best.parameters if results.best else {}), _exact_match(sweep)),
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


def _train_alone(parameters: dict[str, Any], run_directory: Path, *, watcher: ProgressWatcher) -> None:
    """Train one configuration in full with a run of its own."""
    overrides = [
        f"--search.space={json.dumps({name: [parameters[name]] for name in SEARCHED})}",
        "--early_exit",
        "none",
    ]
    tune(load_task(HERE / "task.yaml", overrides), run_directory, watcher=watcher)


def _results(run_directory: Path) -> RunResults:
    with RunReader.open(RunDirectory.open(run_directory).database) as reader:
        return read_results(reader)


def _exact_match(run_directory: Path, *, use_base: bool = False) -> float:
    rows = [json.loads(line) for line in (HERE / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    settings = GenerationSettings(max_new_tokens=12, use_base=use_base)
    answers = generate_from_run(run_directory, [row["prompt"] for row in rows], settings=settings).answers
    expected = [str(row["completion"]).strip() for row in rows]
    return sum(answer.strip() == text for answer, text in zip(answers, expected, strict=True)) / len(rows)


def _text(parameters: Any) -> str:
    return ", ".join(f"{name} {parameters[name]:g}" for name in SEARCHED if name in parameters)


if __name__ == "__main__":
    main()
