"""One task's run: study, supervisor, store and whoever watches, joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cohort.core.clock import Clock
from cohort.core.errors import RunStateError
from cohort.core.events import TrialEvent
from cohort.engine.memory.sizes import GRAPH_TOKENS
from cohort.engine.prepare.preparation import Preparation
from cohort.engine.prepare.trials import PlannedTrial, objective_metric
from cohort.engine.state.trial_states import TrialStateStore
from cohort.engine.train.evaluation import RunEvaluator
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.finish import finish_run
from cohort.engine.train.progress import ProgressWatcher
from cohort.engine.train.progress_tracker import ProgressTracker
from cohort.engine.train.step_costs import StepRecorder
from cohort.engine.train.supervisor import Supervisor, SupervisorSettings
from cohort.engine.train.time_spent import Activity, TimeSpent
from cohort.engine.train.tracker_reporting import TrackerReporter
from cohort.integrations.trackers import TrackerSettings, open_trackers
from cohort.runs.directory import RunDirectory
from cohort.runs.records import LoggedEvent
from cohort.runs.store import RunStore
from cohort.tuning.decisions import Decision
from cohort.tuning.study import Study

__all__ = ["RunOptions", "TaskRun"]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is carried out; none of it changes an adapter.

    Attributes:
        checkpoint_seconds: Least time between checkpoints.
        checkpoint_share: Most of the run's time that checkpoints may take; they become rarer where they take long.
        host_memory_bytes: Most host memory for states of parked trials, the rest goes to files; None: half of what is
            free at the start.
        token_budget: Most tokens of a micro-batch; chosen by device when None.
    """

    checkpoint_seconds: float = 60.0
    checkpoint_share: float = 0.015
    host_memory_bytes: int | None = None
    token_budget: int | None = None


