"""Triton's digest of its own files: read once on a machine, and again when a file of Triton is another one."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

from cohort.machine.compile_ahead import triton_digest
from cohort.machine.compile_ahead.triton_digest import identify_triton


class Processes:
    """Processes that start one after the other, with a package of a few files in Triton's place."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.package, self.kept = folder / "triton", folder / "cache"
        self.file = str(self.package / "runtime" / "cache.py")
        self.num_reads = 0
        self._monkeypatch = monkeypatch
        for name in ("runtime/cache.py", "compiler/code.py", "_C/libtriton.so", "backends/nvidia/include/cuda.h"):
            (self.package / name).parent.mkdir(parents=True, exist_ok=True)
            (self.package / name).write_text(name)
        monkeypatch.setenv("COHORT_CACHE_DIR", str(self.kept))

    def start(self) -> str:
        """Return the digest that another process finds."""
        module = SimpleNamespace(triton_key=self._read, __file__=self.file)
        self.identify(module)
        return str(module.triton_key())

    def identify(self, module: SimpleNamespace) -> None:
        self._monkeypatch.setitem(sys.modules, "triton.runtime.cache", module)
        self._monkeypatch.setattr(importlib.import_module("triton.runtime"), "cache", module)
        identify_triton()

    def _read(self) -> str:
        self.num_reads += 1
        return f"3.6.0-{self.num_reads}"


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    return Processes(tmp_path, monkeypatch)


def test_the_next_process_reads_nothing(processes: Processes) -> None:
    assert processes.start() == processes.start() == "3.6.0-1"
    # what Triton does not read
    (processes.package / "backends" / "nvidia" / "include" / "cuda.h").write_text("another header")
    assert processes.start() == "3.6.0-1"
    assert processes.num_reads == 1


@pytest.mark.parametrize("change", ["content", "time", "new"])
def test_other_files_are_read(processes: Processes, change: str) -> None:
    processes.start()
    library = processes.package / "_C" / "libtriton.so"
    if change == "content":
        library.write_text("another library")
    elif change == "time":
        os.utime(library, ns=(1, 1))
    else:
        (processes.package / "compiler" / "more.py").write_text("")
    assert processes.start() == "3.6.0-2"
    assert processes.num_reads == 2


@pytest.mark.parametrize(
    "damage", ["", "{", '{"digest": 1, "sha256": 2}', '{"digest": "3.6.0-9", "sha256": "0"}', "[]"]
)
def test_a_damaged_file_is_made_again(processes: Processes, damage: str) -> None:
    processes.start()
    (kept,) = processes.kept.rglob("*.json")
    kept.write_text(damage)
    assert processes.start() == processes.start() == "3.6.0-2"


def test_a_process_keeps_the_digest_of_the_code_that_it_runs(processes: Processes) -> None:
    module = SimpleNamespace(triton_key=lambda: "of the old files", __file__=processes.file)
    processes.identify(module)
    # upgraded under a process that goes on, and prepares another task
    (processes.package / "_C" / "libtriton.so").write_text("another library")
    processes.identify(module)
    assert module.triton_key() == "of the old files"
    assert processes.start() == "3.6.0-1", "the next one reads the files that are there"
    processes.identify(module)
    assert module.triton_key() == "of the old files"


def test_a_digest_of_files_that_change_meanwhile_is_not_kept(processes: Processes) -> None:
    def compute() -> str:
        (processes.package / "_C" / "libtriton.so").write_text("another library")
        return "of some files"

    processes.identify(SimpleNamespace(triton_key=compute, __file__=processes.file))
    assert not [*processes.kept.rglob("*.json")]


def test_a_version_that_finds_kernels_otherwise_is_left_alone(processes: Processes) -> None:
    module = SimpleNamespace(__file__=processes.file)
    processes.identify(module)
    assert not hasattr(module, "triton_key")
    assert not processes.kept.exists()


def test_triton_itself_finds_kernels_by_it() -> None:
    from triton.runtime import cache

    own = cache.triton_key
    try:
        before = own()
        cache.triton_key = lambda: before
        identify_triton()
        assert cache.triton_key() == before
        assert isinstance(cache.triton_key, triton_digest._KeptDigest)
        part = SimpleNamespace(hash=lambda: "-")
        assert cache.get_cache_key(part, part, part, {}).startswith(before)
    finally:
        cache.triton_key = own
