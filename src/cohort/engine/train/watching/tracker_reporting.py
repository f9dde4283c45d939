"""``report_to``: passes what a run records on to experiment trackers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cohort.core.events import Evaluated, StepDone, TrialEvent
from cohort.integrations.trackers import Trackers
from cohort.prepare.trials import PlannedTrial
from cohort.runs.results.comparison import Comparison
from cohort.tuning.decisions import Decision

__all__ = ["TrackerReporter"]


class TrackerReporter:
    """Registers all trials with the trackers and forwards each tick; a tracker that fails is dropped with a note."""

    def __init__(self, trackers: Trackers, *, trials: Sequence[PlannedTrial], note: Callable[[str], None]) -> None:
        """Make the first ``trials`` known; those of a resumed run are continued where they were."""
        self._trackers, self._note = trackers, note
        self._noted: set[str] = set()
        self.add(trials)

    def add(self, trials: Sequence[PlannedTrial]) -> None:
        """Make trials known that were proposed later."""
        for trial in trials:
            self._trackers.start_trial(trial.spec.trial_id, parameters=trial.configuration)
        self._note_failures()

    def took(self, events: Sequence[TrialEvent], decisions: Sequence[Decision]) -> None:
        """Pass on what one tick brought."""
        # events first: a decision may end the tracker's run
        for event in events:
            if isinstance(event, StepDone):
                self._trackers.log_step(event)
            elif isinstance(event, Evaluated):
                self._trackers.log_evaluation(event)
        for decision in decisions:
            self._trackers.log_decision(decision)
        self._note_failures()

    def compared(self, comparisons: Sequence[Comparison | None], *, steps_of: Callable[[int], int]) -> None:
        """Pass on what the end of the run measured of its best trials; ``steps_of`` are the steps a trial has done."""
        present = [comparison for comparison in comparisons if comparison is not None]
        contenders = [entry for comparison in present for entry in (*comparison.ranked, *comparison.others)]
        for trial_id in dict.fromkeys(entry.trial_id for entry in contenders):
            # the base model has no run of its own
            if trial_id is not None:
                numbers = [_scalars(comparison, trial_id) for comparison in present]
                merged = {name: value for scalars in numbers for name, value in scalars.items()}
                self._trackers.log_comparison(trial_id, merged, step=steps_of(trial_id))
        self._note_failures()

    def close(self) -> None:
        """Send what is queued."""
        self._trackers.close()
        self._note_failures()

    @property
    def failures(self) -> Mapping[str, str]:
        """What went wrong, by tracker."""
        return self._trackers.failures

    def _note_failures(self) -> None:
        # a failure stays in the mapping: it is noted once
        for name, error in self._trackers.failures.items():
            if name not in self._noted:
                self._noted.add(name)
                self._note(f"warning: {name} failed and is no longer used ({error}); the run continues")


def _scalars(comparison: Comparison, trial_id: int) -> dict[str, float]:
    """Return what the last comparison measured of a trial: ``finals/loss`` on validation rows, ``test/loss``."""
    found = comparison.of_trial(trial_id)
    prefix = "test" if comparison.split == "test" else "finals"
    return {} if found is None else {f"{prefix}/{name}": value.value for name, value in found.values.items()}
