"""Checkpoints of a run: the states of all trials at a step boundary, and the position in the log they belong to.

This file says how one is written and how many are kept; :mod:`cohort.engine.train.supervisor` says when.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cohort.checkpoints.stored_state import StoredState
from cohort.checkpoints.trial_states import TrialStateStore
from cohort.core.durable_files import write_bytes
from cohort.core.errors import RunStateError
from cohort.runs.database_copies import copy_database
from cohort.runs.directory import RunDirectory
from cohort.runs.store import RunStore

__all__ = [
    "BegunCheckpoint",
    "Manifest",
    "begin_checkpoint",
    "keep_last_checkpoint",
    "latest_good_checkpoint",
    "save_checkpoint",
]

# two, so that a damaged newest one leaves another to go back to
_KEPT = 2


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint consists of.

    Attributes:
        position: Log position; a run that resumes here drops what was logged later.
        resident: Trials in the bank, in slot order.
        files: SHA-256 of each state file by path within the run directory.
        vacated: Batch sizes of the trials that left in the last tick, which the next admission looks at.
        spares: Paths of best checkpoints that no result needs: written after this checkpoint, each whole by itself or
            not there.
    """

    position: int
    resident: tuple[int, ...]
    files: dict[str, str]
    vacated: tuple[int, ...] = ()
    spares: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), indent=1, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        """Read what :meth:`to_bytes` wrote.

        Raises:
            RunStateError: ``content`` is no manifest.
        """
        try:
            record = json.loads(content)
            return cls(
                position=int(record["position"]),
                resident=tuple(record["resident"]),
                vacated=tuple(record["vacated"]),
                files=dict(record["files"]),
                spares=tuple(record["spares"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise RunStateError(f"not a checkpoint manifest ({type(error).__name__}: {error})") from error


@dataclass(frozen=True, kw_only=True)
class BegunCheckpoint:
    """A checkpoint whose files are being written while trials train on.

    Attributes:
        position: Log position that it belongs to.
        seconds: The run's time there.
        resident, vacated: As in a manifest.
        states: What it names.
        spares: The best checkpoints that it leaves out.
    """

    position: int
    seconds: float
    resident: tuple[int, ...]
    vacated: tuple[int, ...]
    states: tuple[StoredState, ...]
    spares: tuple[str, ...]

    def complete(self, store: RunStore, state_store: TrialStateStore, *, directory: RunDirectory) -> Manifest:
        """Wait for its files, save it, and remove all checkpoints but the last two.

        Raises:
            StorageFullError: the disk is full; earlier checkpoints are untouched.
        """
        # The order makes a kill at any point harmless: first the state files, then the manifest that names them, then
        # its row in the store, then a copy of the store. Only then are old rows and files deleted.
        files = state_store.files_of(self.states)
        manifest = Manifest(
            position=self.position, resident=self.resident, vacated=self.vacated, files=files, spares=self.spares
        )
        content = manifest.to_bytes()
        name = f"checkpoints/{manifest.position:09d}.json"
        path = directory.root / name
        path.parent.mkdir(exist_ok=True)
        write_bytes(path, content)
        checksum = hashlib.sha256(content).hexdigest()
        store.record_checkpoint(name, checksum=checksum, position=self.position, seconds=self.seconds)
        # it may hold more than the checkpoint: a run that goes on from it drops what came later
        copy_database(directory, position=manifest.position)
        _remove_all_but(_KEPT, store, state_store, directory=directory)
        return manifest


def begin_checkpoint(
    store: RunStore,
    state_store: TrialStateStore,
    *,
    resident: Sequence[int],
    vacated: Sequence[int] = (),
    bests_of: Collection[int] | None = None,
    is_flushed: bool = True,
) -> BegunCheckpoint:
    """Begin to write what ``state_store`` holds as a checkpoint at the store's present position.

    Args:
        bests_of: Trials whose best checkpoints belong to it (None: all); those of others are its spares.
        is_flushed: False does not wait until its states are on the disk: a machine that stops may tear them, and a
            resume goes on from the checkpoint before.
    """
    states = state_store.start_files(bests_of=bests_of, is_flushed=is_flushed)
    named = {state.relative_path for state in states}
    return BegunCheckpoint(
        position=store.position,
        seconds=store.seconds,
        resident=tuple(resident),
        vacated=tuple(vacated),
        states=tuple(states),
        spares=tuple(path for path in state_store.spares() if path not in named),
    )


def save_checkpoint(
    store: RunStore,
    state_store: TrialStateStore,
    *,
    directory: RunDirectory,
    resident: Sequence[int],
    vacated: Sequence[int] = (),
    bests_of: Collection[int] | None = None,
) -> Manifest:
    """Save what ``state_store`` holds as a checkpoint; the arguments are those of :func:`begin_checkpoint`.

    Raises:
        StorageFullError: the disk is full; earlier checkpoints are untouched.
    """
    begun = begin_checkpoint(store, state_store, resident=resident, vacated=vacated, bests_of=bests_of)
    return begun.complete(store, state_store, directory=directory)


def keep_last_checkpoint(store: RunStore, state_store: TrialStateStore, *, directory: RunDirectory) -> None:
    """Remove what a run that has ended no longer needs: earlier checkpoints, and states that only they name.

    The last one stays: lost results are restored from its best checkpoints and its copy of the database.
    """
    _remove_all_but(1, store, state_store, directory=directory)


def _remove_all_but(count: int, store: RunStore, state_store: TrialStateStore, *, directory: RunDirectory) -> None:
    records = sorted(store.reader.checkpoints(), key=lambda record: record.position)
    # rows before files: a row whose file is gone would be taken for damage
    store.forget_checkpoints([record.position for record in records[:-count]])
    kept = {record.file_name for record in records[-count:]}
    # a manifest and its copy of the database have one name with two endings
    for old in directory.checkpoints.glob("[0-9]*"):
        if old.with_suffix(".json").relative_to(directory.root).as_posix() not in kept:
            old.unlink(missing_ok=True)
    state_store.remove_files_except(file for other in kept for file in _files_of(directory.root / other))


def latest_good_checkpoint(
    store: RunStore, state_store: TrialStateStore, *, directory: RunDirectory
) -> tuple[Manifest | None, list[str]]:
    """Restore the newest undamaged checkpoint to ``state_store``; return it, and what was wrong with newer ones.

    None means that the run has to start again from its first step: no checkpoint was made, or all are damaged.
    """
    problems = []
    for record in sorted(store.reader.checkpoints(), key=lambda record: record.position, reverse=True):
        path = directory.root / record.file_name
        try:
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() != record.checksum:
                raise RunStateError(f"{path} does not match its checksum; it is damaged")
            manifest = Manifest.from_bytes(content)
            # reads every file it names: a manifest alone says nothing of the states
            state_store.restore(manifest.files, spares=manifest.spares)
        except (OSError, RunStateError) as error:
            problems.append(str(error))
            continue
        return manifest, problems
    return None, problems


def _files_of(manifest: Path) -> list[str]:
    try:
        found = Manifest.from_bytes(manifest.read_bytes())
        return [*found.files, *found.spares]
    except (OSError, RunStateError):
        # a damaged manifest keeps no files: those of the other one stay
        return []
