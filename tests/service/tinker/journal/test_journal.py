"""What is appended is read after a restart, as long as no snapshot has it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cohort.service.tinker.journal.journal import Journal, JournalFullError, JournalLostError
from cohort.service.tinker.journal.records import Record


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], tuple[Journal, list[Record]]]]:
    """Return a journal of the same folder each time it is called, with what was in it."""
    made: list[Journal] = []

    def open_again() -> tuple[Journal, list[Record]]:
        if made:
            made[-1].close()
        made.append(Journal(tmp_path, segment_bytes=200))
        found = list(made[-1].read())
        made[-1].begin({"begun": len(made)})
        return made[-1], found

    yield open_again
    made[-1].close()


def a_call(model: str, number: int) -> Record:
    return Record(kind="call", about={"model": model, "number": number}, body=b"x" * 50)


def test_a_restart_reads_what_was_written(opened: Any) -> None:
    journal, found = opened()
    assert found == []
    position = journal.append(a_call("m", 1))
    journal.flushed(position).result(5)
    assert journal.flushed(position).done()
    _, found = opened()
    assert found == [Record(kind="segment", about={"begun": 1}), a_call("m", 1)]


def test_a_torn_end_is_cut_off(opened: Any, tmp_path: Path) -> None:
    journal, _ = opened()
    journal.append(a_call("m", 1))
    journal.append(a_call("m", 2))
    path = tmp_path / "000001.journal"
    os.truncate(path, path.stat().st_size - 3)
    # the segment is no longer the last one after this restart, and may not be torn then
    assert opened()[1][1:] == [a_call("m", 1)]
    assert opened()[1][1:2] == [a_call("m", 1)]


def test_a_segment_is_on_the_disk_before_there_is_a_next_one(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _ = opened()
    journal.append(a_call("m", 1))
    there: list[list[str]] = []
    flush = os.fdatasync

    def seen(file: int) -> None:
        there.append(sorted(path.name for path in tmp_path.iterdir()))
        flush(file)

    monkeypatch.setattr(os, "fdatasync", seen)
    journal.begin({"begun": 2})
    assert there
    assert all(names == ["000001.journal"] for names in there)
    monkeypatch.undo()
    # what a killed process wrote may be in memory alone, and what is cut off may still be on the disk
    os.truncate(tmp_path / "000002.journal", (tmp_path / "000002.journal").stat().st_size - 3)
    synced: list[str] = []
    sync = os.fsync

    def noted(file: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{file}")))
        sync(file)

    monkeypatch.setattr(os, "fsync", noted)
    opened()
    assert synced[:3] == ["000001.journal", "000002.journal", "000003.journal"]


def test_no_segment_follows_one_that_the_disk_did_not_keep(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _ = opened()
    journal.append(a_call("m", 1))

    def lost(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", lost)
        with pytest.raises(JournalLostError, match="restart the server"):
            journal.begin({})
    assert [path.name for path in tmp_path.iterdir()] == ["000001.journal"]
    assert opened()[1][1:] == [a_call("m", 1)]


def test_a_segment_that_was_begun_in_part_hides_no_torn_end(opened: Any, tmp_path: Path) -> None:
    journal, _ = opened()
    journal.append(a_call("m", 1))
    with (tmp_path / "000001.journal").open("ab") as file:
        file.write(b"\x93cjr torn")
    (tmp_path / "000002.journal").write_bytes(b"\x93cj")
    for _ in range(2):
        assert opened()[1][1:2] == [a_call("m", 1)]


def test_old_segments_go_once_every_call_in_them_is_in_a_snapshot(opened: Any) -> None:
    journal, _ = opened()
    journal.append(a_call("a", 1))
    journal.append(a_call("b", 1))
    journal.append(a_call("a", 2))
    assert journal.is_full
    journal.begin({})
    assert not journal.is_full
    # that a call of a model that is gone has failed keeps no segment
    journal.append(Record(kind="ended", about={"model": "gone", "number": 1}))
    journal.append(a_call("a", 3))
    assert journal.behind() == {"a", "b"}
    journal.settled("a", 1)
    journal.drop_settled()
    assert (journal.num_segments, journal.behind()) == (2, {"a", "b"})
    journal.settled("a", 2)
    journal.settled("b", None)
    journal.drop_settled()
    assert (journal.num_segments, journal.behind()) == (1, set())
    _, found = opened()
    assert [record.about.get("number") for record in found] == [None, 1, 3]


def test_a_full_disk_takes_nothing_in_part(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, _ = opened()
    write, left = os.write, [30]

    def short(file: int, content: Any) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0], taken = 0, left[0]
        return write(file, content[:taken])

    monkeypatch.setattr(os, "write", short)
    with pytest.raises(JournalFullError, match=r"no call is taken: .*No space left on device"):
        journal.append(a_call("m", 1))
    with pytest.raises(JournalFullError):
        journal.begin({})
    monkeypatch.undo()
    journal.append(a_call("m", 2))
    assert opened()[1][1:] == [a_call("m", 2)]


def test_a_closed_journal_takes_nothing(opened: Any) -> None:
    journal, _ = opened()
    journal.close()
    with pytest.raises(JournalLostError, match="is closed"):
        journal.append(a_call("m", 1))


def test_answers_wait_while_no_more_files_can_be_open(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, _ = opened()
    duplicate = os.dup
    refused: list[int] = []

    def refusing(file: int) -> int:
        if not refused:
            refused.append(file)
            raise OSError(errno.EMFILE, "Too many open files")
        return duplicate(file)

    monkeypatch.setattr(os, "dup", refusing)
    journal.flushed(journal.append(a_call("m", 1))).result(timeout=30)
    assert refused


def test_a_disk_that_loses_what_it_took_leaves_answers_open(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, _ = opened()

    def failing(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", failing)
    kept = journal.flushed(journal.append(a_call("m", 1)))
    journal._flusher.join(5)
    assert not kept.done()
    with pytest.raises(JournalLostError, match="has not kept what was written"):
        journal.append(a_call("m", 2))
