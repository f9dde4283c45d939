"""An exit rule is asked: an error in its code, which may be another package's, names it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from cohort.core.errors import CohortError
from cohort.tuning.early_exit.rule import Rule, Verdict
from cohort.tuning.study_trial import StudyTrial

__all__ = ["AskedT", "ExitRuleError", "verdicts_of"]


AskedT = TypeVar("AskedT")


class ExitRuleError(CohortError):
    """An exit rule's own code raised an error. The run stops where it was and can be resumed."""


def verdicts_of(
    rule: Rule, ask: Callable[[AskedT], Sequence[Verdict]], about: AskedT, *, trial: StudyTrial
) -> Sequence[Verdict]:
    """Return what ``rule`` answers; an error in its code names it, since it may be another package's."""
    try:
        return ask(about)
    except CohortError:
        raise
    except Exception as error:
        raise ExitRuleError(
            f"the exit rule {rule.name!r} of {type(rule).__module__} failed at trial {trial.candidate.trial_id}, step "
            f"{trial.trajectory.num_steps}: {type(error).__name__}: {error}; correct the rule, then continue the run "
            "with `cohort resume RUN_DIR`"
        ) from error
