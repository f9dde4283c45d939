"""Functions of the caller that a run calls between two steps: they see what happened and may stop a trial or the run.

What they decide is taken up like what people ask from another terminal: at the same step boundary, recorded with the
name of the function, and replayed when the run is resumed.
"""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from cohort.core.errors import CohortError, InputError, Problem
from cohort.core.events import Evaluated, StepDone, TrialEvent
from cohort.core.plain_values import plain_value
from cohort.runs.records import JsonValue, LoggedDecision, LoggedEvent
from cohort.runs.requests.trial_requests import RequestKind, TrialRequest
from cohort.tasks.hyperparameters import SECTION_OF
from cohort.tasks.other_names import nearest_hint
from cohort.tuning.decisions import COMPLETED, FAILED, Decision, DecisionKind

__all__ = [
    "CallbackCaller",
    "CallbackError",
    "Callbacks",
    "EvaluationReport",
    "RunControl",
    "StepReport",
    "TrialEndReport",
]


_ENDS = (DecisionKind.STOP, DecisionKind.FINISH)


class CallbackError(CohortError):
    """A callback raised an error. Everything is saved: correct the callback and resume the run."""


class RunControl(Protocol):
    """What a callback may do to its run, and what a report says of a trial."""

    def stop_trial(self, trial_id: int, *, who: str) -> None: ...

    def ask(self, request: TrialRequest) -> None: ...

    def stop_run(self, *, who: str) -> None: ...

    def parameters_of(self, trial_id: int) -> Mapping[str, JsonValue]: ...

    def planned_steps_of(self, trial_id: int) -> int: ...


@dataclass(frozen=True, kw_only=True)
class _Report:
    """What every report says.

    Attributes:
        trial_id: The trial.
        parameters: Its hyperparameters, as in the table of trials.
        step: Optimizer steps it has done.
        planned_steps: Those of its full training.
    """

    trial_id: int
    parameters: Mapping[str, JsonValue]
    step: int
    planned_steps: int
    _run: RunControl = field(repr=False, compare=False)
    _callback: str = field(repr=False, compare=False)

    def stop_trial(self, why: str = "") -> None:
        """Stop this trial before its next step; its best checkpoint still competes. Harmless where it has ended.

        Args:
            why: Recorded with the decision.
        """
        self._run.stop_trial(self.trial_id, who=self._who(why))

    def stop_run(self, why: str = "") -> None:
        """Stop all trials and the search before the next step; the run ends with its best adapter so far.

        Args:
            why: Recorded with the decisions.
        """
        self._run.stop_run(who=self._who(why))

    def keep_trial(self, why: str = "") -> None:
        """Let no exit rule stop this trial.

        Args:
            why: Recorded with the decision.
        """
        self._ask(RequestKind.KEEP, why)

    def resume_trial(self, why: str = "") -> None:
        """Let this trial go on that was stopped; no exit rule stops it again.

        Args:
            why: Recorded with the decision.
        """
        self._ask(RequestKind.RESUME, why)

    def clone_trial(
        self, values: Mapping[str, object] | None = None, *, warm_start: bool = False, why: str = ""
    ) -> None:
        """Train a copy of this trial with other hyperparameters.

        Args:
            values: Those that differ, by the names of the task file; numpy's numbers are accepted.
            warm_start: Whether the copy begins with the weights of this trial's best checkpoint.
            why: Recorded with the decision.

        Raises:
            InputError: ``values`` is no dict, or a name in it is unknown.
        """
        self._ask(RequestKind.CLONE, why, values={} if values is None else _values(values), warm_start=warm_start)

    def add_trial(self, values: Mapping[str, object], *, why: str = "") -> None:
        """Train a new configuration: the task's defaults but for ``values``.

        Args:
            values: Hyperparameters by the names of the task file; numpy's numbers are accepted.
            why: Recorded with the decision.

        Raises:
            InputError: ``values`` is no dict, or a name in it is unknown.
        """
        self._run.ask(TrialRequest(kind=RequestKind.ADD, values=_values(values), who=self._who(why)))

    def _ask(
        self, kind: RequestKind, why: str, *, values: Mapping[str, object] | None = None, warm_start: bool = False
    ) -> None:
        self._run.ask(
            TrialRequest(
                kind=kind, trial_id=self.trial_id, values=dict(values or {}), warm_start=warm_start, who=self._who(why)
            )
        )

    def _who(self, why: str) -> str:
        return f"{self._callback}: {why}" if why else self._callback


