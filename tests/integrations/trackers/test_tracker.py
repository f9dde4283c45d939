"""Several trackers as one: a failing one is dropped."""

from __future__ import annotations

from typing import Any

from cohort.core.events import StepDone
from cohort.integrations.trackers import Trackers
from tests.integrations.trackers.two_trials import step_of


def test_a_tracker_that_fails_is_dropped_and_the_others_go_on() -> None:
    class Recorder:
        def __init__(self, *, fails_at: int | None) -> None:
            self.steps: list[int] = []
            self.closed = False
            self.fails_at = fails_at

        def log_step(self, event: StepDone) -> None:
            if event.step == self.fails_at:
                raise ConnectionError("server gone")
            self.steps.append(event.step)

        def close(self) -> None:
            self.closed = True

    bad, good = Recorder(fails_at=2), Recorder(fails_at=None)
    recorders: Any = {"wandb": bad, "mlflow": good}
    trackers = Trackers(recorders)
    for step in range(1, 4):
        trackers.log_step(step_of(0, step))
    trackers.close()
    assert (bad.steps, good.steps) == ([1], [1, 2, 3])
    assert good.closed
    assert trackers.failures == {"wandb": "ConnectionError: server gone"}
