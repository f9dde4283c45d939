"""What large pages save where states are copied to host memory (``core/process/huge_pages.py``).

Memory is used for the first time, used again and freed, with the system's usual pages and with large ones, in turns;
then a process ends that holds as much of it: that is a wait behind the last file of a sweep.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import REPOSITORY, RESULTS, print_table, write_result
from cohort.core.process.huge_pages import use_huge_pages

__all__ = ["main"]

QUESTION = "What do large pages save where states are copied to host memory?"
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
# prints when it ends, which the caller sees some time later
ENDS = """
import os, sys, time
from benchmarks.sweeps.host_pages import filled
kept = filled(int(sys.argv[1]), large=sys.argv[2] == "large")
print(time.time(), flush=True)
os._exit(0)
"""


def filled(num_bytes: int, *, large: bool) -> torch.Tensor:
    """Return memory that has been used once."""
    memory = torch.empty(num_bytes, dtype=torch.uint8)
    if large:
        use_huge_pages(memory.data_ptr(), num_bytes)
    return memory.fill_(1)


def seconds_of(num_bytes: int, *, large: bool) -> dict[str, float]:
    """Return the seconds of a first use, of another, of freeing the memory, and of a process's end with it."""
    began = time.perf_counter()
    memory = filled(num_bytes, large=large)
    used = time.perf_counter()
    memory.fill_(2)
    again = time.perf_counter()
    del memory
    freed = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", ENDS, str(num_bytes), "large" if large else "usual"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ended = float(process.stdout.readline())
        process.wait()
        left = time.time() - ended
    return {"first_use": used - began, "again": again - used, "free": freed - again, "end_of_process": left}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "host_pages.json")
    options = parser.parse_args()
    setting = SETTING.read_text(encoding="utf-8").strip() if SETTING.exists() else "none"
    taken: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for _ in range(options.rounds):
        for large, found in taken.items():
            found.append(seconds_of(int(options.gib * (1 << 30)), large=large))
    rows: list[dict[str, Any]] = [
        {
            "pages": "large" if large else "usual",
            **{name: statistics.median(one[name] for one in found) for name in found[0]},
        }
        for large, found in taken.items()
    ]
    print_table(rows, columns=("pages", "first_use", "again", "free", "end_of_process"))
    usual, large_ones = rows
    headline = {f"{name}_large_over_usual": large_ones[name] / usual[name] for name in ("first_use", "free")}
    notes = {"gib": options.gib, "rounds": options.rounds, "setting": setting}
    write_result(options.out, question=QUESTION, headline=headline, rows=rows, notes=notes)
    print(headline)


if __name__ == "__main__":
    main()
