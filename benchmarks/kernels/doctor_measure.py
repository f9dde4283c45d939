"""How long does ``cohort doctor --measure`` take on a GPU without a table of its own, and what does it gain?

The command itself, in a process with caches of its own: a table of tiles for every shape of linear of a model, and what
a step in exact numerics costs over a fast one. With ``--warm``, once more with the kernels that the first has compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.llama_shapes import SHAPES, hf_config
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu

QUESTION = "How long does `cohort doctor --measure` take on a GPU without a table, and what does it gain?"


def main() -> None:
    """Run the command, print what it found, write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--warm", action="store_true", help="also with warm caches of kernels")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    need_gpu()
    out = options.out or RESULTS / f"doctor_measure_{options.shape}.json"
    headline: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="doctor-measure-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(hf_config(options.shape)))
        for name in ("cold", "warm") if options.warm else ("cold",):
            seconds, report = _measure(Path(folder), name=name)
            headline[f"doctor_measure_seconds_{name}"] = seconds
            rows = [_row(linear) for linear in report["linears"]]
            rows += [
                {"step_tokens": step["tokens"], "exact_over_fast": step["ratio"]} for step in report["exact_steps"]
            ]
            if name == "cold":
                headline |= _gains(report)
            write_result(out, question=QUESTION, headline=headline, rows=rows, notes={"model": options.shape})
    print_table([_row(linear) for linear in report["linears"]], columns=["linear", "default_us", "best_us", "choice"])
    print({key: round(value, 3) for key, value in headline.items()}, flush=True)


def _measure(folder: Path, *, name: str) -> tuple[float, dict[str, Any]]:
    """Return the seconds of the command and its report."""
    caches = {"TRITON_CACHE_DIR": str(folder / "triton"), "COHORT_CACHE_DIR": str(folder / name)}
    command = [sys.executable, "-m", "cohort", "doctor", "--measure", str(folder), "--json"]
    began = time.perf_counter()
    done = subprocess.run(command, env={**os.environ, **caches}, stdout=subprocess.PIPE, text=True, check=True)
    return time.perf_counter() - began, json.loads(done.stdout)


def _row(linear: dict[str, Any]) -> dict[str, Any]:
    shape = f"{linear['in_features']} -> {'+'.join(map(str, linear['out_widths']))}"
    return {"linear": shape, **{key: linear[key] for key in ("default_us", "best_us", "now_us", "choice", "refused")}}


def _gains(report: dict[str, Any]) -> dict[str, float]:
    sums = {key: sum(linear[key] for linear in report["linears"]) for key in ("default_us", "best_us")}
    found = {"measured_over_default": sums["best_us"] / sums["default_us"], "linears_measured": len(report["linears"])}
    ratios = [step["ratio"] for step in report["exact_steps"]]
    return found | ({"exact_over_fast_at_most": max(ratios)} if ratios else {})


if __name__ == "__main__":
    main()
