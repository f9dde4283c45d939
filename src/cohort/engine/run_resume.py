"""A run that is there goes on: locked, checked, prepared where it stands, and opened at its last whole checkpoint."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from cohort.adapter_files.base_model import find_base, record_base
from cohort.checkpoints.checkpoints import Manifest, latest_good_checkpoint
from cohort.core.durable_files import write_text
from cohort.core.errors import RunStateError
from cohort.engine.changed_rows import rewritten_note
from cohort.engine.copied_runs import places_now, settle_copy
from cohort.engine.finished_run import restore_results, restore_task_file
from cohort.engine.resume_checks import (
    changed_functions_warning,
    require_same_inputs,
    require_same_task,
    surroundings_warning,
)
from cohort.engine.run_start import begun_run, note_disk, open_state_store, prepare_task
from cohort.engine.train.finish import is_complete
from cohort.engine.train.open_run import OpenRun, RunConditions
from cohort.engine.train.watching.progress import ProgressWatcher
from cohort.prepare.base_model.loaded_backbone import LoadedBackbone
from cohort.prepare.preparation import Preparation
from cohort.runs.database_copies import repair_database
from cohort.runs.directory import RunDirectory
from cohort.runs.facts import RunFacts, RunState
from cohort.runs.reader import RunReader
from cohort.runs.records import LoggedDecision, LoggedEvent
from cohort.runs.requests.trial_requests import RequestSpool
from cohort.runs.store import RunStore
from cohort.runs.task_of_run import load_run_task, model_place
from cohort.tuning.interventions import USER

__all__ = ["ReadyRun", "ready_to_resume"]


@dataclass(frozen=True, kw_only=True)
class ReadyRun:
    """A run that can go on; its directory stays locked until the ``with`` block ends. Nothing is written before.

    Attributes:
        directory: The run's directory.
        preparation: Its task.
        facts: As recorded; None for a run that was killed before its first checkpoint, and begins again.
    """

    directory: RunDirectory
    preparation: Preparation
    facts: RunFacts | None
    _held: contextlib.ExitStack = field(repr=False)

    def __enter__(self) -> ReadyRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def with_preparation(self, preparation: Preparation) -> ReadyRun:
        """Return the run with a preparation for an executor that is there; this one is not to be used after that."""
        return replace(self, preparation=preparation)

    @contextlib.contextmanager
    def opened(self, conditions: RunConditions) -> Iterator[tuple[OpenRun, Manifest | None]]:
        """Open the run within, at the checkpoint that it goes on from; None for one that begins again.

        Raises:
            RunStateError: no checkpoint is left.
        """
        # as it is understood now: a run that was moved may have its model and its rows at other places
        write_text(self.directory.task_file, self.preparation.task.resolved_yaml())
        if self.facts is None:
            with begun_run(self.preparation, self.directory, conditions) as run:
                yield run, None
            return
        note_disk(self.preparation, self.directory, conditions)
        states = open_state_store(self.preparation, self.directory, conditions)
        with (
            contextlib.closing(RunStore.resume(self.directory.database, clock=conditions.clock)) as store,
            contextlib.closing(states),
        ):
            run = conditions.opened(self.directory, store=store, state_store=states)
            self._note_changes(store, self.facts, watcher=run.watcher)
            checkpoint = _last_checkpoint(run)
            # steps after it are trained again, to the same bits
            dropped = store.truncate_after(checkpoint.position)
            if dropped:
                # they were measured on states that are trained again, and on a GPU to other bits
                store.set_facts(finals=None, test=None, best_trial_id=None, default_metrics=None)
            for note in _undone(dropped, directory=self.directory):
                run.watcher.note(f"warning: {note}")
            store.set_facts(state=RunState.RUNNING)
            yield run, checkpoint

    def _note_changes(self, store: RunStore, facts: RunFacts, *, watcher: ProgressWatcher) -> None:
        """Record where the inputs are now, and say what around the run is no longer as it was."""
        now = self.preparation.facts
        store.set_facts(places=places_now(self.directory, self.preparation.task))
        if (rewritten := rewritten_note(facts.inputs, now.inputs)) is not None:
            watcher.note(rewritten)
        if (warning := surroundings_warning(facts.machine, now.machine)) is not None:
            watcher.note(f"warning: {warning}")
        if (warning := changed_functions_warning(facts.inputs, now.inputs)) is not None:
            watcher.note(f"warning: {warning}")


def ready_to_resume(
    run_directory: str | Path,
    conditions: RunConditions,
    *,
    places: Sequence[str] = (),
    backbone: LoadedBackbone | None = None,
    is_finished: bool = False,
) -> ReadyRun | None:
    """Lock a run and check that it still has what it began with; None where nothing is left to do.

    Args:
        places: As for :func:`cohort.engine.tune.resume`; a finished run records where its base model is.
        backbone: The same base model, where it is loaded already.
        is_finished: The run has ended, and something of it is to be trained again: nothing of it is written here.

    Raises:
        InputError: there is no run, or the data, the model or the task is no longer what the run began with.
        RunStateError: another process holds the run.
    """
    directory, watcher, clock = RunDirectory.open(run_directory), conditions.watcher, conditions.clock
    with contextlib.ExitStack() as held:
        held.enter_context(directory.lock())
        directory.clean_up()
        if (repaired := _repair(directory)) is not None:
            watcher.note(f"warning: {repaired}")
        facts, begun = RunFacts(), None
        if directory.database.exists():
            with contextlib.closing(RunStore.resume(directory.database, clock=clock)) as store:
                facts = store.reader.facts()
                # asked of the checkpoints, as each has a copy of the record that may take the record's place
                if store.reader.checkpoints():
                    if (restored := restore_task_file(directory, facts)) is not None:
                        watcher.note(restored)
                    if facts.are_results_written and not is_finished:
                        restore_results(store, directory, watcher=watcher)
                    if not is_finished and is_complete(store, directory=directory):
                        if places:
                            _record_place(store, directory, facts=facts, places=places)
                        return None
                    begun = facts
            # trials on record without a checkpoint would be proposed a second time
            if begun is None:
                # copies of it without a row would be taken for what the next start has lost
                shutil.rmtree(directory.checkpoints, ignore_errors=True)
                directory.database.unlink(missing_ok=True)
        task = load_run_task(directory, facts=facts, places=places)
        if begun is not None:
            document = begun.task.document or {}
            require_same_task(document, task, path=directory.task_file, machine=begun.machine)
        # one that was killed before its first checkpoint has trained nothing, so it begins again
        preparation = prepare_task(task, conditions, backbone=backbone, begun=begun)
        if begun is not None:
            # nothing is written before all checks: a refused resume leaves the run as it was
            require_same_inputs(begun, preparation)
        # the lock goes with what is returned: nothing else may touch the run until it has been opened
        return ReadyRun(directory=directory, preparation=preparation, facts=begun, _held=held.pop_all())


def _record_place(store: RunStore, directory: RunDirectory, *, facts: RunFacts, places: Sequence[str]) -> None:
    """Record where the base model of a finished run is now; its rows are needed no more.

    Raises:
        InputError: something else is set, or the model there is another one.
    """
    model = model_place(places, directory=directory)
    record_base(directory, store, find_base(directory, facts=facts, model=model))


def _repair(directory: RunDirectory) -> str | None:
    """Replace a database that cannot be used by that of the last whole checkpoint; return what was done."""
    if not (directory.database.exists() or directory.checkpoints.exists()):
        return None
    if (repaired := repair_database(directory)) is not None or not directory.database.exists():
        return repaired
    with RunReader.open(directory.database) as reader:
        facts = reader.facts()
    # a database that was copied while it was written may be torn without showing it
    return settle_copy(directory, facts)


def _undone(dropped: Sequence[LoggedEvent | LoggedDecision], *, directory: RunDirectory) -> list[str]:
    """Return what people did to trials that is after the checkpoint, and that nothing repeats.

    A request is answered once it is in a checkpoint, so this is only after damage, or what a callback had asked.
    """
    spool = RequestSpool(directory.requests)
    # a request that still waits is carried out again by itself
    waiting = {request.signature for name in spool.waiting() if (request := spool.read(name)) is not None}
    return [
        f"trial {entry.decision.trial_id}: {entry.decision.reason} ({entry.decision.message}) came after the "
        "checkpoint that this run continues from; a callback asks again by itself, a person has to"
        for entry in dropped
        if isinstance(entry, LoggedDecision) and entry.decision.rule == USER and entry.decision.message not in waiting
    ]


def _last_checkpoint(run: OpenRun) -> Manifest:
    """Put the last whole checkpoint on the state store and return it.

    Raises:
        RunStateError: none is left.
    """
    manifest, problems = latest_good_checkpoint(run.store, run.state_store, directory=run.directory)
    for problem in problems:
        run.watcher.note(f"warning: {problem}; continuing from an earlier checkpoint")
    if manifest is None:
        raise RunStateError(
            f"no complete checkpoint is left in {run.directory.root}: {'; '.join(problems)}; if this is a copy of a "
            "run that was training, copy it again; otherwise start again with "
            f"`cohort tune {run.directory.task_file} -o NEW_DIR`"
        )
    return manifest
