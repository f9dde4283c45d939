"""How long do the stages of a LoRA pipeline idle, and how long does planning its micro-batches take?

The design's case: an 8B model in 4 stages, 4 adapters with GSM8K's row lengths times 1, 2, 4 and 6, and batches of 16,
16, 8 and 8. Micro-batches are packed, ordered and separated by the bubble lemma; the simulator runs the static order of
one forward, one backward pass with the seconds of each micro-batch on each stage, by arithmetic: no GPU is used.
Packings of the fewest tokens, level ones and those that keep a trial's order, which the bits of a CPU need, are
compared, for windows of three lengths and two sizes of micro-batches; 25,600 samples are planned. Each schedule runs
on stages of whole layers, with the loss head on the last one and with its rows shared by all (one more micro-batch in
flight), and on stages that a layer's half may end, which no runtime here has.

With two GPUs or more, or processes on a CPU (`--gpus`), the same adapters then train in a real pipeline, and its idle
time stands next to the simulator's.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import math
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.llama_shapes import decoder_config, gsm8k_lengths
from benchmarks.several_gpus.part import Part, keep
from benchmarks.several_gpus.pipeline_runtime import measured
from cohort.models.config import DecoderConfig
from cohort.scheduling.pipelines.microbatch.choose_micro_batches import MicroBatchSettings, schedule_micro_batches
from cohort.scheduling.pipelines.microbatch.packing import PackingLimits
from cohort.scheduling.pipelines.microbatch.records import AdapterBatches, MicroBatch, find_schedule_faults
from cohort.scheduling.pipelines.pipeline_schedule import batch_distance
from cohort.scheduling.pipelines.simulation import PipelineTimes, simulate_pipeline
from cohort.scheduling.pipelines.stage_balance import balance_stages, divide_head

__all__ = ["QUESTION", "measure"]

QUESTION = "How long do the stages of a LoRA pipeline idle, by its schedule?"
NUM_STAGES = 4
TIMES, BATCH_SIZES = (1, 2, 4, 6), (16, 16, 8, 8)
# the longest sample has 2,370 tokens
CAPACITIES = (2560, 4096)
CAPACITY = max(CAPACITIES)
PACKINGS = ("first fit", "level", "in order")
# of GSM8K's tokens: the loss head computes these alone
TRAINED_SHARE = 0.55
FLOPS_PER_SECOND = 5e14
COLUMNS = (
    "packing",
    "capacity",
    "steps",
    "micro_batches",
    "no_ops",
    "bubble_ratio",
    "bubble_ratio_shared_head",
    "bubble_ratio_half_layers",
    "plan_ms_per_sample",
)
# one boundary of 4,096 rows over NVLink
TRANSFER_SECONDS = 2e-4


def measure(options: argparse.Namespace) -> Part:
    config = decoder_config("8b")
    windows = (8, 16) if options.tiny else (16, 36, 60)
    stages, halved = (_stage_flops(config, cuts=cuts) for cuts in (_layer_cuts(config), _half_layer_cuts(config)))
    rows: list[dict[str, Any]] = []
    # first fit comes with a solver, which a machine that only trains does not have
    has_solver = importlib.util.find_spec("ortools") is not None
    for packing in () if options.only_measured else PACKINGS if has_solver else PACKINGS[1:]:
        for capacity, num_steps in itertools.product(CAPACITIES, windows):
            adapters = _adapters(num_steps, seed=0)
            settings = MicroBatchSettings(
                capacity=capacity,
                stages=NUM_STAGES,
                is_level=packing == "level",
                keeps_order=packing == "in order",
                limits=PackingLimits(work_limit=0.0),
            )
            began = time.perf_counter()
            schedule = schedule_micro_batches(adapters, settings=settings)
            seconds = time.perf_counter() - began
            further = schedule_micro_batches(
                adapters, settings=replace(settings, stages=batch_distance(NUM_STAGES, shares_head=True))
            )
            assert not find_schedule_faults(schedule, adapters, capacity=capacity, multiple=1, stages=NUM_STAGES)
            rows.append(
                {
                    "packing": packing,
                    "capacity": capacity,
                    "steps": num_steps,
                    "micro_batches": len(schedule),
                    "no_ops": sum(not each.samples for each in schedule),
                    "bubble_ratio": _simulated(schedule, stages).bubble_ratio,
                    "bubble_ratio_shared_head": _with_shared_head(further, config).bubble_ratio,
                    "bubble_ratio_half_layers": _simulated(schedule, halved).bubble_ratio,
                    "plan_ms_per_sample": seconds * 1e3 / _count(adapters),
                }
            )
    headline = _simulated_headline(rows, longest=max(windows), num_samples=512 if options.tiny else 25_600)
    # of stages that are only simulated
    notes: dict[str, Any] = {"capacity": CAPACITY} | (_simulated_notes(config, stages) if rows else {})
    num_ranks = options.gpus or (torch.cuda.device_count() if torch.cuda.is_available() else 0)
    if num_ranks < 2:
        return Part(headline=headline, rows=rows, columns=COLUMNS, notes=notes)
    windows_run: list[dict[str, Any]] = []
    notes |= {"windows_run": windows_run, "shape": options.shape, "layers_run": options.num_layers or "all"}
    for row in measured(options, num_stages=num_ranks, times=TIMES, batch_sizes=BATCH_SIZES):
        windows_run.append(row)
        headline |= {
            "pipeline_bubble_ratio": row["bubble_ratio"],
            "pipeline_bubble_ratio_of_these_passes_simulated": row["simulated_bubble_ratio"],
            "window_over_simulated": row["window_seconds"] / row["simulated_seconds"],
        }
        keep(options, Part(headline=headline, rows=rows or windows_run, columns=COLUMNS, notes=notes))
    return Part(headline=headline, rows=rows or windows_run, columns=COLUMNS, notes=notes)


def _simulated_headline(rows: Sequence[dict[str, Any]], *, longest: int, num_samples: int) -> dict[str, float]:
    if not rows:
        return {}
    last = [row for row in rows if row["steps"] == longest]
    return {
        "pipeline_bubble_ratio_simulated": min(row["bubble_ratio"] for row in last),
        "pipeline_bubble_ratio_simulated_shared_head": min(row["bubble_ratio_shared_head"] for row in last),
        "pipeline_bubble_ratio_simulated_half_layers": min(row["bubble_ratio_half_layers"] for row in last),
        "pipeline_bubble_ratio_worst_window": max(row["bubble_ratio"] for row in rows if row["packing"] == "level"),
        "plan_ms_per_sample": _planning(num_samples),
    }


def _simulated_notes(config: DecoderConfig, stages: Sequence[float]) -> dict[str, Any]:
    return {
        "stages": NUM_STAGES,
        "layers_of_stages": [(begin // 2, end // 2) for begin, end in _layer_cuts(config)],
        "half_layers_of_stages": _half_layer_cuts(config),
        "stage_share": [flops / sum(stages) for flops in stages],
    }


def _adapters(num_steps: int, *, seed: int) -> list[AdapterBatches]:
    rng = random.Random(seed)
    lengths = [sum(pair) for pair in gsm8k_lengths()]
    return [
        AdapterBatches(
            adapter=number,
            lengths=tuple(
                tuple(min(CAPACITY, times * rng.choice(lengths)) for _ in range(size)) for _ in range(num_steps)
            ),
        )
        for number, (times, size) in enumerate(zip(TIMES, BATCH_SIZES, strict=True))
    ]


def _count(adapters: Sequence[AdapterBatches]) -> int:
    return sum(len(batch) for adapter in adapters for batch in adapter.lengths)


def _half_layer_flops(config: DecoderConfig) -> tuple[list[float], float]:
    """Return forward FLOPs a token of each half layer, and of the head."""
    width = config.hidden_size
    attention = 2.0 * width * (config.query_width + 2 * config.kv_width + config.query_width)
    feed_forward = 2.0 * width * config.intermediate_size * 3
    head = 2.0 * width * config.vocab_size * TRAINED_SHARE
    return [attention, feed_forward] * config.num_layers, head


def _layer_cuts(config: DecoderConfig) -> list[tuple[int, int]]:
    """Return the half layers of each stage where stages are cut between layers, as the runtime cuts them."""
    halves, head = _half_layer_flops(config)
    layers = [sum(halves[begin : begin + 2]) for begin in range(0, len(halves), 2)]
    found = balance_stages(layers, num_stages=NUM_STAGES, last_seconds=head)
    return [(2 * begin, 2 * end) for begin, end in found]


def _half_layer_cuts(config: DecoderConfig) -> list[tuple[int, int]]:
    """Return the same where a stage may end between attention and feed-forward block, which no runtime here does."""
    halves, head = _half_layer_flops(config)
    return list(balance_stages(halves, num_stages=NUM_STAGES, last_seconds=head))


def _stage_flops(config: DecoderConfig, *, cuts: Sequence[tuple[int, int]]) -> list[float]:
    halves, head = _half_layer_flops(config)
    flops = [sum(halves[begin:end]) for begin, end in cuts]
    flops[-1] += head
    return flops


def _simulated(schedule: Sequence[MicroBatch], stages: Sequence[float]) -> PipelineTimes:
    tokens = [micro_batch.tokens(1) for micro_batch in schedule]
    # the weights are frozen: the backward pass is one product each, as the forward pass is
    seconds = [[flops * count / FLOPS_PER_SECOND for count in tokens] for flops in stages]
    return simulate_pipeline(seconds, seconds, transfer_seconds=TRANSFER_SECONDS)


def _with_shared_head(schedule: Sequence[MicroBatch], config: DecoderConfig) -> PipelineTimes:
    """Return the times of stages of whole layers that share the rows of the head, as the runtime divides them."""
    halves, head = _half_layer_flops(config)
    layer = sum(halves[:2])
    stages = [
        layer * (end - begin) for begin, end in balance_stages([layer] * config.num_layers, num_stages=NUM_STAGES)
    ]
    per_token = [micro_batch.tokens(1) / FLOPS_PER_SECOND for micro_batch in schedule]
    seconds = [[flops * each for each in per_token] for flops in stages]
    # both of its products
    heads = [[2 * head * share * each for each in per_token] for share in divide_head(stages, head)]
    return simulate_pipeline(seconds, seconds, head_seconds=heads, transfer_seconds=TRANSFER_SECONDS)


def _planning(num_samples: int) -> float:
    """Return the milliseconds a sample of planning a window of ``num_samples``, level and separated by the lemma."""
    per_step = sum(BATCH_SIZES)
    adapters = _adapters(math.ceil(num_samples / per_step), seed=1)
    settings = MicroBatchSettings(capacity=CAPACITY, stages=NUM_STAGES, is_level=True)
    began = time.perf_counter()
    schedule_micro_batches(adapters, settings=settings)
    return (time.perf_counter() - began) * 1e3 / _count(adapters)
