"""What counts as a kernel that Triton can load, and a cache that holds all it held."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from cohort.machine.compile_ahead.kernel_cache import is_whole, mark, remove_damaged


def cubin(num_sections: int = 3) -> bytes:
    """Return as much of a cubin as says how long it is: a header, then its table of sections."""
    header = struct.pack("<4s28xQQ6xHHHHH", b"\x7fELF", 0, 64, 56, 0, 64, num_sections, 0)
    return header.ljust(64 + 64 * num_sections, b"\0")


def kernel(cache: Path, name: str) -> Path:
    """Write a kernel as Triton does; return its folder."""
    folder = cache / name
    folder.mkdir(parents=True)
    (folder / "f.cubin").write_bytes(cubin())
    (folder / "f.json").write_text('{"name": "f"}')
    # the text is not needed to load it
    paths = {file: str(folder / file) for file in ("f.json", "f.cubin", "f.ttir")}
    (folder / "__grp__f.json").write_text(json.dumps({"child_paths": paths}))
    return folder


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("f.cubin", cubin()[:-1]),
        ("f.cubin", b""),
        ("f.cubin", b"\0" * 256),
        ("f.cubin", None),
        ("f.json", b"{"),
        ("f.json", b"[]"),
        ("f.json", b""),
        ("f.json", None),
        ("__grp__f.json", b"{"),
        ("__grp__f.json", b'{"other": 1}'),
        ("__grp__f.json", b"\xff"),
    ],
)
def test_a_kernel_that_cannot_be_loaded_is_removed(tmp_path: Path, file: str, content: bytes | None) -> None:
    whole, broken = kernel(tmp_path, "whole"), kernel(tmp_path, "broken")
    assert remove_damaged(tmp_path) == 0
    if content is None:
        (broken / file).unlink()
    else:
        (broken / file).write_bytes(content)
    assert remove_damaged(tmp_path) == 1
    assert whole.is_dir()
    assert not broken.exists()


def test_what_is_being_compiled_and_what_is_no_kernel_stay(tmp_path: Path) -> None:
    unfinished = kernel(tmp_path, "unfinished")
    (unfinished / "__grp__f.json").unlink()
    (unfinished / "f.cubin").write_bytes(b"")
    (tmp_path / "cohort-0.compiled").write_text("1 kernels")
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher" / "launcher.so").touch()
    assert remove_damaged(tmp_path) == 0
    assert len(list(tmp_path.iterdir())) == 3
    assert remove_damaged(tmp_path / "nowhere") == 0


def test_a_cache_that_lost_kernels_or_was_moved_is_filled_again(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    marker = cache / "cohort-0.compiled"
    assert not is_whole(marker)
    for name in ("one", "two"):
        (cache / name).mkdir(parents=True)
    mark(marker)
    assert is_whole(marker)
    # kernels of another model only add to it
    (cache / "three").mkdir()
    assert is_whole(marker)
    # Triton's lists of files name where they were written
    moved = cache.rename(tmp_path / "elsewhere")
    assert not is_whole(moved / marker.name)
    moved.rename(cache)
    for name in ("one", "two"):
        (cache / name).rmdir()
    assert not is_whole(marker)
    for damaged in ("not a number", "", "1 kernels", "2 kernels in the cache\n"):
        marker.write_text(damaged)
        assert not is_whole(marker)
