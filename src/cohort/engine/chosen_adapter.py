"""Which adapter of a run is meant: the best one, or a kept trial's."""

from __future__ import annotations

from pathlib import Path

from cohort.core.errors import InputError, Problem
from cohort.engine.run_directory import RunDirectory

__all__ = ["chosen_adapter"]


def chosen_adapter(directory: RunDirectory, *, trial_id: int | None) -> Path:
    """Return the directory of the best adapter, or of trial ``trial_id``.

    Raises:
        InputError: there is no adapter yet, or the trial was not kept; those that were are listed.
    """
    if trial_id is None:
        if (directory.best / "adapter_config.json").is_file():
            return directory.best
        raise InputError(
            Problem(
                where=str(directory.root),
                found="a run without a best adapter yet",
                allowed="a run that has finished",
                mend=f"Finish it with `cohort resume {directory.root}`, or name a kept trial with --trial.",
            )
        )
    if trial_id >= 0 and (directory.trial(trial_id) / "adapter_config.json").is_file():
        return directory.trial(trial_id)
    kept = sorted(int(path.parent.name) for path in directory.trials.glob("[0-9]*/adapter_config.json"))
    raise InputError(
        Problem(
            where="--trial",
            found=f"{trial_id}, whose adapter was not kept",
            allowed=f"one of {', '.join(map(str, kept))}" if kept else "no trial's adapter is kept in this run",
            mend="Choose one of these, or leave --trial out for the best.",
        )
    )
