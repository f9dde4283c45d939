"""Best checkpoints that no result needs: outside of the checkpoint, each whole or named as lost."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.checkpoints import state_writer
from cohort.checkpoints.spare_files import SpareFiles
from cohort.checkpoints.state_writer import StateWriter
from cohort.checkpoints.trial_states import TrialStateStore
from cohort.core.errors import RankLostError, StorageFullError
from cohort.ranks.divided_states.divided_rows import DividedRows
from cohort.runs.directory import RunDirectory
from cohort.training.checkpoint import read_weights, write_state
from tests.ranks.divided_states.test_divided_rows import Source, rows


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run")


def store_of(directory: RunDirectory) -> TrialStateStore:
    return TrialStateStore(directory, memory_budget_bytes=1 << 20)


def with_bests(directory: RunDirectory) -> TrialStateStore:
    """Four trials' best checkpoints, of which each holds its trial's number."""
    states = store_of(directory)
    for trial_id in range(4):
        states.put_best(trial_id, torch.full((2, 3), float(trial_id)), step=5)
    return states


def path_of(trial_id: int) -> str:
    return f"trials/{trial_id:04d}/best-000005.safetensors"


def until_done(behind: SpareFiles) -> None:
    while not behind.take_written():
        time.sleep(0.001)


def test_a_checkpoint_waits_for_what_it_names_and_the_rest_follows(directory: RunDirectory) -> None:
    states = with_bests(directory)
    files = states.flush(bests_of=[1])
    assert list(files) == [path_of(1)]
    assert states.spares() == [path_of(trial_id) for trial_id in (0, 2, 3)]
    assert not (directory.root / path_of(0)).exists()
    behind = states.write_spares()
    assert (behind.num_files, behind.num_bytes) == (3, 3 * 6 * 4)
    until_done(behind)
    assert (behind.num_left, behind.bytes_left, behind.lost) == (0, 0, [])
    for trial_id in range(4):
        weights, step = read_weights(directory.root / path_of(trial_id))
        assert (step, weights.unique().tolist()) == (5, [trial_id])
    # from the file: its memory is free
    assert states.best(2) is not None
    assert states.write_spares().num_files == 0
    states.remove_files_except(())
    assert len(list(directory.trials.glob("*/best-*"))) == 4


def test_what_was_written_ahead_is_named_if_a_checkpoint_has_it_and_written_once(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    write = write_state

    def counted(stream: Any, tensors: Any, **keys: Any) -> None:
        written.append(Path(stream.name))
        write(stream, tensors, **keys)

    monkeypatch.setattr(state_writer, "write_state", counted)
    states = with_bests(directory)
    for trial_id in (0, 1):
        states.write_ahead(trial_id)
    every = states.flush()
    assert list(every) == [path_of(trial_id) for trial_id in range(4)]
    assert states.flush(bests_of=[1]) == every
    assert states.spares() == []
    assert len(written) == 4


def test_those_that_follow_are_found_again_and_those_that_did_not_are_missing(directory: RunDirectory) -> None:
    states = with_bests(directory)
    files = states.flush(bests_of=[1])
    spares = states.spares()
    until_done(states.write_spares())
    (directory.root / path_of(3)).unlink()
    again = store_of(directory)
    again.restore(files, spares=spares)
    assert [again.best_step(trial_id) for trial_id in range(4)] == [5, 5, 5, None]
    # a later checkpoint may name what none named before: then it has a checksum, of the file that is there
    assert list(again.flush()) == [path_of(trial_id) for trial_id in range(3)]
    assert again.spares() == []


class Gate:
    """What a writer waits for with each file but the first.

    Attributes:
        reached: Set once it waits with a file, which has then begun.
        passed: Set once it may go on.
    """

    def __init__(self) -> None:
        self.reached, self.passed = threading.Event(), threading.Event()

    def wait_reached(self) -> None:
        assert self.reached.wait(60), "no file but the first was begun"

    def open_before(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``method`` that first lets the writer go on."""

        def opened(*values: Any, **keys: Any) -> Any:
            self.passed.set()
            return method(*values, **keys)

        return opened


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """One writer, and the gate that it waits at."""
    gate, write = Gate(), write_state

    class OneThread(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            # a file that is cancelled must not begin: only then may the one that has begun go on
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            gate.passed.set()
            super().shutdown(wait=wait)

    def waiting(stream: Any, tensors: Any, **keys: Any) -> None:
        if "/0000/" not in stream.name:
            gate.reached.set()
            assert gate.passed.wait(60)
        write(stream, tensors, **keys)

    monkeypatch.setattr(state_writer, "state_threads", lambda name: OneThread(max_workers=1, thread_name_prefix=name))
    monkeypatch.setattr(state_writer, "write_state", waiting)
    yield gate
    gate.passed.set()


def test_who_gives_up_has_what_was_begun_and_knows_what_is_lost(
    directory: RunDirectory, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = with_bests(directory)
    states.flush(bests_of=[])
    behind = states.write_spares()
    # the second is being written: giving up waits for it, and has taken back the others by then
    gate.wait_reached()
    behind.take_written()
    assert behind.num_left == 3
    monkeypatch.setattr(StateWriter, "finish", gate.open_before(StateWriter.finish))
    behind.give_up()
    assert behind.lost == [2, 3]
    assert [(directory.root / path_of(trial_id)).is_file() for trial_id in range(4)] == [True, True, False, False]


def test_what_is_written_ahead_lets_the_results_pass(
    directory: RunDirectory, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = with_bests(directory)
    for trial_id in (1, 2, 3):
        states.write_ahead(trial_id)
    gate.wait_reached()
    # it waits for the results once they are begun
    monkeypatch.setattr(StateWriter, "secure", gate.open_before(StateWriter.secure))
    assert list(states.flush(bests_of=[0])) == [path_of(0)]
    # one was begun before
    assert [(directory.root / path_of(trial_id)).is_file() for trial_id in range(4)] == [True, True, False, False]
    until_done(states.write_spares())


@pytest.mark.parametrize(("number", "text"), [(errno.ENOSPC, "no space left"), (errno.EIO, "Input/output error")])
def test_a_disk_that_is_full_or_fails_ends_the_writing_and_not_the_run(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, number: int, text: str
) -> None:
    def full(*_values: object, **_keys: object) -> None:
        raise OSError(number, os.strerror(number))

    states = with_bests(directory)
    states.flush(bests_of=[1])
    monkeypatch.setattr(state_writer, "write_state", full)
    behind = states.write_spares()
    until_done(behind)
    assert behind.lost == [0, 2, 3]
    assert text in str(behind.error)


def test_what_a_machine_that_stopped_has_torn_is_missing(directory: RunDirectory) -> None:
    states = with_bests(directory)
    files = states.flush(bests_of=[1])
    spares = states.spares()
    until_done(states.write_spares())
    # as long as it was, without what was not yet on the disk; and nothing at all
    (directory.root / path_of(0)).write_bytes(bytes((directory.root / path_of(0)).stat().st_size))
    (directory.root / path_of(2)).write_bytes(b"")
    again = store_of(directory)
    again.restore(files, spares=spares)
    assert [again.best_step(trial_id) for trial_id in range(4)] == [None, 5, None, 5]
    # no checkpoint takes what is torn for whole
    assert list(again.flush()) == [path_of(1), path_of(3)]


def test_what_a_full_disk_did_not_take_is_written_once_there_is_room(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_values: object, **_keys: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    states = with_bests(directory)
    with monkeypatch.context() as patch:
        patch.setattr(state_writer, "write_state", full)
        states.write_ahead(0)
        with pytest.raises(StorageFullError):
            states.flush(bests_of=[1])
    assert list(states.flush(bests_of=[1])) == [path_of(1)]
    behind = states.write_spares()
    until_done(behind)
    assert (behind.error, behind.lost) == (None, [])
    assert read_weights(directory.root / path_of(0))[1] == 5


def test_who_closes_has_what_was_begun_and_nothing_follows(directory: RunDirectory, gate: Gate) -> None:
    states = with_bests(directory)
    for trial_id in (1, 2, 3):
        states.write_ahead(trial_id)
    gate.wait_reached()
    states.close()
    assert [(directory.root / path_of(trial_id)).is_file() for trial_id in range(4)] == [False, True, False, False]


def test_parts_of_a_rank_that_is_lost_are_named_and_take_nothing_of_the_results(directory: RunDirectory) -> None:
    class Lost(Source):
        def whole(self, rows: DividedRows) -> torch.Tensor:
            raise RankLostError("rank 1 ended")

    states = store_of(directory)
    states.put_best(0, rows(Source(), [], number=6), step=5)
    states.put_best(1, rows(Lost(), [], number=7), step=5)
    behind = states.write_spares()
    # whole rows [4, 10] of each in a file, whatever the parts take
    assert behind.num_bytes == 2 * 160
    until_done(behind)
    assert behind.lost == [1]
    assert isinstance(behind.error, RankLostError)
    assert (directory.root / path_of(0)).exists()
    assert not (directory.root / path_of(1)).exists()
