"""What does the share of a pipeline's stage take, and how long would four such stages idle?

One GPU is each stage in turn: the product's stage with its layers, its part of four adapters, its passes and its
optimizer steps. Messages to and from the stages that are not there are waits of the device as long as a link takes. The
measured passes of all stages then go through the simulator, which runs them in the pipeline's order: a bubble ratio of
four real shares, before there are four GPUs.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.llama_shapes import decoder_config, random_decoder
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.several_gpus.pipeline import BATCH_SIZES, TIMES
from benchmarks.several_gpus.pipeline_runtime import adapter_rows, adapter_specs, pass_seconds
from cohort.adapters.layout import AdapterLayout
from cohort.core.memory_records import PassKind
from cohort.memory.rank_groups import pipeline_group
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config import DecoderConfig
from cohort.ranks.pipeline.staged_executor import StagedExecutor
from cohort.ranks.rank_group import PipelineGroup
from cohort.scheduling.pipelines.pipeline_schedule import Direction
from cohort.scheduling.pipelines.simulation import PassTime, PipelineTimes, simulate_pipeline
from cohort.training.executor_settings import ExecutorSettings

__all__ = ["SpinLinks", "main"]

QUESTION = "What does the share of a pipeline's stage take, and how long would four such stages idle?"
COLUMNS = (
    "capacity",
    "stage",
    "layers",
    "forward_ms",
    "backward_ms",
    "head_ms",
    "pass_seconds",
    "window_seconds",
    "share_of_longest",
)
# of a message besides its bytes
MESSAGE_SECONDS = 15e-6


class SpinLinks:
    """Links to stages that are not there: what is received is random, after a wait as long as a link takes."""

    def __init__(self, *, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._cycles_per_second = _cycles_per_second()

    def seconds(self, num_bytes: int) -> float:
        """Return what a message takes."""
        return MESSAGE_SECONDS + num_bytes / self._bytes_per_second

    def send(self, message: Tensor, *, to: int, number: int, direction: Direction) -> None:
        """Send nothing: a send does not wait, and its copy is the receiver's."""
        del message, to, number, direction

    def receive(self, into: Tensor, *, sender: int, number: int, direction: Direction) -> Tensor:
        """Wait, and fill what is received; norms and sums of squares are ones."""
        del sender, direction
        if into.is_cuda:
            torch.cuda._sleep(int(self.seconds(into.nbytes) * self._cycles_per_second))
        return into.fill_(1.0) if number < 0 else into.normal_(std=0.02)

    def flush(self) -> None:
        """Wait for the device."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def _cycles_per_second() -> float:
    if not torch.cuda.is_available():
        return 1.0
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(20_000_000)
    start.record()
    torch.cuda._sleep(20_000_000)
    stop.record()
    stop.synchronize()
    return float(20_000_000 / (start.elapsed_time(stop) * 1e-3))


def _stage(
    config: DecoderConfig, plan: PipelineGroup, *, stage: int, links: SpinLinks, capacity: int, is_tiny: bool
) -> StagedExecutor:
    """Return a stage whose adapters are loaded."""
    on_gpu = torch.cuda.is_available()
    decoder = random_decoder(
        config,
        device="cuda" if on_gpu else "cpu",
        dtype=torch.bfloat16 if on_gpu else torch.float32,
        part=plan.layers(stage),
        has_head=plan.shares_head,
    )
    rows = adapter_rows(TIMES, vocab_size=config.vocab_size, is_tiny=is_tiny)
    executor = StagedExecutor(
        decoder,
        plan,
        stage=stage,
        links=links,
        layout=AdapterLayout(linear_shapes(config)),
        train_rows=rows[0],
        settings=ExecutorSettings(
            num_slots=len(TIMES),
            num_rank_rows=16 * len(TIMES),
            token_budget=capacity,
            evaluation_token_budget=capacity,
        ),
    )
    for spec, own in zip(adapter_specs(BATCH_SIZES), rows, strict=True):
        executor.load(spec, rows=own)
    return executor


def _share(
    executor: StagedExecutor, *, capacity: int, stage: int, layers: range, steps: int
) -> tuple[dict[str, Any], Any]:
    """Return a row of one stage with micro-batches of at most ``capacity`` tokens, and when its passes ran."""
    executor.lower_token_budgets({PassKind.TRAIN: capacity})
    quotas = dict.fromkeys(range(len(TIMES)), steps)
    executor.run(dict.fromkeys(quotas, 2))
    began = time.perf_counter()
    window = executor.run(quotas)
    seconds = time.perf_counter() - began
    times = executor.pass_times()
    of_direction = {
        direction: [each.end - each.begin for each in times if each.what.direction is direction]
        for direction in Direction
    }
    row = {
        "capacity": capacity,
        "stage": stage,
        "layers": len(layers),
        "micro_batches": len(of_direction[Direction.FORWARD]),
        "forward_ms": 1e3 * statistics.median(of_direction[Direction.FORWARD]),
        "backward_ms": 1e3 * statistics.median(of_direction[Direction.BACKWARD]),
        "head_ms": 1e3 * statistics.median(of_direction[Direction.HEAD] or [0.0]),
        "pass_seconds": sum(each.end - each.begin for each in times),
        "window_seconds": seconds,
        # the last stage alone tells them
        "tokens": sum(event.num_tokens for events in window.rounds for event in events),
    }
    return row, times


def _headline(
    rows: list[dict[str, Any]], found: Mapping[int, Sequence[Sequence[PassTime]]], *, transfer_seconds: float
) -> dict[str, float]:
    """Return what the stages would idle with the first of the capacities, and with each of the others."""
    headline: dict[str, float] = {}
    for capacity, times in found.items():
        own = [row for row in rows if row["capacity"] == capacity]
        of_this = _of_capacity(own, times, transfer_seconds=transfer_seconds)
        headline |= {name if not headline else f"{name}_at_{capacity}": value for name, value in of_this.items()}
    return headline


def _of_capacity(
    rows: list[dict[str, Any]], found: Sequence[Sequence[PassTime]], *, transfer_seconds: float
) -> dict[str, float]:
    longest = max(row["pass_seconds"] for row in rows)
    for row in rows:
        row["share_of_longest"] = row["pass_seconds"] / longest
    times = PipelineTimes(passes=tuple(map(tuple, found)))
    forward, backward, head = (pass_seconds(times, direction) for direction in Direction)
    simulated = simulate_pipeline(
        forward, backward, head_seconds=head if any(head) else None, transfer_seconds=transfer_seconds
    )
    return {
        "pipeline_bubble_ratio_of_measured_shares": simulated.bubble_ratio,
        "mean_stage_over_longest": statistics.mean(row["share_of_longest"] for row in rows),
        "simulated_window_seconds": simulated.seconds,
        "tokens_per_second": sum(row["tokens"] for row in rows) / simulated.seconds,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write after each stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="8b")
    parser.add_argument("--num-layers", type=int, default=None)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12, help="of the window that is timed")
    parser.add_argument("--capacities", type=int, nargs="+", default=[4096, 2750], help="of a micro-batch, falling")
    parser.add_argument("--head-on-last", action="store_true", help="as stages that do not share the loss head")
    parser.add_argument("--link-gb-per-second", type=float, default=285.0, help="as the links part measured it")
    parser.add_argument("--tiny", action="store_true", help="a tiny model on any device")
    parser.add_argument("--out", type=Path, default=RESULTS / "stage_share.json")
    options = parser.parse_args(arguments)
    shape = "tiny" if options.tiny else options.shape
    need_gpu(shape=shape)
    config = decoder_config(shape, num_layers=options.num_layers or (4 if options.tiny else None))
    capacities, steps = ([128, 64], 2) if options.tiny else (options.capacities, options.steps)
    plan = pipeline_group(config, num_stages=options.stages)
    if options.head_on_last:
        plan = replace(plan, head_layers=0.0)
    links = SpinLinks(bytes_per_second=1e9 * options.link_gb_per_second)
    transfer = links.seconds(capacities[0] * config.hidden_size * 2)
    rows: list[dict[str, Any]] = []
    found: dict[int, list[Sequence[PassTime]]] = {capacity: [] for capacity in capacities}
    for stage in range(options.stages):
        executor = _stage(config, plan, stage=stage, links=links, capacity=capacities[0], is_tiny=options.tiny)
        for capacity in capacities:
            row, times = _share(executor, capacity=capacity, stage=stage, layers=plan.layers(stage), steps=steps)
            rows.append(row)
            found[capacity].append(times)
            print(row, flush=True)
        del executor
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        write_result(
            options.out,
            question=QUESTION,
            headline=_headline(rows, found, transfer_seconds=transfer) if stage == options.stages - 1 else {},
            rows=rows,
            notes={
                "shape": shape,
                "cuts": list(plan.cuts),
                "head_shares": list(plan.head_shares) if plan.shares_head else "all of it on the last stage",
                "capacities": capacities,
                "steps": steps,
                "transfer_s": transfer,
            },
        )
    print_table(rows, columns=COLUMNS)


if __name__ == "__main__":
    main()
