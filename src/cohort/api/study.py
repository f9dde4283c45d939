"""``study=``: an Optuna study that a user keeps, continued by a run and given its trials."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cohort.core.errors import CohortError, InputError, Problem
from cohort.engine.callbacks.callback_reports import TrialEndReport
from cohort.prepare.trials import objective_metric
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.tasks.loading import TaskFile, load_task
from cohort.tuning.samplers import sampler_kind
from cohort.tuning.samplers.optuna_study import StudyEntry, earlier_results, require_study, write_to_study

__all__ = ["KeptStudy"]


class KeptStudy:
    """A study and the run that continues it."""

    def __init__(self, study: Any, name: str, file: TaskFile, directory: RunDirectory) -> None:
        """Keep a study that was checked; :meth:`of` checks it."""
        self._study, self._name, self._file, self._directory = study, name, file, directory
        self._space = file.search_space()

    @classmethod
    def of(
        cls, study: Any, files: Mapping[str, TaskFile], directories: Mapping[str, Path], *, resumes: bool
    ) -> KeptStudy:
        """Return the study of the only task of ``files``, which begins with its results.

        Args:
            resumes: Whether a run that is in its directory goes on.

        Raises:
            InputError: there are several tasks, it is no study of Optuna, or one of another objective.
        """
        if len(files) > 1:
            hint = "Run each task by itself, with a study of its own."
            raise InputError(Problem(where="study", found=f"{len(files)} tasks", allowed="one task", hint=hint))
        ((name, file),) = files.items()
        require_study(study, metric=objective_metric(file))
        directory = RunDirectory(directories[name])
        if sampler_kind(file.search.sampler).learns:
            if resumes and directory.holds_run():
                # what a run began with is what it goes on with, or its proposals would be others
                found = load_task(directory.task_file).search.earlier_results
            else:
                found = earlier_results(study, file.search_space())
            search: Any = file.search
            file = file.model_copy(update={"search": search.model_copy(update={"earlier_results": found})})
        return cls(study, name, file, directory)

    @property
    def files(self) -> dict[str, TaskFile]:
        """The task as it runs, by its name."""
        return {self._name: self._file}

    def on_trial_end(self, _report: TrialEndReport) -> None:
        """Write the trials that have ended."""
        self.write()

    def write(self) -> None:
        """Write the trials that have ended and that the study does not have.

        Raises:
            CohortError: the study's storage refuses them.
        """
        with RunReader.open(self._directory.database) as reader, reader.snapshot():
            facts, trials = reader.facts(), reader.trials()
            evaluations = reader.log.evaluations()
        metric = facts.objective_metric
        curves: dict[int, dict[int, float]] = {}
        for found in evaluations:
            if (value := metric.read(found)) is not None:
                curves.setdefault(found.trial_id, {})[found.step] = value
        entries = [
            StudyEntry(
                trial_id=trial.trial_id,
                parameters=trial.parameters,
                value=trial.best_value,
                intermediate=curves.get(trial.trial_id, {}),
                notes={
                    "cohort_status": trial.status.value,
                    "cohort_reason": trial.reason,
                    "cohort_steps": trial.steps_done,
                    "cohort_directory": str(self._directory.root.resolve()),
                },
            )
            for trial in trials
            if trial.status.is_final
        ]
        try:
            write_to_study(self._study, entries, space=self._space, run_id=str(facts.run_id))
        except Exception as error:
            raise CohortError(
                f"the study could not be given the trials of {self._directory.root}: {type(error).__name__}: {error}; "
                "the run itself is complete up to here: call cohort.run with the study again"
            ) from error
