"""The main job: a task in, the best adapter out; and its continuation after any kind of stop."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from cohort.core.clock import Clock, SystemClock
from cohort.core.durable_files import write_text
from cohort.core.errors import Problem, RunStateError
from cohort.core.events import TrialEvent
from cohort.engine.checkpoints import latest_good_checkpoint, save_checkpoint
from cohort.engine.copied_runs import home_facts, settle_copy
from cohort.engine.database_copies import mend_database
from cohort.engine.evaluation import RunEvaluator
from cohort.engine.finishing import finish_run, is_complete
from cohort.engine.machine import free_memory_bytes
from cohort.engine.memory_watch import MemoryWatch
from cohort.engine.preparation import Preparation, objective_metric, prepare
from cohort.engine.progress import ProgressWatcher, RunProgress, SilentWatcher
from cohort.engine.progress_tracking import ProgressTracker
from cohort.engine.run_directory import RunDirectory
from cohort.engine.run_store import RunStore
from cohort.engine.run_store_reading import RunReader
from cohort.engine.run_store_records import JsonValue, LoggedEvent
from cohort.engine.run_task import load_run_task, place_facts
from cohort.engine.same_inputs import identity_facts, require_same_inputs, require_same_task, surroundings_warning
from cohort.engine.sizing import SizeWish
from cohort.engine.state_shelf import StateShelf
from cohort.engine.step_recording import StepRecorder
from cohort.engine.stopping import stopping_gently
from cohort.engine.supervisor import StopRequestedError, Supervisor, SupervisorSettings
from cohort.engine.task_file_model import TaskFile
from cohort.engine.thread_count import settle_thread_count
from cohort.engine.time_spent import Activity, TimeSpent
from cohort.engine.tracker_reporting import TrackerReporter
from cohort.engine.trial_planning import PlannedTrial
from cohort.integrations.trackers import TrackerSettings, open_trackers
from cohort.training.executor import Executor
from cohort.tuning.decisions import Decision
from cohort.tuning.study import Study

__all__ = ["RunOptions", "resume", "tune"]


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
    checkpoint_share: float = 0.05
    host_memory_bytes: int | None = None
    token_budget: int | None = None


def tune(
    task: TaskFile,
    run_directory: str | Path,
    *,
    watcher: ProgressWatcher | None = None,
    options: RunOptions | None = None,
    clock: Clock | None = None,
) -> None:
    """Train all trials of ``task``, stop the weak ones early, and leave the best adapter in ``run_directory/best``.

    Everything about the task is read and checked before the run directory is made.

    Raises:
        InputError: the task, its data, its model or the output directory is wrong.
        StorageFullError: the disk is full; :func:`resume` goes on once there is room.
        KeyboardInterrupt: interrupted (Ctrl-C or SIGTERM) at a step boundary, with everything saved.
    """
    watcher, options, clock = watcher or SilentWatcher(), options or RunOptions(), clock or SystemClock()
    occupied = RunDirectory.find_problem(run_directory)
    on_cpu = task.num_gpus == 0 or not torch.cuda.is_available()
    settle_thread_count(task.model_name_or_path, on_cpu=on_cpu)
    preparation = _prepare(
        task,
        watcher=watcher,
        clock=clock,
        wish=SizeWish(token_budget=options.token_budget),
        also=() if occupied is None else (occupied,),
    )
    directory = RunDirectory.create(run_directory)
    with directory.lock():
        directory.clean_up()
        write_text(directory.task_file, task.resolved_yaml())
        _begin(preparation, directory, watcher=watcher, options=options, clock=clock)


def resume(
    run_directory: str | Path,
    *,
    watcher: ProgressWatcher | None = None,
    options: RunOptions | None = None,
    clock: Clock | None = None,
    places: Sequence[str] = (),
) -> None:
    """Go on with a run from its last checkpoint; a finished one only gets what is missing of its results.

    Args:
        run_directory: Of the run, or a copy of it, also one that was taken while the run was going on.
        watcher: Told of progress.
        options: How the run is carried out.
        clock: Of the run.
        places: Command-line arguments that say where its inputs are now, e.g. ``["--dataset.train", "rows.jsonl"]``;
            without them they are looked for where they were, and at the same place relative to the run directory.

    Raises:
        InputError: there is no run, or the data, the model or the task is no longer what the run began with.
        RunStateError: another process is at it, or no state is left to go on from.
        KeyboardInterrupt: interrupted again, with everything saved.
    """
    watcher, options, clock = watcher or SilentWatcher(), options or RunOptions(), clock or SystemClock()
    directory = RunDirectory.open(run_directory)
    with directory.lock():
        directory.clean_up()
        mended = mend_database(directory) if directory.database.exists() or directory.checkpoints.exists() else None
        if mended is not None:
            watcher.note(f"warning: {mended}")
        if not directory.database.exists():
            _begin_again(directory, {}, watcher=watcher, options=options, clock=clock, places=places)
            return
        with RunReader.open(directory.database) as reader:
            facts = reader.facts()
        if mended is None and (settled := settle_copy(directory, facts)) is not None:
            watcher.note(f"warning: {settled}")
        with contextlib.closing(RunStore.resume(directory.database, clock=clock)) as store:
            facts = store.facts()
            if not store.checkpoints() and facts.get("has_begun") is None:
                store.close()
                directory.database.unlink()
                _begin_again(directory, facts, watcher=watcher, options=options, clock=clock, places=places)
                return
            if is_complete(store, directory=directory):
                return
            _continue(store, directory, watcher=watcher, options=options, clock=clock, places=places)


def _begin(
    preparation: Preparation, directory: RunDirectory, *, watcher: ProgressWatcher, options: RunOptions, clock: Clock
) -> None:
    """Carry out a run whose directory holds nothing but its task; call it with the lock held."""
    task = preparation.task
    with contextlib.closing(RunStore.create(directory.database, metric=objective_metric(task), clock=clock)) as store:
        store.add_trials([trial.record() for trial in preparation.proposals.first])
        names = {"task_name": directory.root.name, "run_id": uuid.uuid4().hex}
        places = {**place_facts(directory, task), **home_facts(directory)}
        store.set_facts({**preparation.facts, **identity_facts(preparation), **names, **places})
        shelf = StateShelf(
            directory,
            memory_budget_bytes=_host_budget(options),
            device_budget_bytes=preparation.sizes.device_shelf_bytes,
        )
        executor = preparation.build_executor()
        save_checkpoint(store, shelf, directory=directory, resident=())
        store.set_facts({"has_begun": True})
        _Run(preparation, executor, store, shelf, directory, watcher=watcher, clock=clock, options=options).go()


def _begin_again(
    directory: RunDirectory,
    facts: Mapping[str, JsonValue],
    *,
    watcher: ProgressWatcher,
    options: RunOptions,
    clock: Clock,
    places: Sequence[str],
) -> None:
    """Begin a run that was killed before its first checkpoint."""
    task = load_run_task(directory, facts=facts, places=places)
    preparation = _prepare(task, watcher=watcher, clock=clock, wish=SizeWish(token_budget=options.token_budget))
    write_text(directory.task_file, task.resolved_yaml())
    _begin(preparation, directory, watcher=watcher, options=options, clock=clock)


def _continue(
    store: RunStore,
    directory: RunDirectory,
    *,
    watcher: ProgressWatcher,
    options: RunOptions,
    clock: Clock,
    places: Sequence[str],
) -> None:
    facts = store.facts()
    _keep_thread_count(facts)
    task = load_run_task(directory, facts=facts, places=places)
    require_same_task(facts, task, path=directory.task_file)
    preparation = _prepare(task, watcher=watcher, clock=clock, wish=SizeWish.recorded(facts))
    require_same_inputs(facts, preparation)
    write_text(directory.task_file, task.resolved_yaml())
    store.set_facts({**place_facts(directory, task), **home_facts(directory)})
    if (warning := surroundings_warning(facts, preparation.facts)) is not None:
        watcher.note(f"warning: {warning}")
    shelf = StateShelf(
        directory,
        memory_budget_bytes=_host_budget(options),
        device_budget_bytes=preparation.sizes.device_shelf_bytes,
    )
    manifest, problems = latest_good_checkpoint(store, shelf, directory=directory)
    for problem in problems:
        watcher.note(f"warning: {problem}; going on from an earlier checkpoint")
    if manifest is None:
        raise RunStateError(
            f"no whole checkpoint is left in {directory.root}: {'; '.join(problems)}; if this is a copy of a run that "
            f"was going on, copy it again; else start again with `cohort tune {directory.task_file} -o NEW_DIR`"
        )
    store.truncate_after(manifest.position)
    store.set_facts({"state": "running"})
    executor = preparation.build_executor()
    run = _Run(preparation, executor, store, shelf, directory, watcher=watcher, clock=clock, options=options)
    run.replay()
    run.supervisor.restore(manifest)
    run.go()


class _Run:
    """The parts of one run, joined."""

    def __init__(
        self,
        preparation: Preparation,
        executor: Executor,
        store: RunStore,
        shelf: StateShelf,
        directory: RunDirectory,
        *,
        watcher: ProgressWatcher,
        clock: Clock,
        options: RunOptions,
    ) -> None:
        task = preparation.task
        self._preparation, self._executor, self._store = preparation, executor, store
        self._shelf, self._directory, self._watcher = shelf, directory, watcher
        early_exit = task.early_exit_settings()
        first = preparation.proposals.first
        self._specs = {trial.spec.trial_id: trial.spec for trial in first}
        self._study = Study([trial.candidate for trial in first], early_exit, metric=objective_metric(task))
        self._time_spent = TimeSpent(clock)
        self._steps = StepRecorder(preparation, specs=self._specs, time_spent=self._time_spent, clock=clock)
        self._evaluator = RunEvaluator(preparation, executor, time_spent=self._time_spent)
        self._tracker = ProgressTracker(
            watcher,
            study=self._study,
            trials=first,
            kept_share=early_exit.kept_share,
            elapsed_before=store.seconds,
            clock=clock,
        )
        facts = store.facts()
        names = {key: str(facts[key]) for key in ("task_name", "run_id")}
        trackers = open_trackers(task.report_to, settings=TrackerSettings(**names, directory=directory.root))
        self._reporter = TrackerReporter(trackers, trials=first, note=watcher.note)
        executor.make_room = shelf.leave_device
        self._memory = MemoryWatch(
            executor, preparation.memory, facts=facts, record=store.set_facts, note=watcher.note, clock=clock
        )
        self._stop = threading.Event()
        self.supervisor = Supervisor(
            study=self._study,
            executor=executor,
            specs=self._specs,
            evaluate=self._evaluator,
            store=store,
            shelf=shelf,
            directory=directory,
            settings=SupervisorSettings(
                capacity=preparation.sizes.capacity,
                mean_length=float(preparation.data.train.lengths.mean()),
                checkpoint_seconds=options.checkpoint_seconds,
                checkpoint_share=options.checkpoint_share,
            ),
            clock=clock,
            time_spent=self._time_spent,
            on_tick=self._took,
            stop_requested=self._stop.is_set,
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

    def go(self) -> None:
        """Train to the end and write the results.

        Raises:
            KeyboardInterrupt: asked to stop; everything is saved.
        """
        try:
            self._measure_base()
            with stopping_gently(self._stop):
                self.supervisor.run()
        except StopRequestedError:
            self._memory.record()
            self._store.set_facts({"state": "interrupted"})
            raise KeyboardInterrupt from None
        finally:
            self._reporter.close()
            if self._reporter.failures:
                self._store.set_facts({"tracker_failures": dict(self._reporter.failures)})
        self._memory.record()
        self._watcher.update(self._tracker.snapshot("writing the results"))
        finish_run(
            self._preparation,
            specs=self._specs,
            study=self._study,
            store=self._store,
            shelf=self._shelf,
            directory=self._directory,
        )
        self._steps.keep()

    def _took(self, events: Sequence[TrialEvent], decisions: Sequence[Decision]) -> None:
        """Tell all observers what was recorded, and put new trials in the place of those that ended."""
        self._memory.took()
        self._steps.took(events)
        self._reporter.took(events, decisions)
        self._tracker.took(events, decisions)
        trials = self._preparation.proposals.after(self._study)
        if trials:
            self._store.add_trials([trial.record() for trial in trials])
            self._take_in(trials)

    def _measure_base(self) -> None:
        if "base_metrics" in self._store.facts():
            return
        self._watcher.update(self._tracker.snapshot("measuring the base model"))
        rows, row_ids = self._preparation.data.validation, self._preparation.evaluation_rows
        with self._time_spent.on(Activity.EVALUATE):
            base = self._evaluator.measure_base(rows=rows, row_ids=row_ids)
        self._store.set_facts({"base_metrics": {"loss": base.validation_loss, **base.metrics}})


def _prepare(
    task: TaskFile, *, watcher: ProgressWatcher, clock: Clock, wish: SizeWish, also: Sequence[Problem] = ()
) -> Preparation:
    preparation = prepare(
        task, clock=clock, say=lambda phase: watcher.update(RunProgress(phase=phase)), wish=wish, also=also
    )
    facts = preparation.facts
    trials = f"{len(preparation.proposals.first)} trials{' at first' if task.search.sampler == 'tpe' else ''}"
    threads = f"{facts['threads']} thread{'' if facts['threads'] == 1 else 's'}"
    watcher.note(
        f"{trials} on {facts['device']}, {facts['precision']}, {threads}; products: {facts['backend']}; "
        f"attention: {facts['attention']}"
    )
    for note in preparation.notes:
        watcher.note(note)
    return preparation


def _host_budget(options: RunOptions) -> int:
    if options.host_memory_bytes is not None:
        return options.host_memory_bytes
    return free_memory_bytes(torch.device("cpu")) // 2


def _keep_thread_count(facts: Mapping[str, JsonValue]) -> None:
    """Thread count is part of a run's identity: sums over many numbers come out otherwise under another one."""
    recorded = facts.get("threads")
    if isinstance(recorded, int) and recorded != torch.get_num_threads():
        torch.set_num_threads(recorded)
