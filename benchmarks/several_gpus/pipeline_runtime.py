"""How long do the stages of a pipeline idle when they run, and does the simulator say so beforehand?

The adapters of the simulated case train on one base model in as many stages as there are GPUs, or processes on a CPU.
Each stage times its passes; the simulator gets these seconds and runs the same order, so what differs are transfers,
optimizer steps and the host. The bubble ratio is the share of the stages' time in which they run no pass.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.llama_shapes import gsm8k_lengths, hf_config, rows_of_lengths
from benchmarks.several_gpus.model_folder import model_folder
from benchmarks.several_gpus.strategies import start
from benchmarks.steps.step_timing import trial_specs
from cohort.data.tokenised import TokenisedRows
from cohort.ranks.grouped_executor import GroupedExecutor
from cohort.scheduling.pipelines.pipeline_schedule import Direction
from cohort.scheduling.pipelines.simulation import PipelineTimes, simulate_pipeline
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec

__all__ = ["adapter_rows", "adapter_specs", "measured", "pass_seconds"]

CAPACITY = 4096
# the first window compiles
STEPS = (4, 16, 16)


def adapter_rows(times: Sequence[int], *, vocab_size: int, is_tiny: bool) -> list[TokenisedRows]:
    """Return rows of GSM8K's lengths times each of ``times``; those of a tiny model are an eighth as long."""
    lengths = gsm8k_lengths()[:64] if is_tiny else gsm8k_lengths()[:2048]
    shorter = 8 if is_tiny else 1
    return [
        rows_of_lengths(
            [(max(1, factor * prompt // shorter), max(1, factor * answer // shorter)) for prompt, answer in lengths],
            vocab_size=vocab_size,
            seed=factor,
        )
        for factor in times
    ]


def adapter_specs(batch_sizes: Sequence[int]) -> list[TrialSpec]:
    """Return a trial of rank 16 for each batch size."""
    specs = trial_specs([16] * len(batch_sizes), batch_size=1)
    return [replace(spec, batch_size=size) for spec, size in zip(specs, batch_sizes, strict=True)]


def pass_seconds(times: PipelineTimes, direction: Direction) -> list[list[float]]:
    """Return the seconds of each micro-batch's pass, by stage."""
    return [
        [
            each.end - each.begin
            for each in sorted(own, key=lambda each: each.what.micro_batch)
            if each.what.direction is direction
        ]
        for own in times.passes
    ]


def measured(
    options: argparse.Namespace, *, num_stages: int, times: Sequence[int], batch_sizes: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Give a row for each window that was run."""
    shape, most = ("tiny", 128) if options.tiny else (options.shape, CAPACITY)
    num_layers = options.num_layers or (4 if options.tiny else None)
    vocab_size = hf_config(shape)["vocab_size"]
    settings = ExecutorSettings(
        num_slots=len(times), num_rank_rows=16 * len(times), token_budget=most, evaluation_token_budget=most
    )
    rows = adapter_rows(times, vocab_size=vocab_size, is_tiny=options.tiny)
    with model_folder(options, hf_config(shape, num_layers=num_layers)) as folder:
        executor = start(folder, "pipeline", num_ranks=num_stages, rows=rows[0], settings=settings)
        assert isinstance(executor, GroupedExecutor), "a pipeline is a group"
        try:
            for spec, own in zip(adapter_specs(batch_sizes), rows, strict=True):
                executor.load(spec, rows=own)
            for number, steps in enumerate((2, 2, 2) if options.tiny else STEPS):
                began = time.perf_counter()
                window = executor.run(dict.fromkeys(executor.resident, steps))
                seconds = time.perf_counter() - began
                if window.error is not None:
                    raise window.error
                tokens = sum(event.num_tokens for events in window.rounds for event in events)
                if number:
                    row = {"steps": steps, **_row(executor.pipeline_times(), seconds=seconds, tokens=tokens)}
                    print(row, flush=True)
                    yield row
        finally:
            executor.close()


def _row(times: PipelineTimes, *, seconds: float, tokens: int) -> dict[str, Any]:
    forward, backward, head = (pass_seconds(times, direction) for direction in Direction)
    simulated = simulate_pipeline(forward, backward, head_seconds=head if any(head) else None)
    return {
        "stages": len(times.passes),
        "micro_batches": len(forward[0]),
        "window_seconds": times.seconds,
        "simulated_seconds": simulated.seconds,
        "shares_head": any(head),
        "stage_seconds": times.busy_seconds,
        "bubble_ratio": times.bubble_ratio,
        "simulated_bubble_ratio": simulated.bubble_ratio,
        "tokens_per_second": tokens / seconds,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }
