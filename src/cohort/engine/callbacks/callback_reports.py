"""What the caller's functions are told between two steps, and what they may ask for there.

What they decide is taken up like what people ask from another terminal: at the same step boundary, recorded with the
name of the function, and replayed when the run is resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from cohort.core.errors import InputError, Problem
from cohort.core.input_values.plain_values import plain_value
from cohort.runs.records import JsonValue
from cohort.runs.requests.trial_requests import RequestKind, TrialRequest
from cohort.tasks.hyperparameters import SECTION_OF
from cohort.tasks.other_names import nearest_hint

__all__ = ["AnyReport", "EvaluationReport", "RunControl", "StepReport", "TrialEndReport"]


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


AnyReport = StepReport | EvaluationReport | TrialEndReport


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
