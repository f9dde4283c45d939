"""Where the time of a decode pass goes: kernels by name, and how long the GPU waits for the host.

The passes are those of the engine, as CUDA graphs. Without a GPU a tiny model tries the script out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.llama_shapes import SHAPES, decoder_config, random_decoder
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.serving.adapter_bank import RandomAdapters
from benchmarks.serving.read_ahead import reading_ahead
from benchmarks.serving.serving import RANK, engine_for, finish, request
from cohort.adapters.bank import AdapterBank
from cohort.adapters.linear import PackedLinear
from cohort.adapters.mlp import PackedMlp
from cohort.models.decoder import Decoder
from cohort.serving.engine import ServingEngine

PASSES = 8
CONTEXT = 1024


def decoding(
    decoder: Decoder,
    *,
    batch: int,
    count: int,
    prompt: int,
    passes: int,
    around: Callable[[AdapterBank], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> tuple[ServingEngine, float]:
    """Return an engine that only decodes from now on, and the seconds of a pass; inside of what ``around`` gives."""
    adapters = RandomAdapters(decoder, count=max(count, 1), r=RANK)
    with around(adapters.bank):
        return _decoding(decoder, adapters, batch=batch, count=count, prompt=prompt, passes=passes)


def _decoding(
    decoder: Decoder, adapters: RandomAdapters, *, batch: int, count: int, prompt: int, passes: int
) -> tuple[ServingEngine, float]:
    # room for the keys of a context of usual length, as a server has it
    engine = engine_for(decoder, adapters, batch=batch, length=CONTEXT)
    for index in range(batch):
        adapter = index % count if count else None
        given = request(index, prompt=prompt, new=passes + 8, adapter=adapter, vocab_size=decoder.config.vocab_size)
        engine.submit(given)
    # prompts, and the first passes that only decode
    while len(engine.step()) < batch:
        pass
    for _ in range(4):
        engine.step()
    finish(decoder.device)
    seconds = []
    for _ in range(PASSES):
        before = time.perf_counter()
        engine.step()
        finish(decoder.device)
        seconds.append(time.perf_counter() - before)
    return engine, statistics.median(seconds)


def profiled(decoder: Decoder, *, batch: int, count: int, prompt: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return milliseconds of a pass, and the kernels of a pass, the longest first."""
    engine, wall = decoding(decoder, batch=batch, count=count, prompt=prompt, passes=2 * PASSES)
    on_gpu = decoder.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as found:
        for _ in range(PASSES):
            engine.step()
        finish(decoder.device)
    by_name: dict[str, list[float]] = defaultdict(list)
    spans: list[tuple[float, float]] = []
    for event in found.events() or ():
        if not on_gpu or event.device_type == torch.autograd.DeviceType.CUDA:
            by_name[event.name].append(event.time_range.elapsed_us())
            spans.append((event.time_range.start, event.time_range.end))
    rows = [
        {
            "batch": batch,
            "adapters": count,
            "kernel": name[:70],
            "a_pass": len(times) / PASSES,
            "us_each": sum(times) / len(times),
            "us_a_pass": sum(times) / PASSES,
        }
        for name, times in by_name.items()
    ]
    rows.sort(key=lambda row: -float(str(row["us_a_pass"])))
    busy, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    suffix = f"batch{batch}_adapters{count}"
    numbers = {f"pass_ms_{suffix}": wall * 1e3, f"gpu_busy_ms_{suffix}": busy / PASSES / 1e3}
    return numbers, rows[:24]


@contextmanager
def terms_added_after() -> Iterator[None]:
    """Inside, LoRA terms are added by a kernel behind each product, not by what reads it next."""
    own = PackedLinear.apart, PackedMlp.apart
    vars_of: list[Any] = [PackedLinear, PackedMlp]
    for kind in vars_of:
        kind.apart = kind.__call__
    try:
        yield
    finally:
        vars_of[0].apart, vars_of[1].apart = own


def variants(decoder: Decoder, *, prompt: int) -> Iterator[tuple[str, float]]:
    """Give milliseconds of a pass for what is done otherwise."""

    def pass_ms(batch: int, count: int, megabytes: float = 0, *, factors: bool = False) -> float:
        def around(bank: AdapterBank) -> AbstractContextManager[None]:
            if not megabytes and not factors:
                return nullcontext()
            return reading_ahead(decoder, megabytes=megabytes, bank=bank if factors else None)

        return decoding(decoder, batch=batch, count=count, prompt=prompt, passes=PASSES, around=around)[1] * 1e3

    with terms_added_after():
        yield "terms_added_after_batch32_adapters32", pass_ms(32, 32)
    yield "reading_factors_ahead_batch32_adapters32", pass_ms(32, 32, factors=True)
    for megabytes in (8, 24):
        yield f"reading_{megabytes}_mb_ahead_batch1_adapters0", pass_ms(1, 0, megabytes)
        yield f"reading_{megabytes}_mb_ahead_batch32_adapters32", pass_ms(32, 32, megabytes)
    yield "reading_factors_and_8_mb_ahead_batch32_adapters32", pass_ms(32, 32, 8, factors=True)
    yield "again_batch1_adapters0", pass_ms(1, 0)
    yield "again_batch32_adapters32", pass_ms(32, 32)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--num-layers", type=int, default=None)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--out", type=Path, default=RESULTS / "decode_profile.json")
    arguments = parser.parse_args()
    need_gpu(shape=arguments.shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    config = decoder_config(arguments.shape, num_layers=arguments.num_layers)
    decoder = random_decoder(config, device=device, dtype=dtype)
    headline: dict[str, float] = {}
    rows: list[dict[str, Any]] = []

    def write() -> None:
        write_result(
            arguments.out,
            question="Where does the time of a decode pass go?",
            headline=headline,
            rows=rows,
            notes={"prompt": arguments.prompt, "passes": PASSES},
        )

    for batch, count in ((1, 0), (32, 0), (32, 32), (32, 1)):
        numbers, own = profiled(decoder, batch=batch, count=count, prompt=arguments.prompt)
        headline |= numbers
        rows += own
        print_table(own, columns=list(own[0]))
        print({name: round(value, 3) for name, value in numbers.items()}, flush=True)
        write()
    for name, value in variants(decoder, prompt=arguments.prompt):
        headline[name] = value
        print(f"{name}: {value:.3f} ms", flush=True)
        write()


if __name__ == "__main__":
    main()
