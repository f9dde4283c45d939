"""Calls the caller's functions about what happened in a run, in its order."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from cohort.core.errors import CohortError
from cohort.core.events import Evaluated, StepDone, TrialEvent
from cohort.core.input_values.nearest_value import nearest_word
from cohort.engine.callbacks.callback_reports import AnyReport, EvaluationReport, RunControl, StepReport, TrialEndReport
from cohort.engine.callbacks.callbacks import Callbacks
from cohort.runs.records import LoggedDecision, LoggedEvent
from cohort.tuning.decisions import COMPLETED, FAILED, Decision, DecisionKind

__all__ = ["CallbackCaller", "CallbackError"]

_ENDS = (DecisionKind.STOP, DecisionKind.FINISH)


class CallbackError(CohortError):
    """A callback raised an error. Everything is saved: correct the callback and resume the run."""


class CallbackCaller:
    """Calls a run's callbacks, in the order in which things happened."""

    def __init__(self, callbacks: Callbacks, run: RunControl) -> None:
        self._callbacks, self._run = callbacks, run
        self._waiting: deque[tuple[TrialEvent | Decision, bool]] = deque()
        self._bests: dict[int, Evaluated] = {}

    def took(self, events: Sequence[TrialEvent], decisions: Sequence[Decision]) -> None:
        """Take in what was recorded; :meth:`deliver` tells the callbacks."""
        if not self._callbacks:
            return
        improved = {(entry.trial_id, entry.step) for entry in decisions if entry.kind is DecisionKind.NEW_BEST}
        for event in events:
            is_best = isinstance(event, Evaluated) and (event.trial_id, event.step) in improved
            self._waiting.append((event, is_best))
        self._waiting.extend((decision, False) for decision in decisions)

    def replayed(self, entries: Sequence[LoggedEvent | LoggedDecision]) -> None:
        """Take in what earlier processes recorded: the end of a trial reports its best evaluation."""
        found = {
            (entry.event.trial_id, entry.event.step): entry.event
            for entry in entries
            if isinstance(entry, LoggedEvent) and isinstance(entry.event, Evaluated)
        }
        for entry in entries:
            if isinstance(entry, LoggedDecision) and entry.decision.kind is DecisionKind.NEW_BEST:
                self._bests[entry.decision.trial_id] = found[entry.decision.trial_id, entry.decision.step]

    @property
    def has_news(self) -> bool:
        """Whether something happened that the callbacks were not told of."""
        return bool(self._waiting)

    def deliver(self) -> None:
        """Call the callbacks about all that happened since the last call.

        Raises:
            CallbackError: one raised an error, or returned something; what follows is not delivered.
        """
        while self._waiting:
            entry, is_best = self._waiting.popleft()
            for name, report in self._reports(entry, is_best=is_best):
                self._call(name, report)

    def _call(self, name: str, report: AnyReport) -> None:
        about = f"trial {report.trial_id}, step {report.step}"
        try:
            returned = getattr(self._callbacks, name)(report)
        except Exception as error:
            raise CallbackError(
                f"{name} failed at {about}: {type(error).__name__}: {error}{_nearest_name(error)}; the run is saved: "
                "correct the callback, then continue with cohort.resume"
            ) from error
        if returned is not None:
            raise CallbackError(
                f"{name} returned {returned!r} at {about}, which means nothing; call report.stop_trial() or "
                "report.stop_run() and return nothing; the run is saved: correct the callback, then continue with "
                "cohort.resume"
            )

    def _reports(self, entry: TrialEvent | Decision, *, is_best: bool) -> Iterator[tuple[str, AnyReport]]:
        if isinstance(entry, StepDone) and self._callbacks.on_step is not None:
            yield (
                "on_step",
                StepReport(
                    **self._of("on_step", entry),
                    loss=entry.loss,
                    grad_norm=entry.grad_norm,
                    learning_rate=entry.learning_rate,
                    num_tokens=entry.num_tokens,
                ),
            )
        elif isinstance(entry, Evaluated):
            if is_best:
                self._bests[entry.trial_id] = entry
            if self._callbacks.on_evaluation is not None:
                yield (
                    "on_evaluation",
                    EvaluationReport(
                        **self._of("on_evaluation", entry),
                        validation_loss=entry.validation_loss,
                        metrics=dict(entry.metrics),
                        is_best=is_best,
                    ),
                )
        elif isinstance(entry, Decision) and self._callbacks.on_trial_end is not None and entry.kind in _ENDS:
            best = self._bests.get(entry.trial_id)
            status = {COMPLETED: "completed", FAILED: "failed"}.get(entry.reason, "stopped")
            yield (
                "on_trial_end",
                TrialEndReport(
                    **self._of("on_trial_end", entry),
                    status=status,
                    reason=str(entry.reason),
                    validation_loss=math.nan if best is None else best.validation_loss,
                    metrics={} if best is None else dict(best.metrics),
                ),
            )

    def _of(self, callback: str, entry: Any) -> dict[str, Any]:
        return {
            "trial_id": entry.trial_id,
            "parameters": self._run.parameters_of(entry.trial_id),
            "step": entry.step,
            "planned_steps": self._run.planned_steps_of(entry.trial_id),
            "_run": self._run,
            "_callback": callback,
        }


def _nearest_name(error: Exception) -> str:
    """Return the name of a report that a misspelt one is likely to mean; nothing for other errors."""
    if not isinstance(error, AttributeError) or not isinstance(
        error.obj, StepReport | EvaluationReport | TrialEndReport
    ):
        return ""
    names = [name for name in dir(error.obj) if not name.startswith("_")]
    near = nearest_word(str(error.name), names)
    return f". Did you mean {near}?" if near else f". It has {', '.join(names)}"
