"""The journal: calls are in it before they are acknowledged, and on the disk before their answers are told.

It is a row of segments. Each begins with what the server knew of its sessions, so that the oldest can be dropped once
every call in it is part of its model's snapshot.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cohort.core.durable_files import flush_to_disk
from cohort.core.errors import CohortError
from cohort.service.tinker.journal.records import Record, begins_whole, framed, read_records

__all__ = ["Journal", "JournalFullError", "JournalLostError"]

_log = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20
BEGIN = "segment"
_PATIENCE_SECONDS = 0.25
_KEPT_FOR_SNAPSHOTS = ("call", "skip")


class JournalFullError(CohortError):
    """There is no room to write a call down, so it is not taken."""


class JournalLostError(CohortError):
    """The disk has not kept what was written; the server takes no more calls."""


@dataclass(kw_only=True, eq=False)
class _Segment:
    """A file of the journal.

    Attributes:
        last_numbers: By model, the last call that is in it and not yet in a snapshot of the model.
    """

    path: Path
    last_numbers: dict[str, int] = field(default_factory=dict)


class Journal:
    """Records in files ``000001.journal``, ``000002.journal`` and so on of a folder."""

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Write below ``folder``; :meth:`begin` comes first.

        Args:
            segment_bytes: A segment of so many bytes is full.
        """
        self.folder, self._segment_bytes = folder, segment_bytes
        self._segments: list[_Segment] = []
        self._file, self._size = -1, 0
        self._lock = threading.Lock()
        self._written = self._asked = self._flushed = 0
        self._waiting: list[tuple[int, Future[None]]] = []
        self._wanted = threading.Condition(self._lock)
        self._lost: str | None = None
        self._is_closing = False
        self._flusher = threading.Thread(target=self._flush_on_demand, name="cohort-journal", daemon=True)

    def read(self) -> Iterator[Record]:
        """Yield what is in the segments, the oldest first, and cut a torn end off.

        Raises:
            InputError: a segment is damaged.
        """
        paths = sorted(self.folder.glob("*.journal"))
        contents = [path.read_bytes() for path in paths]
        # one that was begun and has no record yet is not what was written last
        num_torn = next((n for n, content in enumerate(reversed(contents)) if begins_whole(content)), len(paths))
        for place, (path, content) in enumerate(zip(paths, contents, strict=True)):
            segment, whole, is_last = _Segment(path=path), 0, place >= len(paths) - 1 - num_torn
            for record, end in read_records(content, name=str(path), is_last=is_last):
                whole = end
                self._note(segment, record)
                yield record
            _settle(path, whole)
            self._segments.append(segment)

    def begin(self, state: dict[str, Any]) -> None:
        """Start a segment, which begins with ``state``.

        Raises:
            JournalFullError: the disk is full; the segment before stays the one that is written.
            JournalLostError: the disk did not keep what is in the segment before.
        """
        path = self.folder / f"{self._next_number():06d}.journal"
        content = framed(Record(kind=BEGIN, about=state))
        before = self._file
        if before >= 0:
            # most of it now, while others write
            self._flush_file(before)
        with self._lock:
            # before there is a next one: only the last segment may have a torn end when the power fails
            if before >= 0 and not self._flush_file(before):
                raise JournalLostError(self._lost)
            file = self._created(path, content)
            # what is flushed from here on is the new file
            self._file, self._size = file, len(content)
            self._segments.append(_Segment(path=path))
        if before >= 0:
            os.close(before)
        if not self._flusher.is_alive():
            self._flusher.start()

    def _created(self, path: Path, content: bytes) -> int:
        """Return a new file with its first record, which is on the disk."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                _write(file, content)
                os.fsync(file)
                flush_to_disk(self.folder)
            except OSError:
                os.close(file)
                raise
        except OSError as error:
            with suppress(OSError):
                path.unlink()
            raise self._full(error) from error
        return file

    def _next_number(self) -> int:
        return int(self._segments[-1].path.stem) + 1 if self._segments else 1

    @property
    def is_full(self) -> bool:
        """Whether the segment has its bytes, so that it is time for another one."""
        return self._size >= self._segment_bytes

    def append(self, record: Record) -> int:
        """Write a record and return its position. A killed process does not lose it, a machine without power may.

        Raises:
            JournalFullError: there is no room; nothing was written.
            JournalLostError: see :meth:`flushed`.
        """
        content = framed(record)
        with self._lock:
            if self._lost is not None:
                raise JournalLostError(self._lost)
            try:
                _write(self._file, content)
            except OSError as error:
                os.ftruncate(self._file, self._size)
                raise self._full(error) from error
            self._size += len(content)
            self._written += 1
            self._note(self._segments[-1], record)
            return self._written

    def _full(self, error: OSError) -> JournalFullError:
        return JournalFullError(
            f"no call is taken: {self.folder} cannot be written ({error.strerror}). Free space on that disk; clients "
            "that send the call again then go on, and what was acknowledged is safe"
        )

    def _note(self, segment: _Segment, record: Record) -> None:
        # what is recorded of a call later on is behind it, and goes after it
        if record.kind in _KEPT_FOR_SNAPSHOTS:
            model, number = record.about["model"], record.about["number"]
            segment.last_numbers[model] = max(number, segment.last_numbers.get(model, number))

    # ---- onto the disk

    def flush(self) -> None:
        """Begin to bring what was written onto the disk, and do not wait."""
        with self._wanted:
            self._asked = self._written
            self._wanted.notify()

    def flushed(self, position: int) -> Future[None]:
        """Return what is done once a record is on the disk.

        A disk that fails here has lost what it had taken. The future is not done then: no client gets an answer that
        a restart would not know.
        """
        done: Future[None] = Future()
        with self._wanted:
            if position <= self._flushed:
                done.set_result(None)
            else:
                self._waiting.append((position, done))
                self._asked = self._written
                self._wanted.notify()
        return done

    def _flush_on_demand(self) -> None:
        while True:
            with self._wanted:
                self._wanted.wait_for(lambda: self._is_closing or self._asked > self._flushed)
                if self._is_closing:
                    return
                position, file = self._written, self._duplicated()
            if file is None:
                time.sleep(_PATIENCE_SECONDS)
                continue
            is_kept = self._flush_file(file)
            os.close(file)
            if not is_kept:
                return
            with self._wanted:
                self._flushed = max(self._flushed, position)
                ready = [done for at, done in self._waiting if at <= self._flushed]
                self._waiting = [(at, done) for at, done in self._waiting if at > self._flushed]
            for done in ready:
                # the client that waited may have given up
                with suppress(InvalidStateError):
                    done.set_result(None)

    def _duplicated(self) -> int | None:
        """Return the file under a number that stays when the next segment begins; None while none is free."""
        try:
            return os.dup(self._file)
        except OSError as error:
            _log.warning("answers wait until the journal can be brought onto the disk: %s", error)
            return None

    def _flush_file(self, file: int) -> bool:
        try:
            os.fdatasync(file)
        except OSError as error:
            self._lost = f"{self.folder} has not kept what was written ({error.strerror}); restart the server"
            _log.error("%s", self._lost)
        return self._lost is None

    def close(self) -> None:
        """Write no more."""
        with self._wanted:
            self._is_closing = True
            self._wanted.notify()
        if self._flusher.is_alive():
            self._flusher.join()
        with self._lock:
            # the trainer's thread may write until it has ended: never into a file that has got the same number
            self._lost = self._lost or f"{self.folder} is closed: the server stops"
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    # ---- old segments

    @property
    def num_segments(self) -> int:
        return len(self._segments)

    def behind(self) -> set[str]:
        """Return the models whose snapshots would let old segments go."""
        return {model for segment in self._segments[:-1] for model in segment.last_numbers}

    def settled(self, model: str, number: int | None) -> None:
        """Note that calls of a model up to ``number`` are in a snapshot; None: the model is gone."""
        with self._lock:
            for segment in self._segments:
                last = segment.last_numbers.get(model)
                if last is not None and (number is None or last <= number):
                    del segment.last_numbers[model]

    def drop_settled(self) -> None:
        """Remove the oldest segments as far as every call in them is in a snapshot."""
        while len(self._segments) > 1 and not self._segments[0].last_numbers:
            self._drop_oldest()

    def keep_last(self, num_bytes: int, *, most_segments: int = 64) -> None:
        """Remove the oldest segments as long as the others hold ``num_bytes``, or are too many."""
        sizes = [segment.path.stat().st_size for segment in self._segments]
        while len(sizes) > 1 and (sum(sizes[1:]) >= num_bytes or len(sizes) > most_segments):
            self._drop_oldest()
            del sizes[0]

    def _drop_oldest(self) -> None:
        self._segments[0].path.unlink(missing_ok=True)
        with self._lock:
            del self._segments[0]


def _write(file: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]


def _settle(path: Path, num_bytes: int) -> None:
    """Cut a segment after its whole records, and bring them onto the disk.

    A killed process leaves them in memory, and only of the last segment is a torn end taken for one.
    """
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(file, num_bytes)
        os.fsync(file)
    finally:
        os.close(file)
