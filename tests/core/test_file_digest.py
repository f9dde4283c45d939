"""A file's digest is that of its bytes, however many blocks they are."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from cohort.core import file_digest as module
from cohort.core.file_digest import file_digest


@pytest.mark.parametrize("num_bytes", [0, 1, 7, 8, 9, 1000])
def test_the_digest_is_that_of_all_bytes(tmp_path: Path, num_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", 8)
    content = bytes(number % 251 for number in range(num_bytes))
    (tmp_path / "file").write_bytes(content)
    assert file_digest(tmp_path / "file") == hashlib.sha256(content).digest()
