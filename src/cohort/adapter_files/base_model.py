"""The base model of a run whose adapters are used: where it is now, and whether it is still the one they belong to.

An adapter on other weights gives fluent nonsense, and nothing else would tell. So the content hash that the run
recorded is compared before any weight is loaded.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from cohort.core.durable_files import write_text
from cohort.core.errors import CohortError, InputError, Problem
from cohort.core.source_location import Place
from cohort.models.checkpoint.stored_tensors import check_checkpoint
from cohort.models.source import find_local_model, find_model
from cohort.prepare.fingerprints import model_fingerprint
from cohort.runs.directory import RunDirectory
from cohort.runs.facts import RunFacts, RunState
from cohort.runs.reader import RunReader
from cohort.runs.store import RunStore
from cohort.runs.task_of_run import read_run_task
from cohort.tasks.loading import TaskFile

__all__ = ["RunBase", "find_base", "open_base", "record_base"]


@dataclass(frozen=True, kw_only=True)
class RunBase:
    """The base model of a run.

    Attributes:
        task: The run's, which names the model where it is now.
        directory: Its local files.
        facts: The run's.
        note: For the user, where a path that was given could not be recorded.
    """

    task: TaskFile
    directory: Path
    facts: RunFacts
    note: str | None = None

    @property
    def name(self) -> str:
        """Its hub id, or the path of its folder."""
        return self.task.model_name_or_path


def open_base(directory: RunDirectory, *, model: str | None = None) -> RunBase:
    """Return the base model of a run as :func:`find_base` does; a finished run records a place that is given."""
    with RunReader.open(directory.database) as reader:
        facts = reader.facts()
    base = find_base(directory, facts=facts, model=model)
    if model is None or base.name == facts.places.base_model:
        return base
    return replace(base, note=_try_to_record(directory, base))


def find_base(directory: RunDirectory, *, facts: RunFacts, model: str | None = None) -> RunBase:
    """Return the base model of a run, once its files have the content that the run began with.

    Args:
        facts: The run's.
        model: Where it is now, if not where the run has it.

    Raises:
        InputError: it is nowhere to be found, no model, or another one.
    """
    task = read_run_task(directory, facts=facts, model=model)
    base = RunBase(task=task, directory=find_model(task.model_name_or_path), facts=facts)
    _require_same(base, directory=directory)
    return base


def record_base(directory: RunDirectory, store: RunStore, base: RunBase) -> None:
    """Record where the base model of a run is now. The lock of the run must be held."""
    write_text(directory.task_file, base.task.resolved_yaml())
    store.set_facts(places=replace(base.facts.places, base_model=base.name))


def _try_to_record(directory: RunDirectory, base: RunBase) -> str | None:
    """Record the place where no process is in the way; return why it is not recorded."""
    not_kept = f"{base.name} is used this time, but not recorded as the place of the base model"
    if base.facts.state is not RunState.DONE:
        # a resume checks all inputs of a run and records their places together
        return f"{not_kept}: the run has not finished. `cohort resume {directory.root} --model_name_or_path` records it"
    try:
        with directory.lock(), closing(RunStore.resume(directory.database)) as store:
            record_base(directory, store, base)
    except (CohortError, OSError) as error:
        return f"{not_kept}: {error}"
    return None


def _require_same(base: RunBase, *, directory: RunDirectory) -> None:
    recorded = base.facts.inputs.model_hash
    if recorded is None or not (base.directory / "config.json").is_file():
        # without a hash only the shapes can tell; without a configuration it is no model
        check_checkpoint(base.directory)
        return
    found = model_fingerprint(base.directory)
    if found == recorded:
        return
    is_local = find_local_model(base.name) is not None
    fetched = "Fetch the revision that the run used" if not is_local else "Restore the files as they were"
    raise InputError(
        Problem(
            where=Place(key=("model_name_or_path",), text=base.name),
            found=f"other weights or another config.json than the run began with (SHA-256 {found[:12]})",
            allowed=f"the base model of {directory.root}: SHA-256 {recorded[:12]} over config.json and *.safetensors",
            hint=f"{fetched}, or give the path of an unchanged copy with --model_name_or_path PATH: its adapters "
            "are wrong on any other model.",
        )
    )
