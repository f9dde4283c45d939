"""What does a user pay for a sweep of 60 trials, from the command to the last file, in runs of one PEFT script?

The wall time of ``cohort tune`` by the command line over that of a plain PEFT script from its start to its saved
adapter. Both have imports, loading and saving in them. A PEFT run's steps are counted at a fast host's time for one
(``FAST_HOST_MS``), as hosts differ by two in it; its start is measured here, with weights read straight to the GPU
where that is faster. Early exit is the product's own, evaluations are as by default.

Each sweep runs twice: with empty caches (first), and with what the first has left on disk. Sizes of ``--only-again``
run once, with the caches of the first of ``--rows``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.llama_shapes import SHAPES, hf_config
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.sweeps.sweep_inputs import write_model, write_task
from benchmarks.sweeps.timed_processes import FAST_HOST_MS, fast_host_seconds, time_peft, time_sweep

__all__ = ["main"]

QUESTION = "What does a sweep of 60 trials cost a user, from command to last file, in runs of one PEFT script?"
COLUMNS = ("what", "format", "rows", "wall_s", "to_best_s", "start_s", "step_ms", "tokens", "evaluated", "of_grid")
USUAL_ROWS = 320


def main() -> None:
    """Measure, print, write after each sweep, so that a process that is killed leaves what it has measured."""
    options = _arguments()
    need_gpu(shape=options.shape)
    with tempfile.TemporaryDirectory(prefix="all-in-price-") as made:
        folder = options.folder or Path(made)
        if not (folder / "model").exists():
            write_model(folder / "model", hf_config(options.shape, num_layers=options.num_layers))
        found = Prices(options, folder=folder)
        found.time_peft()
        for quantization in options.formats:
            for num_rows in options.rows:
                found.time_first_and_again(num_rows, quantization=quantization)
            for num_rows in options.only_again:
                found.time_again(num_rows, quantization=quantization)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--num-layers", type=int, default=None, help="fewer layers, to try it out")
    parser.add_argument("--rows", type=int, nargs="+", default=[USUAL_ROWS, 96], help="training rows, each twice")
    parser.add_argument("--only-again", type=int, nargs="*", default=[], metavar="ROWS", help="training rows, once")
    parser.add_argument("--formats", nargs="+", default=["none"], help="of the base model: none, fp8")
    parser.add_argument("--peft-steps", type=int, default=24, help="measured steps of the PEFT script")
    parser.add_argument("--folder", type=Path, default=None, help="keep model, rows, caches and runs here")
    parser.add_argument("--keep-runs", action="store_true", help="do not remove a run once it is measured")
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args()


class Prices:
    """Times processes one after the other, and writes what is known so far."""

    def __init__(self, options: argparse.Namespace, *, folder: Path) -> None:
        """Measure nothing yet; ``folder`` holds the model, and gets a folder for each task."""
        self._options, self._folder = options, folder
        self._shape: str = options.shape
        self._rows: list[dict[str, Any]] = []
        self._headline: dict[str, float] = {}
        self._peft: dict[str, Any] = {}

    def time_peft(self) -> None:
        """Time a PEFT script from start to saved adapter, loading in two ways; the faster one counts."""
        task = self._task(USUAL_ROWS, "none")
        for loads_on_gpu in (False, True):
            timed = time_peft(task, num_steps=self._options.peft_steps, loads_on_gpu=loads_on_gpu)
            self._rows.append({**timed, "rows": USUAL_ROWS, "format": "none"})
        self._peft = min(self._rows, key=lambda row: float(row["start_s"]))
        self._headline[f"peft_start_s_{self._shape}"] = self._peft["start_s"]
        self._headline[f"peft_step_ms_{self._shape}"] = self._peft["step_ms"]
        self._write()

    def time_first_and_again(self, num_rows: int, *, quantization: str) -> None:
        """Time a sweep with empty caches, and again."""
        caches = self._task(num_rows, quantization) / "caches"
        for again in (False, True):
            self._time(num_rows, quantization=quantization, again=again, caches=caches)

    def time_again(self, num_rows: int, *, quantization: str) -> None:
        """Time a sweep with the caches of another size."""
        caches = self._task(self._options.rows[0], quantization) / "caches"
        self._time(num_rows, quantization=quantization, again=True, caches=caches)

    def _time(self, num_rows: int, *, quantization: str, again: bool, caches: Path) -> None:
        folder, name = self._task(num_rows, quantization), "again" if again else "first"
        row = time_sweep(folder, name=name, caches=caches)
        if not self._options.keep_runs:
            shutil.rmtree(folder / name)
        # the next one shares the disk with what this one has still to bring there
        os.sync()
        self._rows.append({**row, "rows": num_rows, "format": quantization})
        key = "_".join(
            part
            for part in (
                f"sweep_price_{self._shape}_all_in",
                "" if quantization == "none" else quantization,
                "" if num_rows == USUAL_ROWS else str(num_rows),
                "" if again else "first",
            )
            if part
        )
        if self._shape in FAST_HOST_MS:
            fast = fast_host_seconds(self._peft, shape=self._shape, num_steps=num_rows)
            self._headline[key] = row["wall_s"] / fast
        own = self._peft["start_s"] + num_rows * self._peft["step_ms"] / 1e3
        self._headline[f"{key}_own_host"] = row["wall_s"] / own
        self._write()

    def _task(self, num_rows: int, quantization: str) -> Path:
        folder = self._folder / f"{quantization}-{num_rows}"
        if not (folder / "task.yaml").exists():
            write_task(
                folder, model=Path("..") / "model", shape=self._shape, num_rows=num_rows, quantization=quantization
            )
        return folder

    def _write(self) -> None:
        print_table(self._rows, columns=COLUMNS)
        notes = {"fast_host_step_ms": FAST_HOST_MS.get(self._shape), "layers": self._options.num_layers or "all"}
        out = self._options.out or RESULTS / f"all_in_price_{self._shape}.json"
        write_result(out, question=QUESTION, headline=self._headline, rows=self._rows, notes=notes)
        print({key: round(value, 3) for key, value in self._headline.items()}, flush=True)


if __name__ == "__main__":
    main()
