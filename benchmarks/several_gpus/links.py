"""What do copies between GPUs of one host cost, alone, all at once, under computation, and next to NCCL's collectives?

One process for each GPU. A layer of an 8B model (436 MB) is divided over the ranks; each opens the parts of the others
by CUDA IPC and copies the layer together, as adapter parallelism does: one rank alone, all ranks at the same time, and
all while matrix products run. NCCL's all-gather of the same bytes stands next to it, then all-reduces of 8 KB to 64 MB.
Copies are tried in a CUDA graph as well. On a CPU processes with shared memory and gloo take the GPUs' place.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from benchmarks.several_gpus.part import Part
from cohort.ranks.peer_source import PeerSource

__all__ = ["QUESTION", "measure"]

QUESTION = "What do copies between the GPUs of one host cost, next to NCCL's collectives?"
LAYER_BYTES = 436_207_616
NUM_LAYERS = 4


def measure(options: argparse.Namespace) -> Part:
    on_gpu = torch.cuda.is_available()
    num_ranks = options.gpus or (torch.cuda.device_count() if on_gpu else 2)
    if num_ranks < 2:
        raise SystemExit("links are measured between two GPUs or more")
    layer_bytes = 1 << 16 if options.tiny else LAYER_BYTES
    with tempfile.TemporaryDirectory(prefix="links-") as folder:
        spawn(_rank, args=(num_ranks, folder, layer_bytes, bool(options.tiny)), nprocs=num_ranks, join=True)
        found = [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(num_ranks)]
    rows: list[dict[str, Any]] = []
    for name in found[0]["milliseconds"]:
        times = [each["milliseconds"][name] for each in found if each["milliseconds"][name] is not None]
        row: dict[str, Any] = {"what": name, "slowest_ms": max(times, default=None), "ranks": len(times)}
        moved = found[0]["bytes"].get(name)
        if moved and times:
            row["gb_per_second"] = moved / max(times) / 1e6
        rows.append(row)
    by_name = {row["what"]: row for row in rows}
    pulled = by_name["layer pulled by all at once"]
    headline = {
        "layer_pull_ms": pulled["slowest_ms"],
        "layer_pull_gb_per_second": pulled["gb_per_second"],
        "pull_over_all_gather": pulled["slowest_ms"] / by_name["layer by all-gather"]["slowest_ms"],
        "right_bytes": float(all(each["right"] for each in found)),
    }
    notes = {"gpus": num_ranks, "layer_bytes": layer_bytes, "graph": [each["graph"] for each in found]}
    return Part(headline=headline, rows=rows, columns=("what", "slowest_ms", "gb_per_second"), notes=notes)


def _rank(rank: int, num_ranks: int, folder: str, layer_bytes: int, tiny: bool) -> None:  # noqa: FBT001
    os.environ |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    torch.set_num_threads(1)
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=num_ranks
    )
    source = PeerSource(device, rank=rank, num_ranks=num_ranks, num_layers=NUM_LAYERS)
    layers = [_layer(place, layer_bytes, device) for place in range(NUM_LAYERS)]
    for place, layer in enumerate(layers):
        source.keep(place, layer, starts=(0,))
    handles: list[Any] = [None] * num_ranks
    dist.all_gather_object(handles, source.handle)
    source.connect(handles)
    buffers = [torch.zeros(layer_bytes, dtype=torch.uint8, device=device) for _ in range(2)]
    right = True
    for place in range(NUM_LAYERS):
        source.fetch(place, buffers[place % 2]).wait()
        right = right and torch.equal(buffers[place % 2], layers[place])
    times = _times(rank, num_ranks, source=source, buffers=buffers, layer_bytes=layer_bytes, tiny=tiny)
    graph = _graph(source, buffers[0], layers[0], times) if on_gpu else "no GPU"
    if on_gpu:
        times |= _other_ways(rank, num_ranks, num_bytes=layer_bytes // num_ranks, device=device)
    others = layer_bytes * (num_ranks - 1) // num_ranks
    moved = {name: layer_bytes if "reduce" in name else others for name in times if "layer" in name}
    torch.save({"milliseconds": times, "bytes": moved, "right": right, "graph": graph}, Path(folder) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def _layer(place: int, num_bytes: int, device: torch.device) -> torch.Tensor:
    # the same on every rank, whatever its device
    return (torch.arange(num_bytes, device=device, dtype=torch.int64) * (place + 3) % 251).to(torch.uint8)


def _times(
    rank: int, num_ranks: int, *, source: PeerSource, buffers: list[torch.Tensor], layer_bytes: int, tiny: bool
) -> dict[str, float | None]:
    device = buffers[0].device
    size = 256 if tiny else 8192
    x = torch.randn(size, size, device=device, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32)
    places = iter(range(1 << 30))

    def pull() -> None:
        place = next(places)
        source.fetch(place % NUM_LAYERS, buffers[place % 2]).wait()

    def compute() -> None:
        for _ in range(8):
            torch.mm(x, x)

    def both() -> None:
        place = next(places)
        ready = source.fetch(place % NUM_LAYERS, buffers[place % 2])
        compute()
        ready.wait()

    found: dict[str, float | None] = {}
    dist.barrier()
    found["layer pulled by one alone"] = _median(pull, device) if rank == 0 else None
    dist.barrier()
    found["layer pulled by all at once"] = _median(pull, device)
    dist.barrier()
    found["products alone"] = _median(compute, device)
    dist.barrier()
    found["layer pulled under products"] = _median(both, device)
    dist.barrier()
    part = torch.zeros(layer_bytes // num_ranks, dtype=torch.uint8, device=device)
    whole = [torch.zeros_like(part) for _ in range(num_ranks)]
    found["layer by all-gather"] = _median(lambda: dist.all_gather(whole, part), device)
    for kib in (8, 64, 512, 4096, 65536):
        if tiny and kib > 64:
            break
        summed = torch.zeros(kib * 256, dtype=torch.float32, device=device)
        found[f"all-reduce of {kib} KiB"] = _median(partial(dist.all_reduce, summed), device)
    return found


def _median(act: Callable[[], object], device: torch.device, *, repeats: int = 15) -> float:
    """Return the median milliseconds of a call, complete on the device."""
    times = []
    for turn in range(repeats + 3):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        act()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if turn >= 3:
            times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def _other_ways(rank: int, num_ranks: int, *, num_bytes: int, device: torch.device) -> dict[str, float | None]:
    """Time copies of the next rank's memory, opened on its GPU and on this one, and by a kernel that reads it."""
    from cohort.ranks.shared_bytes import open_bytes, share_bytes

    found: dict[str, float | None] = {}
    target = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    for name, opened_on in (("its GPU", None), ("this GPU", device)):
        shared, handle = share_bytes(num_bytes, device=device)
        handles: list[Any] = [None] * num_ranks
        dist.all_gather_object(handles, handle)
        peer = open_bytes(handles[(rank + 1) % num_ranks], device=opened_on)
        dist.barrier()
        found[f"layer part opened on {name}, copied"] = _median(partial(target.copy_, peer), device)
        if opened_on is not None:
            read, written = (bytes_B[: num_bytes // 8 * 8].view(torch.int64) for bytes_B in (peer, target))
            for count in (2, 4):
                dist.barrier()
                pieces = partial(_in_pieces, target, peer, [torch.cuda.Stream(device) for _ in range(count)])
                found[f"layer part in {count} pieces, a stream each"] = _median(pieces, device)
            dist.barrier()
            found["layer part read by a kernel"] = _median(partial(torch.bitwise_or, read, 0, out=written), device)
            del read
        dist.barrier()
        # closed before its owner frees it
        del peer
        dist.barrier()
        del shared
    return found


def _in_pieces(target: torch.Tensor, peer: torch.Tensor, streams: list[torch.cuda.Stream]) -> None:
    """Copy a peer's memory in pieces at the same time: each copy engine of a GPU may have one."""
    current = torch.cuda.current_stream()
    pairs = zip(target.chunk(len(streams)), peer.chunk(len(streams)), strict=True)
    for stream, (into, content) in zip(streams, pairs, strict=True):
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            into.copy_(content, non_blocking=True)
    for stream in streams:
        current.wait_stream(stream)


def _graph(source: PeerSource, buffer: torch.Tensor, expected: torch.Tensor, times: dict[str, float | None]) -> str:
    """Return what happens to a pull that is recorded in a CUDA graph, and add how long its replay takes."""
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            source.fetch(0, buffer).wait()
        buffer.zero_()
        graph.replay()
        torch.cuda.synchronize()
        dist.barrier()
        times["layer pulled in a replayed graph, by all at once"] = _median(graph.replay, buffer.device)
        return "right bytes" if torch.equal(buffer, expected) else "wrong bytes"
    except RuntimeError as error:
        return f"refused: {str(error).splitlines()[0][:200]}"
