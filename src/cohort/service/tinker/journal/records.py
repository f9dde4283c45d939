"""Records of a journal's segment: framed, each with a checksum, so that a torn one can be told from a damaged one.

A segment is a sequence of frames: a mark, the length of the content and its CRC-32, then the content, which is the
length of a JSON object, the object, and the bytes of a body.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cohort.core.errors import InputError, Problem

__all__ = ["Record", "begins_whole", "framed", "read_records"]

_MARK = b"\x93cjr"
_FRAME = struct.Struct("<4sII")
_ABOUT = struct.Struct("<I")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One thing that happened.

    Attributes:
        kind: What happened, as ``call``.
        about: Its numbers and names, as JSON has them.
        body: Bytes as a client sent them.
    """

    kind: str
    about: dict[str, Any]
    body: bytes = b""


def framed(record: Record) -> bytes:
    """Return a record as it is in a segment."""
    about = json.dumps({"kind": record.kind, **record.about}).encode()
    content = b"".join((_ABOUT.pack(len(about)), about, record.body))
    return _FRAME.pack(_MARK, len(content), zlib.crc32(content)) + content


def read_records(content: bytes, *, name: str, is_last: bool) -> Iterator[tuple[Record, int]]:
    """Yield the records of a segment and where each ends.

    The end of the last segment may be torn: the process was killed while it wrote, and no client knows of the record.

    Args:
        name: Of the file, for messages.
        is_last: Whether it is the segment that was being written.

    Raises:
        InputError: a record is damaged, and whole ones follow it.
    """
    start = 0
    while start < len(content):
        found = _record_at(content, start)
        if found is None:
            if is_last and not _is_followed(content, start):
                return
            raise InputError(
                Problem(
                    where=name,
                    found=f"a damaged record at byte {start:,}",
                    allowed="the file as the server wrote it",
                    hint="Restore it from a copy of the disk. Without one, remove the folder that it is in: models "
                    "in training are lost then, and checkpoints that clients saved stay.",
                )
            )
        record, start = found
        yield record, start


def begins_whole(content: bytes) -> bool:
    """Whether a segment begins with a whole record."""
    return _record_at(content, 0) is not None


def _record_at(content: bytes, start: int) -> tuple[Record, int] | None:
    """Return the record that begins at ``start`` and where it ends; None where there is no whole one."""
    if start + _FRAME.size > len(content):
        return None
    mark, length, checksum = _FRAME.unpack_from(content, start)
    begin = start + _FRAME.size
    own = content[begin : begin + length]
    if mark != _MARK or len(own) < max(length, _ABOUT.size) or zlib.crc32(own) != checksum:
        return None
    (size,) = _ABOUT.unpack_from(own)
    about = json.loads(own[_ABOUT.size : _ABOUT.size + size])
    kind = str(about.pop("kind"))
    return Record(kind=kind, about=about, body=own[_ABOUT.size + size :]), begin + length


def _is_followed(content: bytes, start: int) -> bool:
    """Whether a whole record begins somewhere behind ``start``."""
    place = content.find(_MARK, start + 1)
    while place >= 0:
        if _record_at(content, place) is not None:
            return True
        place = content.find(_MARK, place + 1)
    return False
