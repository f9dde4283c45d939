"""The last calls are known after a restart, and older ones make room."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.service.tinker.journal.recent_calls import RecentCalls


def test_the_last_calls_are_known_after_a_restart(tmp_path: Path) -> None:
    calls = RecentCalls(tmp_path, segment_bytes=300)
    calls.open()
    for number in range(40):
        calls.add(f"s:{number}", b"x" * 50)
    assert calls.before("s:39") is None
    calls.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1000
    # a server that is killed as soon as it is back keeps them as well
    for _ in range(4):
        again = RecentCalls(tmp_path, segment_bytes=300)
        again.open()
        again.close()
    assert again.before("s:39") == b"x" * 50
    assert again.before("s:0") is None


def test_damage_costs_the_calls_and_no_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    calls = RecentCalls(tmp_path / "samples", segment_bytes=300)
    calls.open()
    for number in range(8):
        calls.add(f"s:{number}", b"x" * 50)
    calls.close()
    first = min((tmp_path / "samples").iterdir())
    first.write_bytes(first.read_bytes()[:-3])
    again = RecentCalls(tmp_path / "samples", segment_bytes=300)
    again.open()
    assert "are forgotten" in caplog.text
    assert again.before("s:7") is None
    again.add("s:8", b"y")
    again.close()
    last = RecentCalls(tmp_path / "samples", segment_bytes=300)
    last.open()
    last.close()
    assert last.before("s:8") == b"y"
