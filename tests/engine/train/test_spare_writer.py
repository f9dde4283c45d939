"""What is said while best checkpoints of trials that lost follow the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.core.clock import ManualClock
from cohort.core.errors import StorageFullError
from cohort.engine.train.spare_writer import SpareWriter
from tests.engine.train.fakes import Notes, open_run, spec_of


class Behind:
    """Three files of a gigabyte, of which each look finds one more."""

    num_files, num_bytes = 3, 3 * 10**9

    def __init__(self) -> None:
        self.num_left, self.lost, self.error = 3, list[int](), None
        self.interrupts = False

    @property
    def bytes_left(self) -> int:
        return self.num_left * 10**9

    def take_written(self) -> bool:
        if self.interrupts:
            raise KeyboardInterrupt
        self.num_left -= 1
        return self.num_left == 0

    def give_up(self) -> None:
        self.lost, self.num_left = [3, 7], 0


@pytest.fixture
def writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[SpareWriter, Any, ManualClock, Notes]:
    clock, behind = ManualClock(), Behind()
    run = open_run(tmp_path / "run", [spec_of(0)], clock=clock)
    monkeypatch.setattr(run.state_store, "write_spares", lambda: behind)
    notes = Notes()
    object.__setattr__(run, "watcher", notes)
    return SpareWriter(run, say=notes.snapshots.append), behind, clock, notes


def test_nothing_is_said_of_what_takes_a_moment(writing: Any) -> None:
    spare_writer, _, _, notes = writing
    spare_writer.wait()
    assert (notes.notes, notes.snapshots) == ([], [])


def test_who_waits_is_told_where_the_results_are_and_how_long(writing: Any) -> None:
    spare_writer, _, clock, notes = writing
    for _ in range(2):
        clock.advance(3.0)
        assert not spare_writer.is_done()
    assert spare_writer.is_done()
    (note,) = notes.notes
    assert "the results are in" in note
    assert "the best checkpoints of 3 trials that lost follow (2.79 GiB)" in note
    assert notes.snapshots == [
        "writing the best checkpoints of trials that lost: 1 of 3, 6s left",
        "writing the best checkpoints of trials that lost: 2 of 3, 3s left",
    ]


def test_ctrl_c_leaves_out_the_rest_and_says_how_to_get_it(writing: Any) -> None:
    spare_writer, behind, _, notes = writing
    behind.interrupts = True
    assert not spare_writer.wait()
    # a second look gives no second note
    behind.interrupts, behind.num_left = False, 1
    assert spare_writer.is_done()
    (note,) = notes.notes
    assert note.startswith("interrupted; the results are whole, but the best checkpoint of trials 3, 7 is not on disk")
    assert "--trial N` trains it again" in note


def test_a_full_disk_is_a_warning(writing: Any) -> None:
    spare_writer, behind, _, notes = writing
    behind.error = StorageFullError("no space left")
    spare_writer.give_up()
    assert notes.notes[0].startswith("warning: no space left; the results are whole")
