"""How long does the GPU do nothing inside a sweep?

The command line's own sweep (the task of ``whole_sweep``) in this process, while a second thread switches CUPTI on for
three seconds of every six and counts the last two: kernels and copies on all streams, also those that a graph replays.
A window's idle share is the time in which none of them ran; ``kinds`` has the seconds of each kind of kernel. CUPTI
does not see what was launched before it was switched on: counted from the first moment, a pass under way would be idle
time.
``--stacks FILE`` also samples what the process's Python threads do meanwhile. Run
``whole_sweep --folder F`` before and give its folder here, and the caches are warm.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType, _disable_profiler

from benchmarks.llama_shapes import SHAPES
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.kernel_kinds import kind_of
from benchmarks.sweeps.stack_samples import StackSamples
from benchmarks.sweeps.sweep_inputs import write_inputs

__all__ = ["idle_seconds", "main", "training_windows"]

QUESTION = "Which share of a sweep's time does the GPU run neither a kernel nor a copy?"
# a gap that a replayed graph's launch explains is below this
LONG_GAP_SECONDS = 1e-3
# what a sweep launches ahead has ended by then: passes of up to half a second, one behind the other
SETTLING_SECONDS = 1.0


def idle_seconds(busy: Iterable[tuple[float, float]], *, begin: float, end: float) -> tuple[float, list[float]]:
    """Return the seconds of [begin, end] outside all (start, stop) in ``busy``, and each gap."""
    gaps = []
    reached = begin
    for start, stop in sorted(busy):
        if start > reached:
            gaps.append(min(start, end) - reached)
        reached = max(reached, stop)
        if reached >= end:
            break
    if reached < end:
        gaps.append(end - reached)
    return sum(gaps), gaps


class Windows(threading.Thread):
    """Profiles the GPU for ``length`` of every ``period`` seconds, once what was launched before has ended."""

    def __init__(self, *, length: float, period: float) -> None:
        super().__init__(daemon=True)
        self._length = length
        self._period = period
        self._ended = threading.Event()
        self._began = time.perf_counter()
        self._taken: list[tuple[float, int, int, Any]] = []

    def run(self) -> None:
        while not self._ended.wait(self._period - self._length - SETTLING_SECONDS):
            profiler = torch.autograd.profiler.profile(use_cpu=False, use_device="cuda", use_kineto=True)
            profiler._prepare_trace()
            profiler._start_trace()
            time.sleep(SETTLING_SECONDS)
            at, begin = time.perf_counter() - self._began, time.time_ns()
            time.sleep(self._length)
            end = time.time_ns()
            # not the profiler's own end: it builds a Python object for every event while the sweep waits for the lock
            self._taken.append((at, begin, end, _disable_profiler()))

    def end(self) -> None:
        """Stop; a window that is open is completed."""
        self._ended.set()
        self.join()

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each window."""
        found = []
        for at, begin, end, results in self._taken:
            events = [event for event in results.events() if event.device_type() == DeviceType.CUDA]
            spans = [(event.start_ns() / 1e9, (event.start_ns() + event.duration_ns()) / 1e9) for event in events]
            busy = [(start, stop) for start, stop in spans if stop > begin / 1e9]
            idle, gaps = idle_seconds(busy, begin=begin / 1e9, end=end / 1e9)
            found.append(
                {
                    "at_s": at,
                    "seconds": (end - begin) / 1e9,
                    "idle_share": idle / ((end - begin) / 1e9),
                    "in_long_gaps": sum(gap for gap in gaps if gap > LONG_GAP_SECONDS) / ((end - begin) / 1e9),
                    "longest_gap_s": max(gaps, default=0.0),
                    "kernels": len(busy),
                    "kinds": _seconds_by_kind(event for event in events if event.start_ns() >= begin),
                }
            )
        return found


