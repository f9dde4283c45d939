"""What is compared on many rows once a search has ended: adapters, the default configuration and the base model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from cohort.core.statistics.estimates import Estimate

__all__ = ["Comparison", "Contender"]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One adapter, or the base model, on all rows of a comparison.

    Attributes:
        trial_id, step: The adapter's trial and the steps its best checkpoint had done; None for the base model.
        values: The loss (``loss``) and every metric.
        winner_minus: The winner's values minus these, on the same rows; empty for the winner.
    """

    trial_id: int | None
    step: int | None
    values: Mapping[str, Estimate]
    winner_minus: Mapping[str, Estimate] = field(default_factory=dict)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        def estimates(key: str) -> dict[str, Estimate]:
            return {name: Estimate(**entry) for name, entry in stored[key].items()}

        values, minus = estimates("values"), estimates("winner_minus")
        return cls(trial_id=stored["trial_id"], step=stored["step"], values=values, winner_minus=minus)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Adapters that were measured on the same rows.

    Attributes:
        num_rows: These rows.
        num_available: The rows there were to choose from.
        num_tokens: Tokens that were read and generated for it, of all contenders.
        ranked: The trials that competed, best first; the first is the winner.
        others: What they are compared with and cannot win: the base model, and the trial of the default hyperparameters
            where it is not among ``ranked``.
        split: What the rows are: ``validation`` or ``test``.
        note: Why there are fewer contenders or rows than asked for; empty where there are not.
    """

    num_rows: int
    num_available: int
    num_tokens: int
    ranked: tuple[Contender, ...]
    others: tuple[Contender, ...]
    split: str = "validation"
    note: str = ""

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return the comparison whose fields a database holds."""
        parts = {name: tuple(map(Contender.from_json, stored[name])) for name in ("ranked", "others")}
        return cls(**{**stored, **parts})

    @property
    def winner(self) -> Contender:
        return self.ranked[0]

    @property
    def rows_text(self) -> str:
        if self.num_rows == self.num_available:
            return f"all {self.num_rows} {self.split} rows"
        return f"{self.num_rows} of {self.num_available} {self.split} rows"

    @property
    def base(self) -> Contender | None:
        return next((entry for entry in self.others if entry.trial_id is None), None)

    def of_trial(self, trial_id: int) -> Contender | None:
        """Return what was measured of a trial; None if it was not there."""
        return next((entry for entry in (*self.ranked, *self.others) if entry.trial_id == trial_id), None)
