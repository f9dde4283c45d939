"""How long does ``cohort tune`` take from its start to its last file, against one PEFT run over the same rows?

The command line itself on a model directory: 60 trials (5 learning rates, 3 ranks, 4 batch sizes), one epoch, early
exit with default settings. Every measured thing is a process of its own, imports and loading included, and all run in
turn on one machine: PEFT at batch 1 and 8, the sweep with empty caches (cold), and again with those it left (warm). A
sweep's row has the seconds of its phases, by the lines of its log, and the kernels that were compiled once
passes ran: by workers, beside them, in a cold one.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.llama_shapes import SHAPES
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.sweeps.sweep_inputs import write_inputs
from benchmarks.sweeps.timed_processes import FAST_HOST_MS, fast_host_seconds, time_peft, time_sweep

__all__ = ["main"]

QUESTION = "How long does a whole sweep take by the command line, against one PEFT run over the same rows?"


def main() -> None:
    """Measure, print, write."""
    options = _arguments()
    need_gpu(shape=options.shape)
    with tempfile.TemporaryDirectory(prefix="whole-sweep-") as made:
        folder = options.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        pairs = write_inputs(folder, shape=options.shape, num_layers=options.num_layers, num_rows=options.rows)
        rows = [time_peft(folder, batch_size=size, num_steps=options.peft_steps) for size in options.peft]
        for name in ("cold", "warm"):
            rows.append(time_sweep(folder, name=name, caches=folder / "caches"))
            _print(rows)
    headline = _headline(rows, shape=options.shape)
    notes = {"rows": len(pairs), "tokens": sum(map(sum, pairs)), "fast_host_step_ms": FAST_HOST_MS.get(options.shape)}
    out = options.out or RESULTS / f"whole_sweep_{options.shape}.json"
    write_result(out, question=QUESTION, headline=headline, rows=rows, notes=notes)
    print({key: round(value, 3) for key, value in headline.items()})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="1b")
    parser.add_argument("--num-layers", type=int, default=None, help="fewer layers, to try it out")
    parser.add_argument("--rows", type=int, default=320, help="training rows")
    parser.add_argument("--peft", type=int, nargs="*", default=[1, 8], metavar="BATCH_SIZE", help="PEFT runs to time")
    parser.add_argument("--peft-steps", type=int, default=None, help="measured steps of these; the others are as long")
    parser.add_argument("--folder", type=Path, default=None, help="keep model, rows and runs here")
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args()


def _headline(rows: list[dict[str, Any]], *, shape: str) -> dict[str, float]:
    """Return the sweep's wall time over each PEFT process's, and over its training steps alone."""
    by_name = {row["what"]: row for row in rows}
    headline = {}
    for name in ("cold", "warm"):
        wall = by_name[f"sweep, {name}"]["wall_s"]
        for batch_size, suffix in ((1, ""), (8, "_vs_batch8")):
            if (peft := by_name.get(f"PEFT, batch {batch_size}")) is not None:
                headline[f"whole_sweep_{shape}_{name}{suffix}"] = wall / peft["wall_s"]
                headline[f"whole_sweep_{shape}_{name}{suffix}_over_steps_alone"] = wall / peft["training"]
        if (alone := by_name.get("PEFT, batch 1")) is not None and shape in FAST_HOST_MS:
            headline[f"whole_sweep_{shape}_{name}_against_fast_host"] = wall / fast_host_seconds(alone, shape=shape)
    return headline


def _print(rows: list[dict[str, Any]]) -> None:
    print_table(rows, columns=("what", "wall_s", "loading", "training", "step_ms", "tokens", "evaluated", "of_grid"))


if __name__ == "__main__":
    main()
