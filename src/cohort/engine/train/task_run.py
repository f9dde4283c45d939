"""One task's run: study, supervisor, record and watchers, joined."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from cohort.core.errors import RunStateError, StorageFullError
from cohort.core.events import TrialEvent
from cohort.engine.callbacks.callback_caller import CallbackCaller
from cohort.engine.train.base_measurement import measure_base
from cohort.engine.train.early_weights import EarlyWeights
from cohort.engine.train.evaluation import RunEvaluator
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.finals import Finals
from cohort.engine.train.finish import finish_run
from cohort.engine.train.open_run import OpenRun
from cohort.engine.train.planned_course import PlannedCourse
from cohort.engine.train.requests.callback_requests import CallbackRequests
from cohort.engine.train.requests.requested_changes import RequestedChanges
from cohort.engine.train.requests.trial_control import TrialControl
from cohort.engine.train.result_trials import has_adapter_directory, trials_of_results, trials_to_forget
from cohort.engine.train.spare_writer import SpareWriter
from cohort.engine.train.supervisor import Supervisor
from cohort.engine.train.task_traits import TaskTraits
from cohort.engine.train.watching.comparison_notes import undecided_note
from cohort.engine.train.watching.progress_tracker import ProgressTracker
from cohort.engine.train.watching.step_costs import StepRecorder
from cohort.engine.train.watching.tracker_reporting import TrackerReporter
from cohort.engine.train.watching.work_recorder import WorkRecorder
from cohort.integrations.trackers import TrackerSettings, open_trackers
from cohort.memory.budget import FLAT_TOKENS
from cohort.prepare.preparation import Preparation
from cohort.prepare.task_study import study_of
from cohort.prepare.trials import PlannedTrial
from cohort.runs.facts import Activity, RunState
from cohort.runs.records import LoggedDecision, LoggedEvent
from cohort.runs.results.growing_tables import GrowingTables
from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.interventions import Intervention, intervention_of

__all__ = ["TaskRun"]

# what a search's budget of GPU time counts
_ON_GPU = (Activity.TRAIN, Activity.EVALUATE, Activity.GENERATE)


class TaskRun:
    """The parts of one task's run, joined.

    Attributes:
        run: Its directory, record and watcher.
        supervisor: Looks after its trials.
        control: Takes up what people ask of them.
    """

    def __init__(self, preparation: Preparation, share: ExecutorShare, run: OpenRun, *, arrival: int = 0) -> None:
        """Join the parts; ``arrival`` is the task's place among those that share the executor."""
        self._preparation, self._share, self.run = preparation, share, run
        task = preparation.task
        first = preparation.proposals.first
        self._specs = {trial.spec.trial_id: trial.spec for trial in first}
        self._trials = {trial.spec.trial_id: trial for trial in first}
        facts = run.store.reader.facts()
        self._study = study_of(preparation, metric=facts.objective_metric)
        self._steps = StepRecorder(preparation, run, specs=self._specs)
        self._tables = GrowingTables(run.directory, reader=run.store.reader, clock=run.clock)
        self._evaluator = RunEvaluator(preparation, share, time_spent=run.time_spent)
        self._tracker = ProgressTracker(
            run,
            study=self._study,
            trials=first,
            kept_share=task.early_exit_settings().kept_share(preparation.inputs.num_trials),
            # up to here a GPU replays recorded passes, which take as long with fewer tokens
            flat_tokens=FLAT_TOKENS if preparation.machine.device.type == "cuda" else 0,
            steps_in_windows=preparation.window_steps > 1,
            recomputed_passes=lambda: share.num_recomputed,
            work=lambda: share.work,
            trials_by_rank=share.trials_by_rank if preparation.group is None else lambda: None,
        )
        self._weights = EarlyWeights(preparation.inputs.layout, folder_of=run.directory.trial)
        self._work = WorkRecorder(run.store, lambda: share.work, windows=lambda: share.planned_windows)
        self._default_trial_id = facts.task.default_trial_id
        self._gpu_seconds_before = sum(facts.seconds.get(activity, 0.0) for activity in _ON_GPU)
        assert facts.task_name is not None, "a run that began has a name"
        assert facts.run_id is not None, "a run that began has an id"
        settings = TrackerSettings(task_name=facts.task_name, run_id=facts.run_id, directory=run.directory.root)
        trackers = open_trackers(task.report_to, settings=settings)
        self._reporter = TrackerReporter(trackers, trials=first, note=run.watcher.note)
        self.supervisor = Supervisor(
            run,
            study=self._study,
            share=share,
            specs=self._specs,
            evaluate=self._evaluator,
            traits=TaskTraits(
                mean_length=float(preparation.inputs.data.train.lengths.mean()),
                priority=task.priority,
                arrival=arrival,
                course=PlannedCourse(preparation, run, study=self._study, share=share, specs=self._specs),
                are_trials_complete=lambda: preparation.proposals.is_complete,
                trials_of_results=self._trials_of_results,
                trials_to_forget=self._trials_to_forget,
            ),
            on_tick=self._took,
        )
        self._changes = RequestedChanges(
            preparation, run, study=self._study, intervene=self.supervisor.intervene, take_in=self._take_in
        )
        self.control = TrialControl(
            run, carry_out=self._changes.carry_out, is_done=self._changes.is_done, save=self.supervisor.checkpoint
        )
        self._requests = CallbackRequests(run, study=self._study, trials=self._trials, submit=self.control.submit)
        self._callbacks = CallbackCaller(run.callbacks, self._requests)

    def _trials_of_results(self) -> frozenset[int]:
        return trials_of_results(
            self._study,
            default_trial_id=self._default_trial_id,
            num_finalists=self._preparation.task.evaluation_settings().finalists,
        )

    def _trials_to_forget(self) -> frozenset[int]:
        if (limit := self._preparation.task.save_total_limit) is None:
            return frozenset()
        return trials_to_forget(self._study, needed=self._trials_of_results(), limit=limit)

    def replay(self) -> None:
        """Bring the study to where the log ends; recorded decisions are replayed, not decided again."""
        log = self.run.store.reader.log
        later = log.proposal_positions()
        for trial in self._preparation.proposals.first:
            later.pop(trial.spec.trial_id)
        entries = log.entries()
        added = {
            entry.decision.trial_id: self._changes.planned_again(entry.decision.trial_id)
            for entry in entries
            if isinstance(entry, LoggedDecision) and entry.decision.kind is DecisionKind.ADD
        }
        for trial_id in added:
            del later[trial_id]
        events: list[TrialEvent | Intervention] = []
        decisions: list[Decision] = []
        # trials that were proposed while the run went on are proposed again where the log had them: the sampler must
        # have seen the same results, no more and no fewer
        for entry in entries:
            while later and entry.position > next(iter(later.values())):
                self._study.replay(events, recorded=decisions)
                events, decisions = [], []
                self._propose_again(later)
            if isinstance(entry, LoggedEvent):
                events.append(entry.event)
                continue
            if (intervention := intervention_of(entry.decision)) is not None:
                if intervention.kind is DecisionKind.ADD:
                    self._study.replay(events, recorded=decisions)
                    events, decisions = [], []
                    self._take_in([added[intervention.trial_id]])
                events.append(intervention)
            decisions.append(entry.decision)
        self._study.replay(events, recorded=decisions)
        if later:
            self._propose_again(later)
        self._callbacks.replayed(entries)
        self._settle_search_end(log.last_position())

    def _settle_search_end(self, position: int) -> None:
        """Let a search that a callback ended at ``position`` or before stay ended."""
        facts = self.run.store.reader.facts()
        if facts.search_ended_at is None:
            return
        if facts.search_ended_at <= position:
            self._preparation.proposals.end(facts.search_ended or "the search was ended by a callback")
        else:
            # the steps that led to it are repeated; a later resume finds a longer log, and would take it for valid
            self.run.store.set_facts(search_ended=None, search_ended_at=None)

    def between_steps(self) -> None:
        """Tell the caller's functions what happened, and carry out what they and other processes ask.

        Raises:
            CallbackError: one of the functions failed; what was asked before is carried out.
        """
        self._work.took()
        while True:
            try:
                self._call_back()
            finally:
                self.control.take_up()
            # what was carried out may have ended the last trial: the functions hear of it while they can still add one
            if not self._callbacks.has_news:
                return

    def _call_back(self) -> None:
        self._callbacks.deliver()
        if (ended := self._requests.settle()) is not None:
            self._preparation.proposals.end(ended)
            self.run.store.set_facts(search_ended=ended, search_ended_at=self.run.store.reader.log.last_position())

    def _propose_again(self, later: dict[int, int]) -> None:
        """Propose what was proposed at this place of the log, and take it off ``later``."""
        trials = self._preparation.proposals.after(self._study)
        # another version of a sampler may lead elsewhere, and its trials would not be those of the log
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
        self._trials.update({trial.spec.trial_id: trial for trial in trials})
        self._study.add(trial.candidate for trial in trials)
        self._tracker.add(trials)
        self._reporter.add(trials)

    def was_interrupted(self) -> None:
        """Record that the run was stopped with everything saved."""
        self._work.flush()
        self.run.store.set_facts(state=RunState.INTERRUPTED)
        self._tables.update(now=True)

    def abandon(self) -> None:
        """Let go of what would outlive a run that ends without its results."""
        self._weights.close()
        with contextlib.suppress(StorageFullError):
            # since the last checkpoint
            self.run.store.add_seconds(self.run.time_spent.take())
        self.close_trackers()

    def close_trackers(self) -> None:
        """Close the experiment trackers, and record which of them failed."""
        self._reporter.close()
        if self._reporter.failures:
            self.run.store.set_facts(tracker_failures=dict(self._reporter.failures))

    def finish(self, *, was_alone: bool, make_room: Callable[[], bool] = lambda: False) -> None:
        """Compare the best trials on all validation rows and write the results; all trials have ended.

        Args:
            was_alone: Whether no other task ever shared the executor, so that its steps measure its own packs.
            make_room: Takes a trial of another task out of the bank; returns False if there is none.

        Raises:
            RunStateError: there is no best adapter, or all trials failed; the tables are written.
            StorageFullError: the disk is full; resuming the run writes what is missing.
        """
        self.control.close()
        save = self.supervisor.complete_last_checkpoint
        try:
            with self._weights as weights:
                weights.begin_first(self._study, specs=self._specs, best_of=self.run.state_store.best)
                self._compare(make_room)
                self._work.flush()
                self.run.watcher.update(self._tracker.snapshot("writing the results"))
                finish_run(
                    self._preparation, self.run, specs=self._specs, study=self._study, weights=weights, save=save
                )
        except BaseException:
            # so that a resume repeats no step; a full disk is no reason to hide the error
            with contextlib.suppress(StorageFullError):
                save()
            raise
        # steps of several tasks or GPUs, and those with gradient checkpointing, are not what a plan expects of the pack
        has_one_rank = self._preparation.num_ranks == 1
        if was_alone and has_one_rank and not self._share.num_recomputed:
            self._steps.keep()

    def _compare(self, make_room: Callable[[], bool]) -> None:
        """Compare the best trials on all validation rows, and tell the trackers."""
        try:
            finals = Finals(
                self._preparation,
                self.run,
                share=self._share,
                evaluator=self._evaluator,
                specs=self._specs,
                make_room=make_room,
            )
            finals.hold(self._study, say=self._say)
            finals.test(self._study, say=self._say)
            facts = self.run.store.reader.facts()
            # again after a resume: trackers take equal numbers twice
            steps_of = lambda trial_id: self._study.trajectory(trial_id).num_steps  # noqa: E731
            self._reporter.compared([facts.finals, facts.test], steps_of=steps_of)
        finally:
            self.close_trackers()

    def write_spares(self) -> SpareWriter:
        """Begin to write what no result needs, once the results are written."""
        return SpareWriter(self.run, say=self._say)

    def _say(self, phase: str) -> None:
        self.run.watcher.update(self._tracker.snapshot(phase))

    def _took(self, events: Sequence[TrialEvent], decisions: Sequence[Decision]) -> None:
        """Pass on what was recorded, and propose new trials in the place of those that ended."""
        self._steps.took(events)
        self._reporter.took(events, decisions)
        self._tracker.took(events, decisions)
        self._callbacks.took(events, decisions)
        self._write_completed(decisions)
        if (undecided := undecided_note(decisions)) is not None:
            self.run.watcher.note(undecided)
        # seconds of earlier processes count: a stop does not renew the budget
        spent = self._gpu_seconds_before + sum(self.run.time_spent.total(activity) for activity in _ON_GPU)
        proposals = self._preparation.proposals
        had_ended = proposals.ended_by_time is not None
        trials = proposals.after(self._study, gpu_seconds=spent)
        if proposals.ended_by_time is not None and not had_ended:
            self.run.store.set_facts(search_ended=proposals.ended_by_time)
            self.run.watcher.note(proposals.ended_by_time)
        if trials:
            self.run.store.add_trials([trial.record() for trial in trials])
            self._take_in(trials)
        self._tables.update()

    def _write_completed(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if decision.kind is DecisionKind.FINISH and has_adapter_directory(decision.reason):
                kept = self.run.state_store.best(decision.trial_id)
                if kept is not None:
                    spec = self._specs[decision.trial_id].adapter
                    self._weights.begin_completed(decision.trial_id, spec=spec, weights_rD=kept[0])

    def measure_base(self) -> None:
        """Measure the frozen model, unless its metrics are on record.

        Raises:
            InputError: its loss is no finite number, so that no adapter of it could have one.
        """
        if self.run.store.reader.facts().base_metrics is None:
            self._say("measuring the base model")
            measure_base(self._preparation, self.run, evaluator=self._evaluator)
