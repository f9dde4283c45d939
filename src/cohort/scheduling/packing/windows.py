"""Steps of each executor between two boundaries, such that all of them take about as long."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["window_quotas"]


def window_quotas(
    steps_left: Mapping[int, int], *, ranks: Mapping[int, int], step_seconds: Mapping[int, float], most_steps: int
) -> dict[int, int]:
    """Return the steps of each resident in the next window.

    All executors wait for each other at its end. Refilled slots keep their steps about equally long; packs of a plan
    need not, so a window counts seconds: those of ``most_steps`` steps of the slowest, or fewer where another one would
    have nothing left to do.

    Args:
        steps_left: Of each resident up to its next evaluation, at least one.
        ranks: The executor of each.
        step_seconds: Of a step of each executor, predicted.
    """
    most_of: dict[int, int] = {}
    for trial_id, steps in steps_left.items():
        most_of[ranks[trial_id]] = max(most_of.get(ranks[trial_id], 1), steps)
    seconds = min(
        most_steps * max(step_seconds[rank] for rank in most_of),
        *(most * step_seconds[rank] for rank, most in most_of.items()),
    )
    # at least one step of each, however slow
    allowed = {rank: max(1, round(seconds / step_seconds[rank])) for rank in most_of}
    return {trial_id: min(steps, allowed[ranks[trial_id]]) for trial_id, steps in steps_left.items()}
