"""A directory of caches is tried before it is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.machine.writable_directory import require_writable


def test_a_missing_directory_is_created_and_left_empty(tmp_path: Path) -> None:
    require_writable(tmp_path / "new" / "cache", hint="Free some room.")
    assert list((tmp_path / "new" / "cache").iterdir()) == []


def test_what_cannot_be_written_is_an_error_with_the_hint(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="a directory that can be written") as caught:
        require_writable(tmp_path / "file" / "cache", hint="Free some room.")
    assert caught.value.problems[0].hint == "Free some room."
