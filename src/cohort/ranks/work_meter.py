"""Adds up what the ranks of an executor do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cohort.core.events import StepDone
from cohort.core.memory_records import PassKind
from cohort.core.rank_work import RankWork
from cohort.ranks.step_window import StepWindow

__all__ = ["WorkMeter"]


class WorkMeter:
    """The totals of several ranks."""

    def __init__(self, num_ranks: int) -> None:
        self._totals = [RankWork(rank=rank) for rank in range(num_ranks)]

    def took(self, kind: PassKind, seconds: Mapping[int, float], values: Mapping[int, Any]) -> None:
        """Count a call that each rank of ``seconds`` carried out, and the steps in what it returned."""
        for rank, spent in seconds.items():
            before, trains = self._totals[rank], kind is PassKind.TRAIN
            self._totals[rank] = RankWork(
                rank=rank,
                train_seconds=before.train_seconds + (spent if trains else 0.0),
                evaluate_seconds=before.evaluate_seconds + (0.0 if trains else spent),
                num_tokens=before.num_tokens + sum(event.num_tokens for event in _steps(values.get(rank))),
            )

    @property
    def totals(self) -> tuple[RankWork, ...]:
        """What each rank has done so far; nothing where there is one."""
        return tuple(self._totals) if len(self._totals) > 1 else ()


def _steps(value: object) -> Iterable[StepDone]:
    if isinstance(value, StepWindow):
        return (event for events in value.rounds for event in events)
    return (event for event in value if isinstance(event, StepDone)) if isinstance(value, tuple) else ()
