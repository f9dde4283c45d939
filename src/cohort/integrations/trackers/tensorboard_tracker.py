"""TensorBoard: one event-file folder a trial under ``RUN_DIR/tensorboard``, hyperparameters in the HPARAMS tab."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cohort.core.events import Evaluated, StepDone
from cohort.integrations.trackers.tracker import TrackerSettings, evaluation_scalars, leaves_its_slot, step_scalars
from cohort.tuning.decisions import Decision

__all__ = ["TensorBoardTracker"]

# the plugin asks for the names of the metrics that its table compares
_COMPARED = {"eval/loss": 0.0, "train/loss": 0.0}


class TensorBoardTracker:
    """Writes event files.

    Args:
        writer: ``SummaryWriter`` of torch.utils.tensorboard or tensorboardX.
        hparams: The ``hparams`` function of the same package, which makes the plugin's three summaries.
    """

    def __init__(
        self, settings: TrackerSettings, *, writer: Callable[..., Any], hparams: Callable[..., tuple[Any, Any, Any]]
    ) -> None:
        self._folder = settings.directory / "tensorboard"
        self._settings = settings
        self._writer, self._hparams = writer, hparams
        self._parameters: dict[int, dict[str, Any]] = {}
        # a writer holds a thread and a file: only resident trials have one
        self._open: dict[int, Any] = {}

    def start_trial(self, trial_id: int, *, parameters: Mapping[str, Any]) -> None:
        simple = (bool, int, float, str)
        self._parameters[trial_id] = {
            name: value if isinstance(value, simple) else json.dumps(value) for name, value in parameters.items()
        }

    def _writer_of(self, trial_id: int, *, step: int) -> Any:
        if trial_id not in self._open:
            folder = self._folder / self._settings.trial_name(trial_id)
            is_first = not folder.exists()
            if not is_first:
                _wait_for_a_later_file_name(folder)
            # what a killed process logged from this step on is dropped by TensorBoard
            self._open[trial_id] = self._writer(log_dir=str(folder), purge_step=step)
            if is_first and trial_id in self._parameters:
                for summary in self._hparams(self._parameters[trial_id], _COMPARED):
                    self._open[trial_id].file_writer.add_summary(summary)
        return self._open[trial_id]

    def log_step(self, event: StepDone) -> None:
        writer = self._writer_of(event.trial_id, step=event.step)
        for name, value in step_scalars(event).items():
            writer.add_scalar(name, value, event.step)

    def log_evaluation(self, event: Evaluated) -> None:
        writer = self._writer_of(event.trial_id, step=event.step)
        for name, value in evaluation_scalars(event).items():
            writer.add_scalar(name, value, event.step)

    def log_decision(self, decision: Decision) -> None:
        """Write the decision as text; close the files of a trial that leaves its slot."""
        if leaves_its_slot(decision):
            numbers = ", ".join(f"{name} {value:.4g}" for name, value in decision.numbers.items())
            line = f"step {decision.step}: {decision.kind.value}, {decision.reason} ({decision.rule}) {numbers}"
            # a parked trial that is stopped opens its files again for this line alone: its last step's numbers stay
            self._writer_of(decision.trial_id, step=decision.step + 1).add_text("decision", line, decision.step)
            self._open.pop(decision.trial_id).close()

    def log_comparison(self, trial_id: int, numbers: Mapping[str, float], *, step: int) -> None:
        # its last step's numbers stay
        writer = self._writer_of(trial_id, step=step + 1)
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)
        self._open.pop(trial_id).close()

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


def _wait_for_a_later_file_name(folder: Path) -> None:
    """Wait until a new event file sorts after those in ``folder``, a second at most.

    TensorBoard reads files by name, which begins with whole seconds: of two files of one second it may read the later
    one first and then drop the earlier one's numbers.
    """
    names = [path.name.split(".") for path in folder.glob("events.out.tfevents.*")]
    newest = max((int(name[3]) for name in names if name[3].isdigit()), default=0)
    now = time.time()
    if int(now) == newest:
        time.sleep(newest + 1 - now)
