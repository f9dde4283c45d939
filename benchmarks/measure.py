"""How a benchmark measures and records: medians of CUDA-graph replays or eager calls, one JSON file per question.

A result file has ``question``, ``date``, ``command``, ``cohort`` (its version and commit), ``machine``, ``versions``,
``headline`` {name: number} and ``rows``. ``benchmarks.origins`` refuses files without them.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import itertools
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.origins import origin, without_machine_paths
from cohort.machine.machine import cpu_name

__all__ = [
    "REPOSITORY",
    "RESULTS",
    "capture",
    "copy_ceiling",
    "interleaved",
    "machine",
    "matrix_ceiling",
    "median_eager",
    "median_replay",
    "milliseconds",
    "print_table",
    "started_as",
    "write_result",
]

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
PACKAGES = ("torch", "triton", "transformers", "peft", "trl", "bitsandbytes", "numpy", "scipy", "ortools")


def capture(work: Callable[[], object], *, warmups: int = 3) -> torch.cuda.CUDAGraph:
    """Return a graph of one call of ``work``, warmed up on a side stream first."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmups):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def median_replay(work: Callable[[], object], *, budget_seconds: float = 0.15, least: int = 10) -> float:
    """Return the median milliseconds of one graph replay of ``work``.

    Replays stand back to back with an event between them, so the host's launch time is not in the figure.
    """
    graph = capture(work)
    return _median_events(graph.replay, budget_seconds=budget_seconds, least=least)


def median_eager(work: Callable[[], object], *, budget_seconds: float = 0.3, least: int = 10) -> float:
    """Return the median milliseconds of one synchronised call of ``work``, the host's launch time in it."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    times: list[float] = []
    end = time.perf_counter() + budget_seconds
    while len(times) < least or (time.perf_counter() < end and len(times) < 1000):
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def interleaved(
    works: Mapping[str, Callable[[], object]], *, baseline: str, rounds: int = 5, block_seconds: float = 0.04
) -> dict[str, tuple[float, float]]:
    """Return the median milliseconds of one graph replay of each work and of its ratio to ``baseline``'s.

    Works take turns in blocks of ``block_seconds``, the first half of a block untimed: the GPU's power limit moves
    every time by several percent, so each work is timed at the clocks that it settles at by itself, and only blocks of
    one round are compared.
    """
    graphs = {name: capture(work) for name, work in works.items()}
    repeats = {name: _repeats(graph, block_seconds / 2) for name, graph in graphs.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(rounds):
        for name, graph in graphs.items():
            for _ in range(repeats[name]):
                graph.replay()
            start.record()
            for _ in range(repeats[name]):
                graph.replay()
            stop.record()
            stop.synchronize()
            times[name].append(start.elapsed_time(stop) / repeats[name])
    return {
        name: (statistics.median(own), statistics.median(a / b for a, b in zip(own, times[baseline], strict=True)))
        for name, own in times.items()
    }


def milliseconds(works: Mapping[str, Callable[[], object]], *, baseline: str) -> dict[str, float]:
    """Return the milliseconds of each work, interleaved; without a GPU of one run each, which means nothing."""
    if torch.cuda.is_available():
        times = interleaved(works, baseline=baseline, rounds=3, block_seconds=0.02)
        return {name: ms for name, (ms, _) in times.items()}
    found = {}
    for name, work in works.items():
        begun = time.perf_counter()
        work()
        found[name] = (time.perf_counter() - begun) * 1e3
    return found


def _repeats(graph: torch.cuda.CUDAGraph, seconds: float) -> int:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    start.record()
    for _ in range(3):
        graph.replay()
    stop.record()
    stop.synchronize()
    return int(max(3, min(2000, seconds * 1e3 / max(start.elapsed_time(stop) / 3, 1e-3))))


def _median_events(work: Callable[[], object], *, budget_seconds: float, least: int) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    work()
    start.record()
    for _ in range(3):
        work()
    stop.record()
    stop.synchronize()
    repeats = int(max(least, min(300, budget_seconds * 1e3 / max(start.elapsed_time(stop) / 3, 1e-3))))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        work()
        event.record()
    torch.cuda.synchronize()
    return float(statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(events)))


def copy_ceiling() -> float:
    """Return TB/s of a kernel that reads and writes far more than any cache, bytes read plus written.

    Not ``copy_``: in a graph that becomes a copy node, which runs elsewhere and slower.
    """
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / median_replay(lambda: torch.add(source, 1.0, out=target)) / 1e9


def matrix_ceiling() -> float:
    """Return TFLOP/s of an 8192^3 bf16 product of random values."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * 8192**3 / median_replay(lambda: torch.mm(a, b, out=out)) / 1e9


def machine() -> dict[str, str]:
    """Return what the numbers were measured on."""
    found = {
        "cpu": cpu_name(),
        # sums differ in their last bits between CPUs with and without AVX-512
        "cpu_instructions": torch.backends.cpu.get_cpu_capability(),
        "processor": platform.machine(),
        "python": platform.python_version(),
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = properties.name
        found["gpu_memory_gib"] = f"{properties.total_memory / 2**30:.0f}"
        found["cuda"] = str(torch.version.cuda)
    else:
        found["threads"] = str(torch.get_num_threads())
    return found


def versions() -> dict[str, str]:
    """Return the versions of the packages that decide speed, where installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def started_as() -> list[str]:
    """Return the arguments that the interpreter was started with: ``-m``, the module and its arguments."""
    spec = sys.modules["__main__"].__spec__
    return [*(["-m", spec.name] if spec else sys.argv[:1]), *sys.argv[1:]]


def write_result(
    path: Path,
    *,
    question: str,
    headline: Mapping[str, float],
    rows: Sequence[Mapping[str, Any]],
    notes: Mapping[str, Any] | None = None,
) -> None:
    """Write one result file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "question": question,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "python " + without_machine_paths(started_as()),
        "cohort": origin(),
        "machine": machine(),
        "versions": versions(),
        "headline": dict(headline),
        "rows": [dict(row) for row in rows],
    }
    if notes:
        result["notes"] = dict(notes)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def print_table(rows: Sequence[Mapping[str, Any]], *, columns: Sequence[str]) -> None:
    """Print ``rows`` as a table of ``columns``; floats with three digits."""
    cells = [[_cell(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(column), *(len(line[i]) for line in cells), 1) for i, column in enumerate(columns)]
    print("  ".join(column.rjust(width) for column, width in zip(columns, widths, strict=True)))
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)), flush=True)


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
