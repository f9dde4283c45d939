"""Processes that a benchmark times from their start to their end: a sweep by the command line, and one PEFT script.

Run as a module this is the PEFT script: it loads the model, trains one adapter and saves it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama_shapes import rows_of_lengths
from benchmarks.measure import REPOSITORY
from cohort.runs.reader import RunReader
from cohort.tuning.early_exit.rule import UNDECIDED

__all__ = ["FAST_HOST_MS", "fast_host_seconds", "main", "run_process", "time_peft", "time_sweep"]

# hosts differ by two in PEFT's step at batch 1, and PEFT waits for its host: this is the step on a fast one
FAST_HOST_MS = {"1b": 96.0, "8b": 157.0}
# a PEFT script's first steps, which belong to its start
SETTLING_STEPS = 3


def time_peft(
    folder: Path, *, batch_size: int = 1, num_steps: int | None = None, loads_on_gpu: bool = False
) -> dict[str, Any]:
    """Return the seconds of a PEFT script on the task of ``folder``, and what its steps took of them.

    Args:
        folder: Holds ``task.yaml``.
        batch_size: Rows of a step.
        num_steps: None: an epoch. With fewer, ``wall_s`` is that of an epoch whose other steps are like them.
        loads_on_gpu: Whether weights are read straight to the GPU, or to host memory first as without an argument.

    Returns:
        ``wall_s``; ``start_s``, all of it but the steps; ``loading``, ``training``, ``saving``; ``step_ms``, without
        the first ones.
    """
    arguments = ["-m", "benchmarks.sweeps.timed_processes", str(folder), "--batch-size", str(batch_size)]
    arguments += [] if num_steps is None else ["--steps", str(num_steps)]
    arguments += ["--loads-on-gpu"] if loads_on_gpu else []
    # wait until an earlier process's writes are on the disk, here and before a sweep
    os.sync()
    wall, output = run_process(arguments, folder, caches=None)
    found = json.loads(output.splitlines()[-1])
    steps = found["step_ms"] / 1e3
    # what the first steps take more than others belongs to the start
    start = wall - found["measured_steps"] * steps
    missing = found["epoch_steps"] - found["measured_steps"]
    loaded = ", weights straight to the GPU" if loads_on_gpu else ""
    return {
        "what": f"PEFT, batch {batch_size}{loaded}",
        **found,
        "wall_s": wall + missing * steps,
        "training": found["training"] + missing * steps,
        "start_s": start,
    }


def fast_host_seconds(peft: dict[str, Any], *, shape: str, num_steps: int | None = None) -> float:
    """Return what a timed PEFT script would take with the steps of a fast host, of an epoch or ``num_steps``."""
    count = peft["epoch_steps"] if num_steps is None else num_steps
    return float(peft["start_s"] + count * FAST_HOST_MS[shape] / 1e3)


def time_sweep(folder: Path, *, name: str, caches: Path) -> dict[str, Any]:
    """Return the seconds of ``cohort tune`` on the task of ``folder``, by phase, and what it trained.

    Args:
        folder: Holds ``task.yaml``; gets the run, named ``name``.
        name: Of the run.
        caches: Where Cohort, Triton and CUDA keep what they measured and compiled.
    """
    run = folder / name
    arguments = ["-m", "cohort", "tune", str(folder / "task.yaml"), "-o", str(run), "--json"]
    os.sync()
    lines, began = list[tuple[float, str]](), time.time()
    wall, output = run_process(arguments, folder, caches=caches, lines=lines)
    found = json.loads(output[output.index("{") :])
    compute, phases = found["compute"], _phases(lines, wall=wall)
    late = _kernels_compiled_late(caches / "triton", lines, began=began)
    print(
        name, {what: round(seconds, 1) for what, seconds in phases.items()}, "compiled beside passes:", late, flush=True
    )
    return {
        "phases": phases,
        "compiled_beside_passes": late,
        "what": f"sweep, {name}",
        "wall_s": wall,
        # the last file of the directory that appears under this name
        "to_best_s": (run / "best").stat().st_mtime - began,
        "training": found["seconds"],
        "tokens": compute["trained_tokens"],
        "evaluated": compute["eval_tokens"],
        "evaluated_share": compute["eval_tokens"] / (3 * compute["trained_tokens"]),
        "of_grid": compute["share_of_full_grid"],
        **_outcomes(run),
        "numerics": next((line.split("numerics: ")[1] for _, line in lines if "numerics: " in line), ""),
    }


def _outcomes(run: Path) -> dict[str, Any]:
    """Return how many trials ended for which reason, and of how many the comparisons decided nothing."""
    with RunReader.open(run / "run.db") as reader:
        ended = Counter(trial.reason or str(trial.status) for trial in reader.trials())
        undecided = [entry.decision.step for entry in reader.log.decisions() if entry.decision.reason == UNDECIDED]
        rows = reader.facts().inputs.evaluation_rows
    return {"ended": dict(ended), "undecided": len(undecided), "evaluation_rows": rows}


def _phases(lines: list[tuple[float, str]], *, wall: float) -> dict[str, float]:
    """Return the seconds of each phase that the command names, and those before the first and behind the last."""
    starts = [("start-up and imports", 0.0)]
    for seconds, line in lines:
        # "[12s] training | 3 running": the phase is what comes before the first bar
        found = re.match(r"\[[^]]*\] ([^|]*?)(?: \||$)", line)
        if found and found[1] != starts[-1][0]:
            starts.append((found[1], seconds))
    ends = [*(seconds for _, seconds in starts[1:]), wall]
    phases: dict[str, float] = {}
    for (what, start), end in zip(starts, ends, strict=True):
        what = "loading" if what.startswith("loading") else what
        phases[what] = phases.get(what, 0.0) + end - start
    return phases


def _kernels_compiled_late(cache: Path, lines: list[tuple[float, str]], *, began: float) -> list[str]:
    """Return the kernels that were compiled once passes ran: by workers beside them, or by a pass that needed one."""
    launched = next((seconds for seconds, line in lines if "measuring the" in line), float("inf"))
    return sorted(path.stem for path in cache.glob("*/*.cubin") if path.stat().st_mtime > began + launched + 0.5)


def run_process(
    arguments: list[str], folder: Path, *, caches: Path | None, lines: list[tuple[float, str]] | None = None
) -> tuple[float, str]:
    """Return the wall seconds of a Python process, from its start to its end, and what it printed.

    Args:
        arguments: Behind Python's name.
        folder: Where its log goes.
        caches: Where Cohort, Triton and CUDA keep what they measured and compiled; None: where they usually do.
        lines: Takes the lines of its log with the seconds at which they came.
    """
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}:{os.environ.get('PYTHONPATH', '')}"}
    environment["TOKENIZERS_PARALLELISM"] = "false"
    if caches is not None:
        environment |= {"COHORT_CACHE_DIR": str(caches), "TRITON_CACHE_DIR": str(caches / "triton")}
        environment["CUDA_CACHE_PATH"] = str(caches / "cuda")
    lines = [] if lines is None else lines
    began = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        log = process.stderr

        def stamp() -> None:
            lines.extend((time.perf_counter() - began, line.rstrip("\n")) for line in log)

        stamping = threading.Thread(target=stamp)
        stamping.start()
        output = process.stdout.read()
        stamping.join()
        process.wait()
        wall = time.perf_counter() - began
    logged = "".join(f"{seconds:7.2f} {line}\n" for seconds, line in lines)
    (folder / "last.log").write_text(logged, encoding="utf-8")
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{logged[-3000:]}")
    return wall, output


def main() -> None:
    """Fine-tune one adapter as a plain script does, and print where its time went."""
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds task.yaml")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--steps", type=int, default=None, help="instead of an epoch")
    parser.add_argument("--loads-on-gpu", action="store_true", help="weights straight to the GPU")
    options = parser.parse_args()
    from transformers import AutoModelForCausalLM

    from benchmarks.steps.step_timing import peft_loop

    folder, device = options.folder, "cuda" if torch.cuda.is_available() else "cpu"
    model_directory = folder / json.loads((folder / "task.yaml").read_text(encoding="utf-8"))["model_name_or_path"]
    where = {"device_map": device} if options.loads_on_gpu else {}
    model = AutoModelForCausalLM.from_pretrained(
        model_directory, dtype=torch.bfloat16, attn_implementation="sdpa", **where
    )
    lines = [json.loads(line) for line in (folder / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    pairs = [(len(line["prompt"].split()), len(line["completion"].split()) + 1) for line in lines]
    rows = rows_of_lengths(pairs, vocab_size=model.config.vocab_size)
    step, adapted = peft_loop(model, rows, batch_size=options.batch_size, device=device)
    ready = time.perf_counter()
    epoch_steps = -(-len(rows) // options.batch_size)
    num_steps = min(epoch_steps, options.steps or epoch_steps)
    settled = ready
    for index in range(num_steps):
        if index == min(SETTLING_STEPS, num_steps - 1):
            # the first ones set up libraries
            _wait(device)
            settled = time.perf_counter()
        step()
    _wait(device)
    trained = time.perf_counter()
    num_settled = num_steps - min(SETTLING_STEPS, num_steps - 1)
    adapted.save_pretrained(folder / f"peft-{options.batch_size}")
    found = {
        "loading": ready - began,
        "training": trained - ready,
        "saving": time.perf_counter() - trained,
        "epoch_steps": epoch_steps,
        "measured_steps": num_steps,
        "step_ms": (trained - settled) / num_settled * 1e3,
    }
    print(json.dumps(found))


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
