"""What share of the speed of its own replayed passes a sweep trains at."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.llama_shapes import rows_of_lengths
from benchmarks.steps.step_timing import trial_specs
from benchmarks.sweeps.replayed_sweep import TimedExecutor

__all__ = ["replayed_steps", "step_efficiency"]

RANKS = (16, 32, 64, 64)
SIZES = (128, 256, 512, 1024, 2048, 3072, 4096)
LONGEST = 256


def replayed_steps(executor: TimedExecutor, *, sizes: Sequence[int] = SIZES, repeats: int = 5) -> dict[int, float]:
    """Return the median milliseconds of a step of four adapters by tokens, once its pass is recorded.

    Rows are of one length, at most :data:`LONGEST`; a step over more tokens than a graph takes is launched as a sweep
    launches it. The executor has no residents, before and after.
    """
    executor.curves = None
    vocabulary = executor.decoder.config.vocab_size
    found = {}
    for tokens in sizes:
        batch_size = max(1, tokens // (len(RANKS) * LONGEST))
        length = tokens // (len(RANKS) * batch_size)
        rows = rows_of_lengths([(1, length - 1)] * (8 * batch_size), vocab_size=vocabulary)
        for spec in trial_specs(RANKS, batch_size=batch_size):
            executor.load(spec, rows=rows)
        for _ in range(3 + repeats):
            executor.step()
        found[tokens] = statistics.median(milliseconds for _, _, milliseconds in executor.steps[-repeats:])
        for trial_id in executor.resident:
            executor.drop(trial_id)
    return found


def step_efficiency(steps: Sequence[tuple[int, int, float]], replayed: Mapping[int, float]) -> float:
    """Return the milliseconds that replayed passes of the sizes of ``steps`` take, over those that the steps took.

    Args:
        steps: Tokens, trials and milliseconds of each.
        replayed: Milliseconds by tokens; between two sizes on a line, beyond the largest at its rate.
    """
    sizes = sorted(replayed)
    times = [replayed[size] for size in sizes]
    expected = sum(
        float(np.interp(tokens, sizes, times)) if tokens <= sizes[-1] else tokens * times[-1] / sizes[-1]
        for tokens, _, _ in steps
    )
    return expected / sum(milliseconds for _, _, milliseconds in steps)
