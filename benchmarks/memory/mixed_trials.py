"""Trials and rows of many sizes, as the benchmarks of memory train them."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.llama_shapes import rows_of_lengths
from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.spec import AdapterSpec
from cohort.data.tokenised import TokenisedRows
from cohort.training.executor import Executor
from cohort.training.trial import TrialSpec, TrialState


def spec_of(trial_id: int, *, r: int, batch_size: int) -> TrialSpec:
    """Return a trial; its seed decides which rows it draws."""
    return TrialSpec(
        trial_id=trial_id,
        seed=trial_id,
        adapter=AdapterSpec(r=r, lora_alpha=2.0 * r),
        learning_rate=1e-5,
        batch_size=batch_size,
        num_steps=10_000,
    )


def empty_state(executor: Executor, r: int) -> TrialState:
    """Return zeros for weights: drawing them would take longer than all that is measured here."""
    zeros_rD = torch.zeros(1, 1, device=executor.bank.weights_RD.device).expand(r, executor.bank.layout.width)
    return TrialState(adapter=AdapterState(weights=zeros_rD))


def mixed_rows(rng: np.random.Generator, *, mean: int, count: int, vocabulary: int) -> TokenisedRows:
    """Return rows of log-normal lengths around ``mean``, prompts and answers of any proportion."""
    lengths = np.clip(rng.lognormal(np.log(mean), 0.5, size=count), 8, 8 * mean).astype(int)
    answers = np.maximum(1, (lengths * rng.uniform(0.1, 0.95, size=count)).astype(int))
    pairs = [(int(length - answer), int(answer)) for length, answer in zip(lengths, answers, strict=True)]
    return rows_of_lengths(pairs, vocab_size=vocabulary, seed=int(rng.integers(1 << 30)))
