"""A verb that only tests have: the whole of it is a method of the contract and its local body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cohort.core.memory_records import PassKind
from cohort.ranks.divided_states.divided_rows import whole_rows
from cohort.ranks.local_executor import LocalExecutor
from cohort.ranks.training_executor import Spread, TrainingExecutor, spread
from cohort.ranks.training_setup import TrainingSetup

__all__ = ["ToySetup", "add_verb", "local_squares"]


def _added(answers: Sequence[dict[int, float]]) -> dict[int, float]:
    return {key: sum(answer[key] for answer in answers) for key in answers[0]}


@spread(Spread.TRIALS, passes=PassKind.EVALUATE, together=_added)
def squares(self: Any, trial_ids: Sequence[int]) -> dict[int, float]:
    """Return the sum of the squares of the weights of trials."""
    raise NotImplementedError


def local_squares(self: Any, trial_ids: Sequence[int]) -> dict[int, float]:
    return {key: whole_rows(self.weights(key)).double().square().sum().item() for key in trial_ids}


def add_verb() -> None:
    """Write the verb into the contract and into the local executor."""
    TrainingExecutor.squares = squares  # type: ignore[attr-defined]
    LocalExecutor.squares = local_squares  # type: ignore[attr-defined]


@dataclass(frozen=True, kw_only=True)
class ToySetup(TrainingSetup):
    """Has the verb in the processes of the ranks as well."""

    def build(self) -> LocalExecutor:
        add_verb()
        return super().build()
