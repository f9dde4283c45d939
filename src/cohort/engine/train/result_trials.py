"""Which trials the results of a run are made from; the best checkpoints of all others are spares."""

from __future__ import annotations

from collections.abc import Collection

from cohort.tuning.decisions import FAILED, Reason
from cohort.tuning.study import Study

__all__ = ["has_adapter_directory", "trials_of_results", "trials_to_forget"]


def has_adapter_directory(reason: Reason | None) -> bool:
    """Return whether a trial that ended for ``reason`` gets an adapter directory."""
    # a trial that lost a comparison or failed keeps its best checkpoint as state only, for `cohort export`
    return reason is None or not (reason.is_comparison or reason == FAILED)


def trials_of_results(study: Study, *, default_trial_id: int | None, num_finalists: int) -> frozenset[int]:
    """Return the trials whose best checkpoints results are made from, once all trials have ended.

    These are the ones with an adapter directory, those that may be compared at the end, the best one among them, and
    the one with the default hyperparameters, which is compared with them.
    """
    contenders = {best.trial_id for best in study.leaders()[: max(1, num_finalists)]} | {default_trial_id}
    return frozenset(
        trial_id
        for trial_id in study.trial_ids
        if trial_id in contenders or has_adapter_directory(study.reason(trial_id))
    )


def trials_to_forget(study: Study, *, needed: Collection[int], limit: int) -> frozenset[int]:
    """Return the trials that lost and whose best checkpoint is not among the best ``limit`` of such.

    A trial that is returned once is returned until the end: the best values of others only become better. ``needed`` is
    what :func:`trials_of_results` returns now.
    """
    lost = [best.trial_id for best in study.leaders() if best.trial_id not in needed]
    return frozenset(lost[limit:])
