"""What each of several ranks did, for the display."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RankWork"]


@dataclass(frozen=True, kw_only=True)
class RankWork:
    """The work of one rank; what it waited for the others between two calls is not counted.

    Attributes:
        rank: Its number, which is also that of its GPU.
        train_seconds, evaluate_seconds: Spent on calls to step, and to evaluate or generate.
        num_tokens: Trained.
    """

    rank: int
    train_seconds: float = 0.0
    evaluate_seconds: float = 0.0
    num_tokens: int = 0

    @property
    def busy_seconds(self) -> float:
        return self.train_seconds + self.evaluate_seconds

    def since(self, before: RankWork) -> RankWork:
        """Return what was done after ``before``, an earlier total of the same rank."""
        return RankWork(
            rank=self.rank,
            train_seconds=self.train_seconds - before.train_seconds,
            evaluate_seconds=self.evaluate_seconds - before.evaluate_seconds,
            num_tokens=self.num_tokens - before.num_tokens,
        )
