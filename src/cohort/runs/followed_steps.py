"""The steps of a run that is looked at again and again: each is read once, in the order of the log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from cohort.runs.reader import RunReader, StepsTaken

__all__ = ["FollowedSteps"]

# seconds of run time of which the tokens are kept apart: the rate that people see is over the last minute
_KEPT_SECONDS = 120.0


class FollowedSteps:
    """What the steps of each trial come to, kept up to date by reading what was appended since.

    It belongs to one record: a run that went back to a checkpoint is followed by another one.

    Attributes:
        taken: By trial; one without a step has no entry.
        position: The last place of the log that was read.
    """

    def __init__(self) -> None:
        self.taken: dict[int, StepsTaken] = {}
        self.position = 0
        # run time and tokens so far at each moment at which something was recorded
        self._times: list[float] = []
        self._sums: list[int] = []
        self._evaluated_to = 0

    def read(self, reader: RunReader) -> None:
        """Read the steps that were appended since the last call.

        Raises:
            RunStateError: the run's database cannot be read.
        """
        if not self.position:
            self._begin(reader)
        taken, tokens_at = self.taken, dict[float, int]()
        for position, seconds, trial_id, step, loss, tokens in reader.log.steps_after(self.position):
            before = taken.get(trial_id)
            taken[trial_id] = StepsTaken(step, tokens + (0 if before is None else before.tokens), loss)
            tokens_at[seconds] = tokens_at.get(seconds, 0) + tokens
            self.position = position
        for position, seconds, tokens in reader.log.evaluated_tokens_after(self._evaluated_to):
            tokens_at[seconds] = tokens_at.get(seconds, 0) + tokens
            self._evaluated_to = position
        self._add(tokens_at)

    def _begin(self, reader: RunReader) -> None:
        """Take in what there is already, as sums: a long run has millions of steps."""
        with reader.snapshot():
            self.taken = reader.steps_taken()
            self.position = self._evaluated_to = reader.log.last_position()
            since = reader.log.last_seconds() - _KEPT_SECONDS
            recent = reader.log.tokens_at(since)
        # what came before the stretch is one entry: sums are differences to it
        self._times, self._sums = [since], [0]
        self._add(recent)

    def tokens_since(self, seconds: float) -> int:
        """Return the tokens trained and evaluated after ``seconds`` of run time, of the last two minutes at most."""
        if not self._sums:
            return 0
        place = bisect_right(self._times, seconds)
        return self._sums[-1] - (self._sums[place - 1] if place else 0)

    def _add(self, tokens_at: Mapping[float, int]) -> None:
        for seconds in sorted(tokens_at):
            self._times.append(seconds)
            self._sums.append(tokens_at[seconds] + (self._sums[-1] if self._sums else 0))
        if self._times:
            # one entry before the stretch stays: sums are differences to it
            old = max(0, bisect_right(self._times, self._times[-1] - _KEPT_SECONDS) - 1)
            del self._times[:old], self._sums[:old]
