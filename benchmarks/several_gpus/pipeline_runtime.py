"""How long do the stages of a pipeline idle when they run, and does the simulator say so beforehand?

The adapters of the simulated case train on one base model in as many stages as there are GPUs, or processes on a CPU.
Each stage times its passes; the simulator gets these seconds and runs the same order, so what differs are transfers,
optimizer steps and the host. The bubble ratio is the share of the stages' time in which they run no pass.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama_shapes import gsm8k_lengths, hf_config, rows_of_lengths
from benchmarks.several_gpus.strategies import start
from benchmarks.steps.several_gpus import write_model
from benchmarks.steps.step_timing import trial_specs
from cohort.parallel.group_executor import GroupExecutor
from cohort.scheduling.pipeline.simulation import PipelineTimes, simulate_pipeline
from cohort.scheduling.pipeline.stage_order import Direction
from cohort.training.executor import ExecutorSettings

__all__ = ["measured"]

CAPACITY = 4096


def measured(
    options: argparse.Namespace, *, num_stages: int, times: Sequence[int], batch_sizes: Sequence[int]
) -> list[dict[str, Any]]:
    """Return a row for each window that was run."""
    shape, most = ("tiny", 128) if options.tiny else (options.shape, CAPACITY)
    num_layers = options.num_layers or (4 if options.tiny else None)
    vocab_size = hf_config(shape)["vocab_size"]
    lengths = gsm8k_lengths()[:64] if options.tiny else gsm8k_lengths()[:2048]
    settings = ExecutorSettings(
        num_slots=len(times), num_rank_rows=16 * len(times), token_budget=most, evaluation_token_budget=most
    )
    # a tiny model's rows are an eighth as long
    shorter = 8 if options.tiny else 1
    rows = [
        rows_of_lengths(
            [(max(1, factor * prompt // shorter), max(1, factor * answer // shorter)) for prompt, answer in lengths],
            vocab_size=vocab_size,
            seed=factor,
        )
        for factor in times
    ]
    found = []
    with tempfile.TemporaryDirectory(prefix="pipeline-") as folder:
        write_model(Path(folder), shape=shape, num_layers=num_layers)
        executor = start(Path(folder), "pipeline", num_ranks=num_stages, rows=rows[0], settings=settings)
        assert isinstance(executor, GroupExecutor), "a pipeline is a group"
        try:
            for spec, own, batch_size in zip(
                trial_specs([16] * len(times), batch_size=1), rows, batch_sizes, strict=True
            ):
                executor.load(replace(spec, batch_size=batch_size), rows=own)
            quotas = dict.fromkeys(executor.resident, 2 if options.tiny else 12)
            for number in range(3):
                began = time.perf_counter()
                window = executor.run(quotas)
                seconds = time.perf_counter() - began
                if window.error is not None:
                    raise window.error
                tokens = sum(event.num_tokens for events in window.rounds for event in events)
                # the first window compiles
                if number:
                    found.append(_row(executor.pipeline_times(), seconds=seconds, tokens=tokens))
                    print(found[-1], flush=True)
        finally:
            executor.close()
    return found


def _row(times: PipelineTimes, *, seconds: float, tokens: int) -> dict[str, Any]:
    simulated = simulate_pipeline(*(_seconds(times, direction) for direction in Direction))
    return {
        "stages": len(times.passes),
        "micro_batches": len(times.passes[0]) // 2,
        "window_seconds": times.seconds,
        "simulated_seconds": simulated.seconds,
        "bubble_ratio": times.bubble_ratio,
        "simulated_bubble_ratio": simulated.bubble_ratio,
        "tokens_per_second": tokens / seconds,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def _seconds(times: PipelineTimes, direction: Direction) -> list[list[float]]:
    """Return the seconds of each micro-batch's pass, by stage."""
    return [
        [
            each.end - each.begin
            for each in sorted(own, key=lambda each: each.what.micro_batch)
            if each.what.direction is direction
        ]
        for own in times.passes
    ]
