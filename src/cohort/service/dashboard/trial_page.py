"""One trial as its page shows it: its row, decisions about it, answers to read, and its configuration to copy."""

from __future__ import annotations

from typing import Any

from cohort.runs.reader import RunReader
from cohort.service.dashboard.followed_run import FollowedRun
from cohort.service.dashboard.plain_json import plain, rounded
from cohort.service.dashboard.rollout_view import answer_views
from cohort.service.dashboard.runs_folder import UnknownRunError
from cohort.tuning.early_exit import reason_of

__all__ = ["trial_page"]


def trial_page(followed: FollowedRun, trial_id: int) -> dict[str, Any]:
    """Return what the page of a trial shows.

    Raises:
        UnknownRunError: the run has no such trial.
        RunStateError: the run cannot be read.
    """
    moment = followed.look()
    with RunReader.open(followed.directory.database) as reader, reader.snapshot():
        decisions = reader.log.decisions(trial_id)
        evaluations = reader.log.evaluations(trial_id)
        answers = answer_views(reader, trial_id)
        trial = moment.trials.get(trial_id)
        if trial is None:
            raise UnknownRunError(f"there is no trial {trial_id} in this run; it has {len(moment.trials)}")
    adapter = followed.directory.trial(trial_id)
    found = {
        "trial": trial,
        "decisions": [
            {
                "seconds": rounded(entry.seconds),
                "step": entry.decision.step,
                "kind": entry.decision.kind.value,
                "reason": reason_of(str(entry.decision.reason)).label,
                "rule": entry.decision.rule,
                "numbers": {name: rounded(value) for name, value in entry.decision.numbers.items()},
                "message": entry.decision.message,
            }
            for entry in decisions
        ],
        "evaluations": [
            {
                "seconds": rounded(record.seconds),
                "step": record.step,
                "loss": rounded(record.validation_loss),
                "metrics": {name: rounded(value) for name, value in record.metrics.items()},
            }
            for record in evaluations
        ],
        "answers": answers,
        "stays": [stay for stay in moment.stays if stay[1] == trial_id],
        "folder": str(adapter) if adapter.is_dir() else "",
    }
    return dict(plain(found))
