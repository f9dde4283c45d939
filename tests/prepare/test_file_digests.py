"""A kept digest serves as long as nothing was written to the file."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from cohort.prepare import file_digests
from cohort.prepare.file_digests import kept_digest


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, cache, reads = tmp_path / "weights", tmp_path / "cache", []

    def read(path: Path) -> bytes:
        reads.append(path)
        return hashlib.sha256(path.read_bytes()).digest()

    monkeypatch.setattr(file_digests, "file_digest", read)
    monkeypatch.setattr(file_digests, "_SETTLED_SECONDS", -1.0)
    weights.write_bytes(b"first")
    assert kept_digest(weights, cache_directory=cache) == hashlib.sha256(b"first").digest()
    assert kept_digest(weights, cache_directory=cache) == hashlib.sha256(b"first").digest()
    assert len(reads) == 1
    before = weights.stat()
    weights.write_bytes(b"other")
    # a tool that puts back the time of the last change cannot put back the ctime
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert kept_digest(weights, cache_directory=cache) == hashlib.sha256(b"other").digest()
    next((cache / "file-digests").iterdir()).write_text("{}")
    assert kept_digest(weights, cache_directory=cache) == hashlib.sha256(b"other").digest()
    assert len(reads) == 3


def test_a_file_written_just_now_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"first")
    kept_digest(tmp_path / "weights", cache_directory=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
