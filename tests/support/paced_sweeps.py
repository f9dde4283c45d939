"""Training that is slow for as long as a test asks something of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import pytest

from cohort.engine.turns.step_turns import ReadyStep
from cohort.engine.turns.sweep_turns import SweepTurns

__all__ = ["paced_sweeps"]


@contextmanager
def paced_sweeps(*, seconds: float = 0.15) -> Iterator[None]:
    """Have each step on a shared base of this process take ``seconds`` at least within the block.

    A task that shall be paused, or outlast another one, must not be done before: with 200 steps it takes half a minute
    then, and a test does not have to train as many steps as the slowest machine would need.
    """
    step = SweepTurns.step

    def paced(turns: SweepTurns, ready: Sequence[ReadyStep]) -> AbstractContextManager[list[int]]:
        # before the turn: others may have it meanwhile
        time.sleep(seconds)
        return step(turns, ready)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SweepTurns, "step", paced)
        yield
