"""What does a user pay for a sweep of 60 trials, from the command to the last file, in runs of one PEFT script?

The wall time of ``cohort tune`` by the command line over that of a plain PEFT script from its start to its saved
adapter. Both have imports, loading and saving in them. A PEFT run's steps are counted at a fast host's time for one
(``FAST_HOST_MS``), as hosts differ by two in it; its start is measured here, with the model loaded as without further
arguments, and again with weights read straight to the GPU (``_gpu_load``). Early exit is the product's own,
evaluations are as by default.

A run is FORMAT:ROWS:first, with empty caches, or FORMAT:ROWS:again, with those that the last first run of its format
has left on disk.
"""

from __future__ import annotations

import argparse
import json
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
RUNS = ("none:320:first", "none:320:again", "none:96:first", "none:96:again")


def main() -> None:
    """Measure, print, write after each sweep, so that a process that is killed leaves what it has measured."""
    options = _arguments()
    need_gpu(shape=options.shape)
    with tempfile.TemporaryDirectory(prefix="all-in-price-") as made:
        folder = options.folder or Path(made)
        if not (folder / "model").exists():
            write_model(folder / "model", hf_config(options.shape, num_layers=options.num_layers))
        prices = Prices(options, folder=folder)
        if options.go_on is None:
            prices.time_peft()
        else:
            prices.take_in(json.loads(options.go_on.read_text(encoding="utf-8")))
        for quantization, num_rows, which in options.runs:
            prices.time_sweep(num_rows, quantization=quantization, is_first=which == "first")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--num-layers", type=int, default=None, help="fewer layers, to try it out")
    parser.add_argument("--runs", type=_run, nargs="+", default=[_run(run) for run in RUNS], help="FORMAT:ROWS:WHICH")
    parser.add_argument("--peft-steps", type=int, default=24, help="measured steps of the PEFT script")
    parser.add_argument(
        "--peft-loads",
        type=lambda name: {"host": "", "gpu": "_gpu_load"}[name],
        nargs="+",
        default=["", "_gpu_load"],
        help="where the PEFT script reads weights to first: host, gpu or both",
    )
    parser.add_argument("--folder", type=Path, default=None, help="keep model, rows and caches here")
    parser.add_argument("--go-on", type=Path, default=None, help="a result of this machine and folder to add to")
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args()


def _run(text: str) -> tuple[str, int, str]:
    quantization, num_rows, which = text.split(":")
    if which not in ("first", "again"):
        raise ValueError(text)
    return quantization, int(num_rows), which


class Prices:
    """Times processes one after the other, and writes what is known so far."""

    def __init__(self, options: argparse.Namespace, *, folder: Path) -> None:
        """Measure nothing yet; ``folder`` holds the model, and gets a folder for each task."""
        self._options, self._folder = options, folder
        self._shape: str = options.shape
        self._rows: list[dict[str, Any]] = []
        self._headline: dict[str, float] = {}
        # by what stands behind the names of the prices against it
        self._peft: dict[str, dict[str, Any]] = {}
        # of the last first run, by format
        self._caches: dict[str, Path] = {}

    def time_peft(self) -> None:
        """Time a PEFT script from start to saved adapter, loading in two ways."""
        task = self._task(USUAL_ROWS, "none")
        for suffix in self._options.peft_loads:
            timed = time_peft(task, num_steps=self._options.peft_steps, loads_on_gpu=bool(suffix))
            self._rows.append({**timed, "rows": USUAL_ROWS, "format": "none"})
            self._peft[suffix] = timed
            self._headline[f"peft_start_s_{self._shape}{suffix}"] = timed["start_s"]
            self._headline[f"peft_step_ms_{self._shape}{suffix}"] = timed["step_ms"]
        self._write()

    def take_in(self, result: dict[str, Any]) -> None:
        """Go on from what an earlier process has measured on this machine."""
        self._rows, self._headline = result["rows"], result["headline"]
        timed = [row for row in self._rows if row["what"].startswith("PEFT")]
        self._peft = {"_gpu_load" if "GPU" in row["what"] else "": row for row in timed}

    def time_sweep(self, num_rows: int, *, quantization: str, is_first: bool) -> None:
        """Time a sweep, with empty caches or again."""
        folder, name = self._task(num_rows, quantization), "first" if is_first else "again"
        if is_first:
            self._caches[quantization] = folder / "caches"
        usual = self._folder / f"{quantization}-{USUAL_ROWS}" / "caches"
        row = time_sweep(folder, name=name, caches=self._caches.get(quantization, usual))
        shutil.rmtree(folder / name)
        self._rows.append({**row, "rows": num_rows, "format": quantization})
        key = f"sweep_price_{self._shape}_all_in"
        key += "" if quantization == "none" else f"_{quantization}"
        key += "" if num_rows == USUAL_ROWS else f"_{num_rows}"
        key += "_first" if is_first else ""
        for suffix, peft in self._peft.items():
            own = peft["start_s"] + num_rows * peft["step_ms"] / 1e3
            self._headline[f"{key}{suffix}_own_host"] = row["wall_s"] / own
            if self._shape in FAST_HOST_MS:
                fast = fast_host_seconds(peft, shape=self._shape, num_steps=num_rows)
                self._headline[f"{key}{suffix}"] = row["wall_s"] / fast
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
        # what tables show of many figures are the first ones
        order = sorted(self._headline, key=lambda name: (name.startswith("peft"), "_gpu_load" in name, len(name)))
        headline = {name: self._headline[name] for name in order}
        write_result(out, question=QUESTION, headline=headline, rows=self._rows, notes=notes)
        print({key: round(value, 3) for key, value in headline.items()}, flush=True)


if __name__ == "__main__":
    main()
