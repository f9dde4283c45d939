"""The last calls that change nothing: after a restart each is carried out again when its answer is asked for."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from cohort.core.errors import InputError
from cohort.service.tinker.journal.journal import Journal
from cohort.service.tinker.journal.records import Record

__all__ = ["RecentCalls"]

_log = logging.getLogger(__name__)
SEGMENT_BYTES = 8 << 20


class RecentCalls:
    """A journal of which the last segments are kept, whatever is in them."""

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Write below ``folder``; between one and two times ``segment_bytes`` are kept."""
        self._segment_bytes = segment_bytes
        self._journal = Journal(folder, segment_bytes=segment_bytes)
        self._before: dict[str, bytes] = {}

    def open(self) -> None:
        """Read what there is; where a segment is damaged, begin with none: no model is lost with them.

        Raises:
            JournalFullError: the disk is full.
        """
        try:
            for record in self._journal.read():
                if record.kind == "sample":
                    self._before[record.about["request_id"]] = record.body
        except (InputError, OSError) as error:
            _log.warning("answers that were not fetched before the restart are forgotten: %s", error)
            shutil.rmtree(self._journal.folder, ignore_errors=True)
            self._journal = Journal(self._journal.folder, segment_bytes=self._segment_bytes)
            self._before = {}
        self._begin()

    def _begin(self) -> None:
        self._journal.begin({})
        self._journal.keep_last(self._segment_bytes)

    def add(self, request_id: str, body: bytes) -> None:
        """Write a call down; a killed process does not lose it.

        Raises:
            JournalFullError: there is no room.
        """
        if self._journal.is_full:
            self._begin()
        self._journal.append(Record(kind="sample", about={"request_id": request_id}, body=body))

    def before(self, request_id: str) -> bytes | None:
        """Return the body of a call from before the restart; None for one that is not known."""
        return self._before.get(request_id)

    def close(self) -> None:
        """Write no more."""
        self._journal.close()
