"""What a run says where a comparison of its trials could not decide by the rows there are."""

from __future__ import annotations

from collections.abc import Sequence

from cohort.core.units import counted
from cohort.tuning.decisions import Decision
from cohort.tuning.early_exit.rule import UNDECIDED
from cohort.tuning.early_exit.separation import FEWEST_ROWS

__all__ = ["undecided_note"]


def undecided_note(decisions: Sequence[Decision]) -> str | None:
    """Return one line about the trials that go on because the rows do not tell them from the best; None without any."""
    kept = [decision for decision in decisions if decision.reason == UNDECIDED]
    if not kept:
        return None
    numbers = kept[0].numbers
    best, num_rows, risk = int(numbers["best_trial"]), int(numbers.get("num_rows", 0)), numbers["risk"]
    few = f"fewer than {FEWEST_ROWS}" if num_rows < FEWEST_ROWS else f"at early_exit.risk {risk:g}"
    go, them = ("goes", "it") if len(kept) == 1 else ("go", "them")
    return (
        f"{counted(len(kept), 'more trial')} {go} on than the comparison keeps by rank: "
        f"{counted(num_rows, 'validation row')} ({few}) do not tell {them} from trial {best}"
    )
