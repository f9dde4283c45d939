"""What a run's record says since it was last read, in the words of a job's events."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cohort.runs.reader import RunReader
from cohort.runs.records import EvaluationRecord
from cohort.tuning.decisions import Decision, DecisionKind

__all__ = ["News", "read_news"]

# of a single trial, this many steps are reported at most; of a sweep, evaluations alone
_MOST_STEPS_TOLD = 100
# beyond this many trials only what is better than before is reported
_MOST_TRIALS_TOLD = 40


@dataclass(frozen=True, kw_only=True)
class News:
    """Something that happened to a run.

    Attributes:
        position: Its place in the run's log: what has been told once is not told again.
        key: What it is about; a node that trains the job again, to the same bits, has the same.
        is_metrics: Numbers, for programs; else a message, for people.
        level: ``info`` or ``warn``.
    """

    position: int
    key: str
    message: str
    data: Mapping[str, Any]
    is_metrics: bool = False
    level: str = "info"


def read_news(reader: RunReader, *, after: int) -> list[News]:
    """Return what happened after a position of the log, in order."""
    with reader.snapshot():
        planned = reader.planned_steps()
        if not planned:
            return []
        losses: dict[tuple[int, int], float] = {}
        news: list[News] = []
        for position, _, trial_id, step, loss, tokens in reader.log.steps_after(after):
            losses[trial_id, step] = loss
            if len(planned) == 1 and _is_told(step, of=planned[trial_id]):
                news.append(_step(position, step=step, loss=loss, tokens=tokens, total=planned[trial_id]))
        evaluations = reader.log.evaluations_after(after)
        decisions = [entry for entry in reader.log.decisions() if entry.position > after]
    tells_all = len(planned) <= _MOST_TRIALS_TOLD
    if tells_all:
        news += [_evaluation(each, planned[each.trial_id], losses, single=len(planned) == 1) for each in evaluations]
    for entry in decisions:
        news += _decision(entry.position, entry.decision, tells_all=tells_all, single=len(planned) == 1)
    return sorted(news, key=lambda each: each.position)


def _is_told(step: int, *, of: int) -> bool:
    return step % max(1, -(-of // _MOST_STEPS_TOLD)) == 0 or step == of


def _finite(value: float) -> float | None:
    # JSON has no NaN
    return value if math.isfinite(value) else None


def _step(position: int, *, step: int, loss: float, tokens: int, total: int) -> News:
    data = {"step": step, "total_steps": total, "train_loss": _finite(loss), "num_tokens": tokens}
    text = f"Step {step}/{total}: training loss={loss:.4g}"
    return News(position=position, key=f"step {step}", message=text, data=data, is_metrics=True)


def _evaluation(found: EvaluationRecord, total: int, losses: Mapping[tuple[int, int], float], *, single: bool) -> News:
    data: dict[str, Any] = {"step": found.step, "total_steps": total, "valid_loss": _finite(found.validation_loss)}
    if (loss := losses.get((found.trial_id, found.step))) is not None:
        data["train_loss"] = _finite(loss)
    data |= {name: _finite(value) for name, value in found.metrics.items()}
    text = f"tep {found.step}/{total}: validation loss={found.validation_loss:.4g}"
    if not single:
        data["trial"] = found.trial_id
    return News(
        position=found.position,
        key=f"evaluation {found.trial_id} {found.step}",
        message=f"S{text}" if single else f"Trial {found.trial_id}, s{text}",
        data=data,
        is_metrics=True,
    )


def _decision(position: int, decision: Decision, *, tells_all: bool, single: bool) -> Iterator[News]:
    if single or not tells_all:
        return
    data = {"trial": decision.trial_id, "step": decision.step}
    key = f"{decision.kind.value} {decision.trial_id} {decision.step} {decision.reason}"
    if decision.kind is DecisionKind.STOP:
        is_failure = bool(decision.message) and decision.reason == "failed"
        text = f"Trial {decision.trial_id} ended early at step {decision.step}: {decision.reason}"
        yield News(position=position, key=key, message=text, data=data, level="warn" if is_failure else "info")
    elif decision.kind is DecisionKind.FINISH:
        text = f"Trial {decision.trial_id} completed its {decision.step} steps"
        yield News(position=position, key=key, message=text, data=data)
