"""How many of the best trials are compared at the end, and on how many validation rows.

Trials are compared on few rows while they train, since every evaluation costs compute. The leaders of so small a sample
are compared once more on all rows, within a share of what the search has cost, or in full where that takes seconds.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from cohort.tuning.evaluation_times import EVALUATION_TOKEN_COST, EvaluationSettings

__all__ = ["FinalsPlan", "free_tokens", "plan_finals"]

# with fewer there is nothing to choose from
_FEWEST = 2
# Work that is done whatever its share: some six seconds of a small model on one core (8 GFLOP/s, measured), or of a GPU
# that does 160 TFLOP/s. A constant and not a measured speed: what a kill interrupts is planned again as it was.
_FREE_FLOPS = {"cpu": 5e10, "cuda": 1e15}
_FLOPS_PER_WEIGHT = 2


@dataclass(frozen=True, kw_only=True)
class FinalsPlan:
    """Finalists and rows of the last comparison.

    Attributes:
        note: What the bound on the cost took away, for the user; empty where it took nothing.
    """

    num_finalists: int
    num_rows: int
    note: str = ""


def free_tokens(*, num_weights: int, device_type: str) -> float:
    """Return how many tokens a model of this size reads in a few seconds on a device of this kind."""
    return _FREE_FLOPS.get(device_type, _FREE_FLOPS["cpu"]) / (_FLOPS_PER_WEIGHT * num_weights)


def plan_finals(
    *,
    num_candidates: int,
    num_others: int,
    row_tokens: Sequence[int],
    num_evaluated: int,
    cost_tokens: float,
    settings: EvaluationSettings,
    free_tokens: float = 0.0,
) -> FinalsPlan:
    """Keep the comparison within ``finalists_cost_fraction`` of the search: fewer finalists first, then fewer rows.

    Args:
        num_candidates: Trials that have a best checkpoint.
        num_others: What is measured as well and cannot win, such as the base model.
        row_tokens: Most tokens that measuring each validation row reads and generates, in the order in which rows are
            taken. The mean of all rows would not bound the cost of those that are taken.
        num_evaluated: Rows of the evaluations during training; the comparison never uses fewer, whatever it costs.
        cost_tokens: What the search has cost, in tokens of training.
        free_tokens: Tokens, read or generated, that are spent whatever share of the search they are.
    """
    wanted, num_available = min(settings.finalists, num_candidates), len(row_tokens)
    # what the bound pays for, in tokens read or generated
    affordable = max(free_tokens, settings.finalists_cost_fraction * cost_tokens / EVALUATION_TOKEN_COST)
    tokens_of_first = list(itertools.accumulate(row_tokens))
    num_finalists = min(wanted, max(_FEWEST, int(affordable // tokens_of_first[-1]) - num_others))
    num_contenders = num_finalists + num_others
    num_paid = bisect.bisect_right(tokens_of_first, affordable / num_contenders)
    num_rows = min(num_available, max(num_evaluated, num_paid))
    taken = []
    if num_finalists < wanted:
        taken.append(f"{num_finalists} instead of {wanted} finalists")
    if num_rows < num_available:
        taken.append(f"{num_rows} instead of {num_available} validation rows")
    bound = f"finalists_cost_fraction {settings.finalists_cost_fraction:g} of the search pays for no more"
    return FinalsPlan(
        num_finalists=num_finalists, num_rows=num_rows, note=f"{' and '.join(taken)}: {bound}" if taken else ""
    )