def _seconds_by_kind(events: Iterable[Any]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for event in events:
        found[kind_of(event.name())] += event.duration_ns() / 1e9
    return dict(sorted(found.items(), key=lambda entry: -entry[1]))


def training_windows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the windows from the first one in which adapters were updated to the last."""
    places = [place for place, row in enumerate(rows) if row["kinds"].get("optimizer")]
    return [*rows[places[0] : places[-1] + 1]] if places else []


def main() -> None:
    """Run a sweep, print its windows, write them."""
    options = _arguments()
    need_gpu(shape=options.shape)
    with tempfile.TemporaryDirectory(prefix="idle-share-") as made:
        folder = options.folder or Path(made)
        if not (folder / "task.yaml").exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_inputs(folder, shape=options.shape, num_layers=options.num_layers, num_rows=options.rows)
        caches = folder / "caches"
        os.environ |= {"COHORT_CACHE_DIR": str(caches), "TRITON_CACHE_DIR": str(caches / "triton")}
        os.environ["CUDA_CACHE_PATH"] = str(caches / "cuda")
        windows = Windows(length=options.window, period=options.period)
        samples = None if options.stacks is None else StackSamples(options.stacks)
        began, clock = time.perf_counter(), time.time()
        windows.start()
        if samples is not None:
            samples.start()
        _tune(folder)
        wall = time.perf_counter() - began
        # the last file of the directory that appears under this name
        best_seconds = (_run_of(folder) / "best").stat().st_mtime - clock
        if samples is not None:
            samples.end()
        windows.end()
    rows = windows.rows()
    print_table(rows, columns=("at_s", "idle_share", "in_long_gaps", "longest_gap_s", "kernels"))
    working = [row for row in rows if row["kernels"]]
    # the first and the last hold little else than the start and the end; the start of a first run may fill another one
    inner = working[1:-1] or working
    late = [row for row in inner if row["at_s"] >= 60]
    which = f"{options.shape}{options.suffix}"
    headline = {
        f"idle_share_{which}": _mean(inner),
        f"idle_share_{which}_training": _mean(training_windows(rows)),
        f"idle_share_{which}_after_a_minute": _mean(late),
        f"seconds_to_best_adapter_{which}": best_seconds,
    }
    notes = {"wall_s": wall, "window_s": options.window, "period_s": options.period, "rows": options.rows}
    out = options.out or RESULTS / f"idle_share_{which}.json"
    write_result(out, question=QUESTION, headline={k: v for k, v in headline.items() if v >= 0}, rows=rows, notes=notes)
    print(headline, notes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="1b")
    parser.add_argument("--num-layers", type=int, default=None, help="fewer layers, to try it out")
    parser.add_argument("--rows", type=int, default=320, help="training rows, where the folder has no task yet")
    parser.add_argument("--folder", type=Path, default=None, help="whole_sweep's: its model, rows and caches")
    parser.add_argument("--suffix", default="", help="behind the names of its figures, such as _again for a second run")
    parser.add_argument("--window", type=float, default=2.0, help="seconds of a window")
    parser.add_argument("--period", type=float, default=6.0, help="seconds from a window to the next")
    parser.add_argument("--stacks", type=Path, default=None, help="also write where the process's threads were")
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args()


def _tune(folder: Path) -> None:
    from cohort.cli.main import main as cohort

    given = sys.argv
    sys.argv = ["cohort", "tune", str(folder / "task.yaml"), "-o", str(_run_of(folder)), "--json"]
    try:
        cohort()
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        sys.argv = given


def _run_of(folder: Path) -> Path:
    return folder / f"idle-{os.getpid()}"


def _mean(rows: list[dict[str, float]]) -> float:
    """Return the mean idle share weighted by the windows' seconds; -1 where there is none."""
    seconds = sum(row["seconds"] for row in rows)
    return sum(row["idle_share"] * row["seconds"] for row in rows) / seconds if rows else -1.0


if __name__ == "__main__":
    main()
