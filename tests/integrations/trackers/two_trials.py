"""Two trials as every tracker hears of them, and a stand-in for the modules of wandb and trackio."""

from __future__ import annotations

import contextvars
from collections import defaultdict
from pathlib import Path
from typing import Any

from cohort.core.events import Evaluated, StepDone
from cohort.integrations.trackers import Tracker, TrackerSettings
from cohort.tuning.decisions import Decision, DecisionKind, Reason

__all__ = ["FakeHosted", "settings_in", "step_of", "train_two"]

PARK = (DecisionKind.PARK, Reason("warmed up"))
STOP = (DecisionKind.STOP, Reason("overfitting"))


def settings_in(tmp_path: Path) -> TrackerSettings:
    return TrackerSettings(task_name="gsm8k", run_id="abc", directory=tmp_path)


def step_of(trial_id: int, step: int) -> StepDone:
    return StepDone(trial_id=trial_id, step=step, loss=2.0 / step, grad_norm=0.5, learning_rate=1e-4, num_tokens=10)


def decision_of(trial_id: int, step: int, kind: DecisionKind, reason: Reason) -> Decision:
    return Decision(trial_id=trial_id, step=step, kind=kind, reason=reason, rule="patterns", numbers={"gap": 0.25})


def train_two(tracker: Tracker) -> None:
    """Two trials side by side; trial 0 is parked, comes back and is stopped; trial 1 is left running."""
    for trial in range(2):
        tracker.start_trial(trial, parameters={"learning_rate": 1e-4, "r": 8, "target_modules": ["q", "v"]})
    for step in range(1, 3):
        for trial in range(2):
            tracker.log_step(step_of(trial, step))
    tracker.log_evaluation(Evaluated(trial_id=0, step=2, validation_loss=1.5, metrics={"exact_match": 0.5}))
    tracker.log_decision(decision_of(0, 2, DecisionKind.NEW_BEST, Reason("improved")))
    tracker.log_decision(decision_of(0, 2, *PARK))
    tracker.log_step(step_of(0, 3))
    tracker.log_decision(decision_of(0, 3, *STOP))
    tracker.log_comparison(0, {"finals/loss": 1.25, "test/loss": 1.75}, step=3)
    tracker.close()


class FakeHostedRun:
    def __init__(self, module: FakeHosted, **options: Any) -> None:
        self.module, self.options = module, options
        self.finished = False

    def log(self, numbers: dict[str, Any], *, step: int) -> None:
        assert not self.finished, "a finished run cannot log"
        assert self.module.current.get() is self, "the wrong run is current"
        self.module.logged[self.options.get("id") or self.options["name"]].append((step, numbers))

    def finish(self) -> None:
        assert self.module.current.get() is self, "the wrong run is current"
        self.finished = True


class FakeHosted:
    """wandb's and trackio's manner: beginning a run ends the one that is current in this context."""

    def __init__(self) -> None:
        self.current: contextvars.ContextVar[FakeHostedRun | None] = contextvars.ContextVar("current", default=None)
        self.runs: list[FakeHostedRun] = []
        self.logged: dict[str, list[tuple[int, dict[str, Any]]]] = defaultdict(list)

    def init(self, **options: Any) -> FakeHostedRun:
        previous = self.current.get()
        if previous is not None:
            previous.finish()
        run = FakeHostedRun(self, **options)
        self.current.set(run)
        self.runs.append(run)
        return run
