"""What do windows of steps save where several ranks step together?

Two ranks with trials of uneven rows take the same steps: one command for each step, then one for each window of 4 and
of 16. A rank that steps by itself waits for rank 0, and for the rank with the longest rows, once a window.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama_shapes import hf_config, rows_of_lengths
from benchmarks.several_gpus.part import Part
from benchmarks.steps.several_gpus import write_model
from benchmarks.steps.step_timing import trial_specs
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config_file import read_config
from cohort.models.weights import load_decoder
from cohort.ranks.local_executor import LocalExecutor
from cohort.ranks.rank_process import RankProcess
from cohort.ranks.replicated_executor import ReplicatedExecutor
from cohort.ranks.training_setup import TrainingSetup
from cohort.training.executor_settings import ExecutorSettings

__all__ = ["QUESTION", "measure"]

QUESTION = "What do windows of steps save where several ranks step together?"
WINDOWS = (1, 4, 16)


def measure(options: argparse.Namespace) -> Part:
    on_gpu = torch.cuda.is_available()
    shape = "tiny" if options.tiny else "1b"
    num_ranks = options.gpus or (torch.cuda.device_count() if on_gpu else 2)
    steps = 16 if options.tiny else 64
    with tempfile.TemporaryDirectory(prefix="windows-") as folder:
        write_model(Path(folder), shape=shape, num_layers=None)
        executor = _start(Path(folder), shape=shape, num_ranks=num_ranks, device="cuda" if on_gpu else "cpu")
        try:
            rows = [_timed(executor, window, steps=steps) for window in WINDOWS]
        finally:
            executor.close()
    single = rows[0]["steps_per_second"]
    for row in rows:
        row["times_single_steps"] = row["steps_per_second"] / single
    headline = {f"window_{row['window']}_speed": row["times_single_steps"] for row in rows[1:]}
    notes = {"ranks": num_ranks, "shape": shape, "steps": steps}
    return Part(headline=headline, rows=rows, columns=("window", "steps_per_second", "times_single_steps"), notes=notes)


def _start(folder: Path, *, shape: str, num_ranks: int, device: str) -> ReplicatedExecutor:
    config = hf_config(shape)
    lengths = [(8, 8), (8, 120), (8, 40), (8, 24)] if shape == "tiny" else [(64, 64), (64, 400), (64, 128), (64, 96)]
    setup = TrainingSetup(
        rank=1,
        model_directory=str(folder),
        device=device,
        dtype="bfloat16" if device == "cuda" else "float32",
        target_linears=linear_shapes(read_config(folder)),
        settings=ExecutorSettings(num_slots=4, num_rank_rows=64, token_budget=8192, evaluation_token_budget=8192),
        memory_limit_bytes=None,
        train_rows=rows_of_lengths(lengths * 16, vocab_size=config["vocab_size"]),
        threads=1,
    )
    others = [RankProcess(replace(setup, rank=rank)) for rank in range(1, num_ranks)]
    torch.set_num_threads(setup.threads)
    decoder = load_decoder(folder, dtype=setup.dtype, device=device)
    local = LocalExecutor(
        decoder,
        target_linears=setup.target_linears,
        train_rows=setup.train_rows,
        settings=setup.settings,
        device=device,
        compute_dtype=decoder.dtype,
    )
    return ReplicatedExecutor(local, others)


def _timed(executor: ReplicatedExecutor, window: int, *, steps: int) -> dict[str, Any]:
    specs = [replace(spec, num_steps=100_000) for spec in trial_specs([16] * 2 * executor.num_ranks, batch_size=1)]
    for spec in specs:
        executor.load(spec, rank=spec.trial_id % executor.num_ranks)
    for _ in range(3):
        executor.step()
    began = time.perf_counter()
    for _ in range(steps // window):
        if window == 1:
            executor.step()
        else:
            executor.run({spec.trial_id: window for spec in specs})
    seconds = time.perf_counter() - began
    for spec in specs:
        executor.drop(spec.trial_id)
    return {"window": window, "steps_per_second": steps / seconds}
