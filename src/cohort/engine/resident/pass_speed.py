"""How many tokens a training pass may have on a base, so that requests do not wait long for it."""

from __future__ import annotations

import time
from collections.abc import Callable

from cohort.models.decoder import Decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.memory_probe import ProbePass, probe_rows

__all__ = ["tokens_within"]

_FIRST_TOKENS = 32
# forward and backward through frozen weights, and the adapters
_TRAINING_COSTS = 3.0


def tokens_within(
    decoder: Decoder, seconds: float, *, most: int, clock: Callable[[], float] = time.perf_counter
) -> int:
    """Return about how many tokens a training pass of ``seconds`` has, at most ``most``, by passes that are timed."""
    most = min(most, decoder.config.max_position_embeddings)
    tokens = min(_FIRST_TOKENS, most)
    name, shape = next(iter(decoder.linears.items()))
    while True:
        rows = probe_rows(ProbePass(r=1, lengths=(tokens,)), vocabulary=decoder.config.vocab_size)
        executor = Executor(
            decoder,
            target_linears={name: shape},
            train_rows=rows,
            settings=ExecutorSettings(
                num_slots=1, num_rank_rows=16, token_budget=tokens, evaluation_token_budget=tokens
            ),
            device=decoder.device,
            compute_dtype=decoder.dtype,
        )
        # the first pass of a size compiles kernels and sets up libraries
        executor.evaluate_base(rows=rows, row_ids=[0])
        began = clock()
        executor.evaluate_base(rows=rows, row_ids=[0])
        took = _TRAINING_COSTS * (clock() - began)
        if took >= seconds or tokens == most:
            return max(1, min(most, int(tokens * seconds / took))) if took else most
        tokens = min(most, 2 * tokens)
