"""How long a run will about take from here: one formula for live progress and for ``cohort status``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["TrialAhead", "seconds_left"]


@dataclass(frozen=True, kw_only=True)
class TrialAhead:
    """A trial that has not ended.

    Attributes:
        steps_done, planned_steps, warmup_steps: Optimizer steps; the selection is at the end of warm-up.
        tokens_per_step: Trained.
    """

    steps_done: int
    planned_steps: int
    warmup_steps: int
    tokens_per_step: float


def seconds_left(
    trials: Sequence[TrialAhead],
    *,
    kept_share: float,
    trained_tokens: int,
    evaluation_tokens: int,
    tokens_per_second: float | None,
) -> float | None:
    """Return the seconds that ``trials`` about need; None while there is no rate to tell by.

    Of the trials before the selection only ``kept_share`` goes on; beyond that no trial is expected to stop early.
    Evaluations to come keep their ratio to training so far, though they are denser within warm-up.

    Args:
        trials: All that have not ended.
        kept_share: Share of the trials that the selection keeps.
        trained_tokens, evaluation_tokens: So far, for their ratio.
        tokens_per_second: Trained and evaluated, lately.
    """
    if not tokens_per_second:
        return None
    is_selection_open = any(trial.steps_done < trial.warmup_steps for trial in trials)
    tokens = 0.0
    for trial in trials:
        warmup_left = max(0, trial.warmup_steps - trial.steps_done)
        later = max(0, trial.planned_steps - max(trial.steps_done, trial.warmup_steps))
        is_judged = trial.steps_done > trial.warmup_steps or not is_selection_open
        tokens += trial.tokens_per_step * (warmup_left + (later if is_judged else kept_share * later))
    per_trained = evaluation_tokens / trained_tokens if trained_tokens else 0.0
    return tokens * (1 + per_trained) / tokens_per_second
