"""How long does a sweep take from its last optimizer step to its result, and to its end?

The task of ``whole_sweep`` by the engine in a process of its own, with a watcher that notes when steps are done, when
``best/`` is there and when all is written; and the longest time in which no step was done, which a checkpoint that is
due may cause (``--checkpoint-seconds``). Run ``whole_sweep --folder F`` or ``idle_share --folder F`` before and give
its folder here, and the caches are warm; else a first run warms them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.llama_shapes import SHAPES
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.sweeps.sweep_inputs import write_inputs
from benchmarks.sweeps.timed_processes import run_process

if TYPE_CHECKING:
    from cohort.engine.train.watching.progress import RunProgress

__all__ = ["main"]

QUESTION = "How long does a sweep take from its last optimizer step to its result, and to its end?"
COLUMNS = ("what", "wall_s", "steps_s", "longest_gap_s", "to_best_s", "to_end_s", "checkpoints_gb")


class Watcher:
    """Notes when something is new."""

    def __init__(self) -> None:
        """Know of nothing yet."""
        self.steps: list[tuple[float, int]] = []
        self.lines: list[tuple[float, str]] = []
        self._phase = ""

    def update(self, progress: RunProgress) -> None:
        """Take a snapshot."""
        done = sum(trial.steps_done for trial in progress.trials)
        if done and (not self.steps or self.steps[-1][1] != done):
            self.steps.append((time.perf_counter(), done))
        if progress.phase != self._phase:
            self._phase = progress.phase
            self.lines.append((time.perf_counter(), progress.phase))

    def note(self, text: str) -> None:
        """Take a line."""
        self.lines.append((time.perf_counter(), text))


def main() -> None:
    """Measure, print, write; or be the process that trains."""
    options = _arguments()
    if options.run:
        _train(options.folder, options.run, checkpoint_seconds=options.checkpoint_seconds)
        return
    need_gpu(shape=options.shape)
    with tempfile.TemporaryDirectory(prefix="end-of-sweep-") as made:
        folder = options.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "task.yaml").exists():
            write_inputs(folder, shape=options.shape, num_layers=options.num_layers, num_rows=options.rows)
        names = ["measured"] if (folder / "caches").exists() else ["cold", "measured"]
        rows = [_measure(folder, name, options) for name in names]
    print_table(rows, columns=COLUMNS)
    last = rows[-1]
    headline = {f"{name}_{options.shape}": last[name] for name in ("to_best_s", "to_end_s", "longest_gap_s")}
    notes = {"rows": options.rows, "checkpoint_seconds": options.checkpoint_seconds}
    out = options.out or RESULTS / f"end_of_sweep_{options.shape}.json"
    write_result(out, question=QUESTION, headline=headline, rows=rows, notes=notes)
    print(headline)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="1b")
    parser.add_argument("--num-layers", type=int, default=None, help="fewer layers, to try it out")
    parser.add_argument("--rows", type=int, default=96, help="training rows, where the folder has no task yet")
    parser.add_argument("--folder", type=Path, default=None, help="keep model, rows, caches and runs here")
    parser.add_argument("--checkpoint-seconds", type=float, default=60.0, help="least time between checkpoints")
    parser.add_argument("--run", default="", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args()


def _measure(folder: Path, name: str, options: argparse.Namespace) -> dict[str, Any]:
    run = f"end-{name}-{time.time_ns()}"
    command = ["-m", "benchmarks.sweeps.end_of_sweep", "--folder", str(folder), "--run", run]
    command += ["--checkpoint-seconds", str(options.checkpoint_seconds)]
    wall, output = run_process(command, folder, caches=folder / "caches")
    row = {"what": name, "wall_s": wall, **json.loads(output.splitlines()[-1])}
    print({key: row[key] for key in COLUMNS}, *row["lines"], sep="\n", flush=True)
    return row


def _train(folder: Path, run: str, *, checkpoint_seconds: float) -> None:
    from cohort.engine.tune import RunOptions, tune
    from cohort.tasks.loading import load_task

    watcher, found, directory = Watcher(), list[float](), folder / run
    stop = threading.Event()

    def look() -> None:
        # what a user has is what counts, not what a phase says
        while not (found or stop.wait(0.02)):
            if (directory / "best" / "adapter_config.json").exists():
                found.append(time.perf_counter())

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    options = RunOptions(checkpoint_seconds=checkpoint_seconds)
    tune(load_task(folder / "task.yaml"), directory, watcher=watcher, options=options)
    end = time.perf_counter()
    stop.set()
    looking.join()
    first, last = watcher.steps[0][0], watcher.steps[-1][0]
    files = [path.stat().st_size for path in directory.glob("trials/*/best-*.safetensors")]
    row = {
        "steps_s": last - first,
        "longest_gap_s": max((later - earlier for (earlier, _), (later, _) in pairwise(watcher.steps)), default=0.0),
        "to_best_s": found[0] - last,
        "to_end_s": end - last,
        "checkpoints": len(files),
        "checkpoints_gb": sum(files) / 1e9,
        "lines": [f"{at - first:.1f} {line}" for at, line in watcher.lines if at >= first][-40:],
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
