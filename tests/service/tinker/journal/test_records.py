"""A record is read as it was written; a torn end is told from damage."""

from __future__ import annotations

import pytest

from cohort.core.errors import InputError
from cohort.service.tinker.journal.records import Record, framed, read_records

RECORDS = [Record(kind="call", about={"model": "m", "number": number}, body=bytes(40 * number)) for number in range(3)]
WHOLE = b"".join(map(framed, RECORDS))


def read(content: bytes, *, is_last: bool = True) -> list[Record]:
    return [record for record, _ in read_records(content, name="1.journal", is_last=is_last)]


def test_records_come_back_with_where_they_end() -> None:
    assert read(WHOLE) == RECORDS
    ends = [end for _, end in read_records(WHOLE, name="1.journal", is_last=True)]
    assert ends[-1] == len(WHOLE)
    assert read(WHOLE[ends[0] :]) == RECORDS[1:]


def test_an_end_that_is_torn_anywhere_is_left_out() -> None:
    start = len(WHOLE) - len(framed(RECORDS[2]))
    for stop in range(start, len(WHOLE)):
        assert read(WHOLE[:stop]) == RECORDS[:2]
    with pytest.raises(InputError, match=rf"1\.journal: found a damaged record at byte {start:,}"):
        read(WHOLE[:-1], is_last=False)


def test_damage_before_a_whole_record_is_an_error_that_names_the_file() -> None:
    for place in range(len(framed(RECORDS[0])) + len(framed(RECORDS[1]))):
        damaged = bytearray(WHOLE)
        damaged[place] ^= 0x41
        with pytest.raises(InputError, match=r"1\.journal: found a damaged record at byte"):
            read(bytes(damaged))