class TaskRun:
    """The parts of one task's run, joined."""

    def __init__(
        self,
        preparation: Preparation,
        share: ExecutorShare,
        store: RunStore,
        state_store: TrialStateStore,
        directory: RunDirectory,
        *,
        watcher: ProgressWatcher,
        clock: Clock,
        options: RunOptions,
        arrival: int = 0,
        is_alone: bool = True,
    ) -> None:
        """Join the parts; nothing is trained yet.

        Args:
            preparation: Of the task.
            share: Its part of the executor.
            store: The run's record, with the facts of its beginning.
            state_store: Of the run.
            directory: Of the run.
            watcher: Told of progress.
            clock: Of the run.
            options: How the run is carried out.
            arrival: Place among the tasks that share the executor.
            is_alone: Whether it has the executor to itself, so that its steps tell what steps of its packs cost.
        """
        task = preparation.task
        self._preparation, self._store, self._share, self._is_alone = preparation, store, share, is_alone
        self._state_store, self._directory, self._watcher = state_store, directory, watcher
        early_exit, first = task.early_exit_settings(), preparation.proposals.first
        self._specs = {trial.spec.trial_id: trial.spec for trial in first}
        self._study = Study([trial.candidate for trial in first], early_exit, metric=objective_metric(task))
        self._time_spent = TimeSpent(clock)
        self._steps = StepRecorder(preparation, specs=self._specs, time_spent=self._time_spent, clock=clock)
        self._evaluator = RunEvaluator(preparation, share, time_spent=self._time_spent)
        self._tracker = ProgressTracker(
            watcher,
            study=self._study,
            trials=first,
            kept_share=early_exit.kept_share,
            elapsed_before=store.seconds,
            flat_tokens=GRAPH_TOKENS if preparation.machine.device.type == "cuda" else 0,
            time_spent=self._time_spent,
            clock=clock,
            recomputed_passes=share.recomputed_passes,
        )
        facts = store.facts()
        self._gpu_seconds_before = sum(s for name in Activity if isinstance(s := facts.get(name.value), int | float))
        names = {key: str(facts[key]) for key in ("task_name", "run_id")}
        trackers = open_trackers(task.report_to, settings=TrackerSettings(**names, directory=directory.root))
        self._reporter = TrackerReporter(trackers, trials=first, note=watcher.note)
        self.supervisor = Supervisor(
            study=self._study,
            executor=share,
            specs=self._specs,
            evaluate=self._evaluator,
            store=store,
            state_store=state_store,
            directory=directory,
            settings=SupervisorSettings(
                mean_length=float(preparation.data.train.lengths.mean()),
                priority=task.priority,
                arrival=arrival,
                are_trials_complete=lambda: preparation.proposals.is_complete,
                checkpoint_seconds=options.checkpoint_seconds,
                checkpoint_share=options.checkpoint_share,
            ),
            clock=clock,
            time_spent=self._time_spent,
            on_tick=self._took,
            note=watcher.note,
        )

    def replay(self) -> None:
        """Bring the study to where the log ends; recorded decisions are replayed, not decided again."""
        later = self._store.proposal_positions()
        for trial in self._preparation.proposals.first:
            later.pop(trial.spec.trial_id)
        events: list[TrialEvent] = []
        decisions: list[Decision] = []
        for entry in self._store.log():
            while later and entry.position > next(iter(later.values())):
                self._study.replay(events, recorded=decisions)
                events, decisions = [], []
                self._propose_again(later)
            if isinstance(entry, LoggedEvent):
                events.append(entry.event)
            else:
                decisions.append(entry.decision)
        self._study.replay(events, recorded=decisions)
        if later:
            self._propose_again(later)

    def _propose_again(self, later: dict[int, int]) -> None:
        """Propose what was proposed at this place of the log, and take it off ``later``."""
        trials = self._preparation.proposals.after(self._study)
        if [trial.spec.trial_id for trial in trials] != list(later)[: len(trials)] or not trials:
            raise RunStateError(
                f"trials {list(later)} were proposed, but the results lead to "
                f"{[trial.spec.trial_id for trial in trials]}; resume with the version that began the run"
            )
        for trial in trials:
            del later[trial.spec.trial_id]
        self._take_in(trials)

    def _take_in(self, trials: Sequence[PlannedTrial]) -> None:
        self._specs.update({trial.spec.trial_id: trial.spec for trial in trials})
        self._study.add(trial.candidate for trial in trials)
        self._tracker.add(trials)
        self._reporter.add(trials)

    def was_interrupted(self) -> None:
        """Record that the run was stopped with everything saved."""
        self._store.set_facts({"state": "interrupted"})

    def close_trackers(self) -> None:
        """Close what metrics are sent to, and record what failed of it."""
        self._reporter.close()
        if self._reporter.failures:
            self._store.set_facts({"tracker_failures": dict(self._reporter.failures)})

    def finish(self) -> None:
        """Write the results; all trials have ended.

        Raises:
            RunStateError: there is no best adapter, or all trials failed; the tables are written.
            StorageFullError: the disk is full; resuming the run writes what is missing.
        """
        self._watcher.update(self._tracker.snapshot("writing the results"))
        finish_run(
            self._preparation,
            specs=self._specs,
            study=self._study,
            store=self._store,
            state_store=self._state_store,
            directory=self._directory,
        )
        # a step that was recomputed takes longer than others of its pack
        if self._is_alone and not self._share.recomputed_passes():
            self._steps.keep()

    def _took(self, events: Sequence[TrialEvent], decisions: Sequence[Decision]) -> None:
        """Tell all observers what was recorded, and put new trials in the place of those that ended."""
        self._steps.took(events)
        self._reporter.took(events, decisions)
        self._tracker.took(events, decisions)
        spent = self._gpu_seconds_before + sum(self._time_spent.total(activity) for activity in Activity)
        proposals = self._preparation.proposals
        had_ended = proposals.ended_by_time is not None
        trials = proposals.after(self._study, gpu_seconds=spent)
        if proposals.ended_by_time is not None and not had_ended:
            self._store.set_facts({"search_ended": proposals.ended_by_time})
            self._watcher.note(proposals.ended_by_time)
        if trials:
            self._store.add_trials([trial.record() for trial in trials])
            self._take_in(trials)

    def measure_base(self) -> None:
        """Measure the frozen model, where that is not on record."""
        if "base_metrics" in self._store.facts():
            return
        self._watcher.update(self._tracker.snapshot("measuring the base model"))
        rows, row_ids = self._preparation.data.validation, self._preparation.evaluation_rows
        with self._time_spent.on(Activity.EVALUATE):
            base = self._evaluator.measure_base(rows=rows, row_ids=row_ids)
        self._store.set_facts({"base_metrics": {"loss": base.validation_loss, **base.metrics}})
