"""Puts together what lets a server be killed: the journal, snapshots, and the recovery from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.core.errors import InputError, InUseError, Problem
from cohort.core.source_location import Place
from cohort.runs.lock import RunLock
from cohort.service.tinker.checkpoint_calls import CheckpointCalls
from cohort.service.tinker.checkpoints import CheckpointStore
from cohort.service.tinker.client_sessions import ClientSessions
from cohort.service.tinker.futures import Promises
from cohort.service.tinker.journal.journal import Journal
from cohort.service.tinker.journal.recent_calls import RecentCalls
from cohort.service.tinker.journal.snapshots import SnapshotStore
from cohort.service.tinker.model_calls import ModelCalls
from cohort.service.tinker.recovery import Recovery
from cohort.service.tinker.sampler_versions import SamplerVersions
from cohort.service.tinker.training_calls import TrainingCalls
from cohort.service.tinker.upkeep import Upkeep

__all__ = ["Keeping", "open_keeping"]

JOURNAL = ".journal"
"""Folder of the journal among those of checkpoints."""


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """What keeps a server's state.

    Attributes:
        lock: Held while the server writes to its folder.
        samples: What was asked for of versions; it is no part of the journal, as it changes nothing.
    """

    lock: RunLock
    promises: Promises
    journal: Journal
    samples: RecentCalls
    upkeep: Upkeep
    calls: ModelCalls
    recovery: Recovery


def open_keeping(
    folder: Path,
    *,
    training: TrainingCalls,
    checkpoints: CheckpointCalls,
    versions: SamplerVersions,
    sessions: ClientSessions,
    store: CheckpointStore,
    most_open: int,
    base: Mapping[str, Any],
) -> Keeping:
    """Return what keeps the state of a server below ``folder``, with what is there read.

    Args:
        most_open: Most calls that are taken and not answered.
        base: What the base model is known by.

    Raises:
        InputError: another server has the folder, a file in it is damaged, or its models are of another base.
        JournalFullError: the disk is full.
    """
    lock = _locked(folder / JOURNAL)
    promises, journal = Promises(), Journal(folder / JOURNAL)
    snapshots = SnapshotStore(folder / JOURNAL / "models")
    upkeep = Upkeep(
        training=training,
        sessions=sessions,
        promises=promises,
        journal=journal,
        snapshots=snapshots,
        checkpoints=store,
    )
    calls = ModelCalls(
        training=training,
        checkpoints=checkpoints,
        sessions=sessions,
        store=store,
        promises=promises,
        journal=journal,
        most_open=most_open,
    )
    recovery = Recovery(
        journal=journal,
        snapshots=snapshots,
        training=training,
        versions=versions,
        sessions=sessions,
        store=store,
        promises=promises,
        upkeep=upkeep,
    )
    sessions.on_used = calls.note_use
    trainer = training.trainer
    trainer.on_round, trainer.on_gap = journal.flush, calls.pass_gap
    training.on_drop, checkpoints.on_loaded, calls.on_ran = upkeep.dropped, upkeep.keep_loaded, upkeep.ran
    samples = RecentCalls(folder / JOURNAL / "samples")
    try:
        recovery.read(base)
        samples.open()
    except BaseException:
        lock.release()
        raise
    return Keeping(
        lock=lock, promises=promises, journal=journal, samples=samples, upkeep=upkeep, calls=calls, recovery=recovery
    )


def _locked(folder: Path) -> RunLock:
    folder.mkdir(parents=True, exist_ok=True)
    lock = RunLock(folder / "lock")
    try:
        lock.acquire()
    except InUseError:
        raise InputError(
            Problem(
                where=Place(option="command line --tinker"),
                found=f"{folder.parent}, in use by {lock.holder()}",
                allowed="a folder of one server",
                hint="Stop that server, or name another folder.",
            )
        ) from None
    return lock