@dataclass(frozen=True, kw_only=True)
class StepReport(_Report):
    """One optimizer step of a trial, for ``on_step``.

    Attributes:
        trial_id: The trial.
        parameters: Its hyperparameters, as in the table of trials.
        step: Optimizer steps it has done.
        planned_steps: Those of its full training.
        loss: Mean loss per trained token of the step's batch, in nats.
        grad_norm: Norm of the gradient before clipping.
        learning_rate: The rate of the step.
        num_tokens: Tokens of the batch, prompts included.
    """

    loss: float
    grad_norm: float
    learning_rate: float
    num_tokens: int


@dataclass(frozen=True, kw_only=True)
class EvaluationReport(_Report):
    """One evaluation of a trial, for ``on_evaluation``.

    Attributes:
        trial_id: The trial.
        parameters: Its hyperparameters, as in the table of trials.
        step: Optimizer steps it has done.
        planned_steps: Those of its full training.
        validation_loss: Mean loss per trained token, in nats.
        metrics: Further metrics by name.
        is_best: Whether no earlier checkpoint of this trial is better.
    """

    validation_loss: float
    metrics: Mapping[str, float]
    is_best: bool


@dataclass(frozen=True, kw_only=True)
class TrialEndReport(_Report):
    """The end of a trial, for ``on_trial_end``.

    Attributes:
        trial_id: The trial.
        parameters: Its hyperparameters, as in the table of trials.
        step: Optimizer steps it has done.
        planned_steps: Those of its full training.
        status: ``completed``, ``stopped`` or ``failed``.
        reason: Why it stopped, in the words of the decision.
        validation_loss: That of its best checkpoint; NaN if none is finite.
        metrics: Further metrics of that checkpoint.
    """

    status: str
    reason: str
    validation_loss: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """The caller's functions; each is given one report and returns nothing.

    Raises:
        InputError: one cannot be called.
    """

    on_step: Callable[[StepReport], object] | None = None
    on_evaluation: Callable[[EvaluationReport], object] | None = None
    on_trial_end: Callable[[TrialEndReport], object] | None = None

    def __post_init__(self) -> None:
        problems = [
            Problem(
                where=name,
                found=found,
                allowed="a function of one report",
                hint=f"Write def {name}(report): ..., and give the function itself.",
            )
            for name, value in vars(self).items()
            if value is not None and (found := _what_is_wrong(value))
        ]
        if problems:
            raise InputError(problems)

    def and_at_trial_end(self, function: Callable[[TrialEndReport], None]) -> Callbacks:
        """Return the same callbacks with one more at the end of a trial, before the caller's own."""
        own = self.on_trial_end

        def both(report: TrialEndReport) -> object:
            function(report)
            return None if own is None else own(report)

        return replace(self, on_trial_end=both)

    def __bool__(self) -> bool:
        return any(value is not None for value in vars(self).values())


def _values(values: object) -> dict[str, Any]:
    if isinstance(values, Mapping):
        # the caller waits for no answer: a misspelt name is reported where it is written
        problems = [
            Problem(
                where="values",
                found=f"the unknown name {name!r}",
                allowed=", ".join(SECTION_OF),
                hint=nearest_hint(str(name), SECTION_OF),
            )
            for name in values
            if name not in SECTION_OF
        ]
        if problems:
            raise InputError(problems)
        return {name: plain_value(value) for name, value in values.items()}
    hint = 'Write for example {"learning_rate": 3e-4}.'
    raise InputError(Problem(where="values", found=repr(values)[:60], allowed="a dict of hyperparameters", hint=hint))


def _what_is_wrong(value: object) -> str | None:
    """Return why a value is no callback; None if it is one, as far as can be known before it is called."""
    if not callable(value):
        return f"{value!r}"
    # what a generator or a coroutine says would never run
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_kind(value) for is_kind in kinds):
        return f"{value!r}, which is async or a generator"
    try:
        inspect.signature(value).bind(None)
    except TypeError:
        return f"{value!r}, which does not take one argument"
    except ValueError:
        # some built-in functions do not say what they take
        return None
    return None


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

    def _call(self, name: str, report: _Report) -> None:
        about = f"trial {report.trial_id}, step {report.step}"
        try:
            returned = getattr(self._callbacks, name)(report)
        except Exception as error:
            raise CallbackError(
                f"{name} failed at {about}: {type(error).__name__}: {error}; the run is saved: correct the callback, "
                "then continue with cohort.resume"
            ) from error
        if returned is not None:
            raise CallbackError(
                f"{name} returned {returned!r} at {about}, which means nothing; call report.stop_trial() or "
                "report.stop_run() and return nothing; the run is saved: correct the callback, then continue with "
                "cohort.resume"
            )

    def _reports(self, entry: TrialEvent | Decision, *, is_best: bool) -> Iterator[tuple[str, _Report]]:
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
