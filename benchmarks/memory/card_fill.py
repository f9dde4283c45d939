"""Fills a card by prediction: a sweep whose bank and passes take what the base model leaves, trained for a while.

Part of ``benchmarks.memory.memory_model``, which profiles the passes first.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import write_result
from benchmarks.memory.mixed_trials import empty_state, mixed_rows, spec_of
from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.core.memory_records import MARGIN_SHARE, PassKind
from cohort.machine.machine import Machine
from cohort.memory.budget import Sizes, choose_sizes
from cohort.memory.profile import MemoryProfile
from cohort.memory.size_inputs import SizeInputs, SizeRequest
from cohort.models.decoder import Decoder
from cohort.scheduling.admission import Request, admit
from cohort.training.device_memory import release_cached
from cohort.training.executor import Executor
from cohort.training.trial import TrialSpec


def free_bytes(decoder: Decoder) -> int:
    """Return what the base model leaves free; on a CPU, of a card four times its size."""
    if decoder.device.type == "cpu":
        return 3 * decoder.num_bytes + (64 << 20)
    release_cached(decoder.device)
    return int(torch.cuda.mem_get_info()[0])


def sizes_that_fill(
    decoder: Decoder, profile: MemoryProfile, *, specs: Sequence[TrialSpec], longest: int, free: int
) -> Sizes:
    """Return a run's sizes, but for as many rank rows as fit: here the card is to be filled, not the matrix units."""
    inputs = SizeInputs(
        specs=specs,
        layout=AdapterLayout(dict(decoder.linears)),
        machine=Machine(
            device=decoder.device,
            device_name="benchmark",
            dtype=str(decoder.dtype).removeprefix("torch."),
            threads=torch.get_num_threads(),
            memory_bytes=free,
        ),
        longest_row=longest,
        request=SizeRequest(rank_rows=1 << 30),
        needs=profile.needs(margin_share=MARGIN_SHARE),
    )
    return choose_sizes(inputs, free_bytes=free)


def fill_the_card(
    decoder: Decoder, profile: MemoryProfile, *, seconds: float, most_steps: int, seed: int = 0
) -> dict[str, Any]:
    """Train trials of mixed ranks and batch sizes in a bank as large as the card allows; some leave, others come."""
    rng = np.random.default_rng(seed)
    on_gpu = decoder.device.type == "cuda"
    specs = [
        spec_of(i, r=int(rng.choice((16, 32, 64, 128))), batch_size=int(rng.choice((1, 2, 4, 8)))) for i in range(400)
    ]
    rows = mixed_rows(rng, mean=220, count=512, vocabulary=decoder.config.vocab_size)
    longest, free = int(rows.lengths.max()), free_bytes(decoder)
    sizes = sizes_that_fill(decoder, profile, specs=specs, longest=longest, free=free)
    total = torch.cuda.get_device_properties(0).total_memory if on_gpu else free + decoder.num_bytes
    executor = Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=rows,
        settings=sizes.executor,
        device=decoder.device,
        compute_dtype=decoder.dtype,
        memory_limit_bytes=total,
    )
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    trained = train_in_turn(executor, specs, sizes=sizes, seconds=seconds, most_steps=most_steps)
    known = decoder.num_bytes + executor.bank.num_bytes
    highest = executor.memory.highest_bytes + (0 if on_gpu else known)
    return {
        "card_bytes": total,
        "bank_bytes": executor.bank.num_bytes,
        "rank_rows": sizes.executor.num_rank_rows,
        "token_budget": sizes.executor.token_budget,
        **trained,
        "predicted_bytes": int(known + profile.pass_bytes(max(sizes.executor.token_budget, longest))),
        "peak_bytes": highest,
        "fill_percent": 100 * highest / total,
        "reserved_percent": 100 * torch.cuda.max_memory_reserved() / total if on_gpu else 100 * highest / total,
        "largest_pass_bytes": max(
            peak.num_bytes for peak in executor.memory.take_peaks() if peak.kind is PassKind.TRAIN
        ),
        "replayed_passes": 0 if executor.captured is None else executor.captured.num_replays,
    }


def train_in_turn(
    executor: Executor, specs: Sequence[TrialSpec], *, sizes: Sizes, seconds: float, most_steps: int
) -> dict[str, Any]:
    """Step the resident trials, two of which leave after each step; return the outcome."""
    rows = executor.train_rows
    # every rank row is to be used: admission by tokens alone would leave some of the card to trials that wait
    capacity = replace(sizes.capacity, tokens_per_step=1e9)
    requests = {
        spec.trial_id: Request(
            trial_id=spec.trial_id,
            r=aligned_rank(spec.adapter.r),
            batch_size=spec.batch_size,
            mean_length=float(rows.lengths.mean()),
        )
        for spec in specs
    }
    waiting, leaving, vacated = dict(requests), deque[int](), [1]
    begun, steps, tokens, shortages, most_resident = time.perf_counter(), 0, 0, 0, 0
    while steps < most_steps and time.perf_counter() - begun < seconds:
        resident = [requests[trial_id] for trial_id in executor.resident]
        for trial_id in admit(list(waiting.values()), resident, capacity, vacated_batch_sizes=vacated).admitted:
            if executor.fits(specs[trial_id]):
                executor.load(specs[trial_id], empty_state(executor, specs[trial_id].adapter.r))
                del waiting[trial_id]
                leaving.append(trial_id)
        most_resident = max(most_resident, len(executor.resident))
        executor.memory.observe_next(8)
        tokens += sum(event.num_tokens for event in executor.step())
        if steps % 4 == 3:
            executor.evaluate(executor.resident[:8], rows=rows, row_ids=range(16))
        shortages += len(executor.take_shortages())
        gone = [leaving.popleft() for _ in range(2)]
        vacated = [requests[trial_id].batch_size for trial_id in gone]
        for trial_id in gone:
            executor.drop(trial_id)
        steps += 1
    return {
        "most_resident": most_resident,
        "steps": steps,
        "tokens": tokens,
        "seconds": time.perf_counter() - begun,
        "shortages": shortages,
    }


def write_fill(path: Path, fill: dict[str, Any], profile: MemoryProfile) -> None:
    """Say and write how full the card was."""
    headline = {"card_fill_percent": fill["fill_percent"], "card_fill_shortages": fill["shortages"]}
    print(headline)
    write_result(
        path,
        question="Does a sweep of mixed ranks, batch sizes and lengths that fills the card by prediction ever run out?",
        headline=headline,
        rows=[fill],
        notes={"margin_share": MARGIN_SHARE, "reserve_bytes": profile.reserve_bytes},
    )
