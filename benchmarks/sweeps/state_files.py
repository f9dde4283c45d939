"""How fast are trials' states written, and what limits it: the disk, the page cache, or the checksums?

Best checkpoints of an 8B sweep's size, from the GPU where there is one: by the writer of a run, with and without the
wait for the disk, next to plain writes of as many bytes by one and by several threads, and to the checksums alone.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import RESULTS, print_table, write_result
from cohort.checkpoints.state_writer import StateWriter
from cohort.kernels.device_blocks import BUFFER_BYTES, OfThread

__all__ = ["main"]

QUESTION = "How fast are best checkpoints written, against plain writes and checksums alone?"
PART = 16 << 20


def main() -> None:
    """Measure, print, write."""
    options = _arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    num_bytes = options.megabytes << 20
    rows: list[dict[str, Any]] = []

    def add(what: str, total: int, work: Callable[[Path], object]) -> None:
        with tempfile.TemporaryDirectory(prefix="state-files-", dir=options.folder) as made:
            began = time.perf_counter()
            work(Path(made))
            seconds = time.perf_counter() - began
        rows.append({"what": what, "gigabytes": total / 1e9, "seconds": seconds, "gb_s": total / 1e9 / seconds})
        print(rows[-1], flush=True)

    part = os.urandom(PART)
    add("sha256, one thread", 64 * PART, lambda _: [hashlib.sha256(part) for _ in range(64)])
    add("crc32, one thread", 64 * PART, lambda _: [zlib.crc32(part) for _ in range(64)])
    weights = [torch.randn(num_bytes // 4, device=device).reshape(16, -1) for _ in range(options.files)]
    total = sum(tensor.numel() * 4 for tensor in weights)
    for threads in (1, 4):
        for is_flushed in (False, True):
            what = f"plain writes, {threads} thread{'s' * (threads > 1)}{', flushed' * is_flushed}"
            add(what, total, lambda folder: _plain(folder, part, options, threads=threads, is_flushed=is_flushed))  # noqa: B023
    if device == "cuda":
        add("copies from the GPU, 1 thread", total, lambda _: _copies(weights, threads=1))
        add("copies from the GPU, 4 threads", total, lambda _: _copies(weights, threads=4))
    for place, tensors in (("host", [tensor.cpu() for tensor in weights[:4]]), (device, weights)):
        size = sum(tensor.numel() * 4 for tensor in tensors)
        add(f"written behind, from {place}", size, lambda folder: _states(folder, tensors, is_behind=True))  # noqa: B023
        add(f"for a checkpoint, from {place}", size, lambda folder: _states(folder, tensors, is_behind=False))  # noqa: B023
    by_what = {row["what"]: row["gb_s"] for row in rows}
    plain, behind = by_what["plain writes, 4 threads, flushed"], by_what[f"written behind, from {device}"]
    named = by_what[f"for a checkpoint, from {device}"]
    headline = {"state_files_gb_s": named, "state_files_behind_gb_s": behind, "state_files_over_plain": named / plain}
    print_table(rows, columns=("what", "gigabytes", "seconds", "gb_s"))
    notes = {"files": options.files, "megabytes": options.megabytes, "cores": os.cpu_count()}
    out = options.out or RESULTS / f"state_files_{device}.json"
    write_result(out, question=QUESTION, headline=headline, rows=rows, notes=notes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--megabytes", type=int, default=384, help="of a file")
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to measure; else the temporary one")
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args()


def _plain(folder: Path, part: bytes, options: argparse.Namespace, *, threads: int, is_flushed: bool) -> None:
    def write(number: int) -> None:
        with (folder / str(number)).open("wb", buffering=0) as stream:
            for _ in range(options.megabytes * (1 << 20) // PART):
                stream.write(part)
            if is_flushed:
                os.fsync(stream.fileno())

    _in_threads(write, range(options.files), threads=threads)


def _in_threads(work: Callable[[int], object], numbers: Iterable[int], *, threads: int) -> None:
    with ThreadPoolExecutor(max_workers=threads) as pool:
        list(pool.map(work, numbers))


def _copies(weights: list[torch.Tensor], *, threads: int) -> None:
    own = OfThread()

    def copy(number: int) -> None:
        stream = own.stream(weights[number].device)
        for part in weights[number].reshape(-1).view(torch.uint8).split(BUFFER_BYTES):
            with torch.cuda.stream(stream):
                own.buffer(0)[: len(part)].copy_(part, non_blocking=True)
            stream.synchronize()

    _in_threads(copy, range(len(weights)), threads=threads)


def _states(folder: Path, weights: list[torch.Tensor], *, is_behind: bool) -> None:
    writer = StateWriter()
    paths = [folder / f"{number:04d}" / "best-000001.safetensors" for number in range(len(weights))]
    for path, tensor in zip(paths, weights, strict=True):
        writer.start(path, {"weights": tensor}, step=1, is_behind=is_behind)
    if is_behind:
        writer.settle()
    else:
        writer.secure(paths)


if __name__ == "__main__":
    main()
