"""What happens to trials, as immutable records. Executors emit them, decisions read them, the run store keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Evaluated", "ReadAnswer", "StepDone", "TrialEvent", "TrialFailed"]


@dataclass(frozen=True, kw_only=True)
class ReadAnswer:
    """An answer to be read by people.

    Attributes:
        prompt, text: The ends that matter: the last part of a long prompt, the first of a long answer.
        reward: NaN where it has none.
    """

    prompt: str
    text: str
    reward: float


@dataclass(frozen=True, kw_only=True)
class StepDone:
    """One optimizer step of one trial.

    Attributes:
        step: Optimizer steps completed, counted from 1.
        loss: Mean loss per trained token of this step's batch, in nats; of an objective that samples answers minus the
            mean reward. NaN or Inf ends the trial.
        grad_norm: Norm of the trial's whole gradient before clipping.
        learning_rate: The rate this step used.
        num_tokens: Tokens of the batch, prompts included.
        metrics: What an objective that samples answers measures besides (``reward``, ``entropy``, ...), by name.
        answers: Some of the answers that such a step trained on, to be read.
    """

    trial_id: int
    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    num_tokens: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    answers: tuple[ReadAnswer, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """One evaluation of one trial after ``step`` optimizer steps.

    Attributes:
        validation_loss: Mean loss per trained token over the evaluation rows, in nats.
        metrics: Further metrics by name (``exact_match`` in [0, 1], ...).
        num_tokens: Tokens that were evaluated, generated ones included.
        row_values: What each evaluation row has, in the order of the rows: under ``loss`` its summed loss, and what the
            task chooses by where the same pass measures it. Single precision, as it is recorded.
    """

    trial_id: int
    step: int
    validation_loss: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    num_tokens: int = 0
    row_values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrialFailed:
    """A trial could not go on for a reason that is not its loss (bad data, repeated errors)."""

    trial_id: int
    step: int
    message: str


TrialEvent = StepDone | Evaluated | TrialFailed
