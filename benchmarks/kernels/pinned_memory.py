"""How long does a thread that launches wait while another one pins memory (``kernels/pinned_pages.py``)?

A tensor as large as the weights of rank 64 of an 8B model is pinned by a second thread, while the first launches small
kernels: in fresh pinned memory of torch, or where it lies, with the system's usual pages and with large ones. Each way
runs in a process of its own, as torch keeps pinned memory and gives it again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import REPOSITORY, RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from cohort.core.process.huge_pages import use_huge_pages
from cohort.kernels.pinned_pages import PinnedPages
from cohort.kernels.staging import pinned

__all__ = ["main", "seconds_of"]

QUESTION = "How long does a thread that launches wait while another one pins memory?"
WAYS = ("fresh", "fresh, large pages", "in place", "in place, large pages")
# launches between two waits for the device, so that its queue is never full
LAUNCHES = 50


def seconds_of(way: str, *, num_rows: int, width: int) -> dict[str, float]:
    """Return the seconds of pinning float32 [num_rows, width] by one thread, and the longest launch of another."""
    host = torch.empty(num_rows, width)
    if way.endswith("large pages"):
        use_huge_pages(host.data_ptr(), host.nbytes)
    host.zero_()
    pages, found, small = PinnedPages(), dict[str, float](), torch.ones(1024, 1024, device="cuda")
    torch.cuda.synchronize()

    def pin() -> None:
        began = time.perf_counter()
        if way.startswith("in place"):
            pages.pin(host)
        else:
            pinned(host)
        found["pinning_s"] = time.perf_counter() - began

    thread = threading.Thread(target=pin)
    thread.start()
    longest, launches, last = 0.0, 0, time.perf_counter()
    while thread.is_alive():
        small * 2
        launches += 1
        if launches % LAUNCHES == 0:
            torch.cuda.synchronize()
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    thread.join()
    return found | {"longest_launch_s": longest, "launches": launches}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-rows", type=int, default=64)
    parser.add_argument("--width", type=int, default=2_621_440, help="2,621,440: all linears of an 8B model")
    parser.add_argument("--way", choices=WAYS, default=None, help="of one process; prints JSON")
    parser.add_argument("--out", type=Path, default=RESULTS / "pinned_memory.json")
    options = parser.parse_args()
    need_gpu()
    if options.way is not None:
        print(json.dumps(seconds_of(options.way, num_rows=options.num_rows, width=options.width)))
        return
    rows: list[dict[str, Any]] = []
    for way in WAYS:
        sizes = ["--num-rows", str(options.num_rows), "--width", str(options.width)]
        command = [sys.executable, "-m", "benchmarks.kernels.pinned_memory", "--way", way, *sizes]
        output = subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, text=True).stdout
        rows.append({"way": way, **json.loads(output.splitlines()[-1])})
    print_table(rows, columns=list(rows[0]))
    names = ("fresh", "fresh_large", "in_place", "in_place_large")
    headline = {f"longest_launch_s_{name}": row["longest_launch_s"] for name, row in zip(names, rows, strict=True)}
    write_result(options.out, question=QUESTION, headline=headline, rows=rows, notes={"num_rows": options.num_rows})


if __name__ == "__main__":
    main()
