"""Files that are whole or absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.durable_files import atomic_file


@pytest.mark.parametrize("knows_links", [True, False])
def test_whoever_was_first_keeps_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows_links: bool) -> None:
    def refuse(source: object, target: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not knows_links:
        monkeypatch.setattr("os.link", refuse)
    target = tmp_path / "queue.db"
    with atomic_file(target, replaces=False) as partial:
        partial.write_text("first")
    assert target.read_text() == "first"
    with atomic_file(target) as partial:
        partial.write_text("second")
    assert target.read_text() == "second"
    if knows_links:
        with atomic_file(target, replaces=False) as partial:
            partial.write_text("third")
        assert target.read_text() == "second"
    assert [entry.name for entry in tmp_path.iterdir()] == ["queue.db"]
