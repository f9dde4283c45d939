"""How many of the best trials are compared at the end, and on how many validation rows.

Trials are compared on few rows while they train, since every evaluation costs compute. The leaders of so small a sample
are compared once more on all rows, within a share of what the search has cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cohort.tuning.evaluation_times import EVALUATION_TOKEN_COST, EvaluationSettings

__all__ = ["FinalsPlan", "plan_finals"]

# with fewer there is nothing to choose from
_FEWEST = 2


@dataclass(frozen=True, kw_only=True)
class FinalsPlan:
    """Finalists and rows of the last comparison.

    Attributes:
        note: What the bound on the cost took away, for the user; empty where it took nothing.
    """

    num_finalists: int
    num_rows: int
    note: str = ""


def plan_finals(
    *,
    num_candidates: int,
    num_others: int,
    num_available: int,
    num_evaluated: int,
    tokens_per_row: float,
    cost_tokens: float,
    settings: EvaluationSettings,
) -> FinalsPlan:
    """Keep the comparison within ``finalists_cost_fraction`` of the search: fewer finalists first, then fewer rows.

    Args:
        num_candidates: Trials that have a best checkpoint.
        num_others: What is measured as well and cannot win, such as the base model.
        num_available: All validation rows.
        num_evaluated: Rows of the evaluations during training; the comparison never uses fewer, whatever it costs.
        tokens_per_row: Tokens that measuring one row reads and generates.
        cost_tokens: What the search has cost, in tokens of training.
    """
    wanted = min(settings.finalists, num_candidates)
    # in rows of one contender: what the bound pays for
    affordable = settings.finalists_cost_fraction * cost_tokens / (EVALUATION_TOKEN_COST * tokens_per_row)
    num_finalists = min(wanted, max(_FEWEST, math.floor(affordable / num_available) - num_others))
    num_contenders = num_finalists + num_others
    num_rows = min(num_available, max(num_evaluated, math.floor(affordable / num_contenders)))
    taken = []
    if num_finalists < wanted:
        taken.append(f"{num_finalists} instead of {wanted} finalists")
    if num_rows < num_available:
        taken.append(f"{num_rows} instead of {num_available} validation rows")
    bound = f"finalists_cost_fraction {settings.finalists_cost_fraction:g} of the search pays for no more"
    return FinalsPlan(
        num_finalists=num_finalists, num_rows=num_rows, note=f"{' and '.join(taken)}: {bound}" if taken else ""
    )
